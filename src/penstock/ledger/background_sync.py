"""The timer behind `sync="interval"`: what is written gets to the disk within the interval."""

import logging
from collections.abc import Callable
from queue import Empty, SimpleQueue

from penstock.background_thread import BackgroundThread
from penstock.errors import PenstockError

log = logging.getLogger("penstock.ledger")


class BackgroundSync:
    """A thread that sleeps until something is written, then waits the interval out and syncs.

    It is told by queues made in C: an interrupt in `threading.Event.set` may keep the lock of the
    event, and whoever uses it next would wait for ever.
    """

    def __init__(self, sync: Callable[[], None], *, interval_s: float, name: str) -> None:
        self._sync = sync
        self._interval_s = interval_s
        self._name = name
        self._written: SimpleQueue[None] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._is_over = False
        self._thread = BackgroundThread(self._run)

    def wake(self) -> None:
        """Something was written that is not synced."""
        self._thread.start()
        self._written.put(None)

    def end(self) -> None:
        """Stop the thread; what is not synced is its owner's to sync."""
        self._is_over = True
        self._ended.put(None)
        self._written.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            self._written.get()
            try:
                self._ended.get(timeout=self._interval_s)
                break
            except Empty:
                pass
            _empty(self._written)
            try:
                self._sync()
            except PenstockError as error:
                log.error("background sync of %s failed: %s", self._name, error)
                return


def _empty(queue: "SimpleQueue[None]") -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        pass
