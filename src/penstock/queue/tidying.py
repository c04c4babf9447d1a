"""Compaction that happens by itself: a thread that is woken when enough was written since."""

import logging
from collections.abc import Callable
from threading import Event, Thread

from penstock.errors import PenstockError

log = logging.getLogger("penstock.queue")


class Tidying:
    """Runs `compact` in the background, at most once at a time, when asked to."""

    def __init__(self, compact: Callable[[], object], name: str) -> None:
        self._compact = compact
        self._name = name
        self._asked = Event()
        self._ended = False
        self._thread: Thread | None = None

    def ask(self) -> None:
        """Compact soon; does not wait."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name=f"penstock tidy {self._name}", daemon=True)
            self._thread.start()
        self._asked.set()

    def end(self) -> None:
        """Finish what is running, and stop."""
        self._ended = True
        self._asked.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._asked.wait()
            if self._ended:
                return
            self._asked.clear()
            try:
                self._compact()
            except PenstockError as error:
                log.warning("compaction in the background failed: %s", error)
            except Exception:  # a defect of ours; the next snapshot is another chance
                log.exception("compaction in the background failed")
