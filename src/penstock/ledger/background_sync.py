"""The timer behind `sync="interval"`: what is written gets to the disk within the interval."""

import logging
from collections.abc import Callable
from threading import Event, Thread

from penstock.errors import PenstockError

log = logging.getLogger("penstock.ledger")


class BackgroundSync:
    """A thread that sleeps until something is written, then waits the interval out and syncs."""

    def __init__(self, sync: Callable[[], None], *, interval_s: float, name: str) -> None:
        self._sync = sync
        self._interval_s = interval_s
        self._name = name
        self._written = Event()
        self._ended = Event()
        self._thread: Thread | None = None

    def wake(self) -> None:
        """Something was written that is not synced."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name=f"penstock sync {self._name}", daemon=True)
            self._thread.start()
        self._written.set()

    def end(self) -> None:
        """Stop the thread; what is not synced is its owner's to sync."""
        self._ended.set()
        self._written.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._written.wait()
            if self._ended.wait(self._interval_s):
                return
            self._written.clear()
            try:
                self._sync()
            except PenstockError as error:
                log.error("background sync failed: %s", error)
                return
