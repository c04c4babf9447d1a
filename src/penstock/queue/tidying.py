"""Compaction that happens by itself: a thread that is woken when enough was written since."""

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from penstock.errors import PenstockError

log = logging.getLogger("penstock.queue")


class Tidying:
    """Runs `compact` in the background, at most once at a time, when asked to."""

    def __init__(self, compact: Callable[[], object], name: str) -> None:
        self._compact = compact
        self._name = name
        self._asked: SimpleQueue[None] = SimpleQueue()  # made in C, so that no interrupt tears it
        self._ended = False
        self._thread: Thread | None = None

    def ask(self) -> None:
        """Compact soon; does not wait."""
        if self._thread is None:
            thread = Thread(target=self._run, name=f"penstock tidy {self._name}", daemon=True)
            thread.start()
            self._thread = thread  # if an interrupt comes before, the next call starts another
        if self._asked.empty():
            self._asked.put(None)

    def end(self) -> None:
        """Finish what is running, and stop."""
        self._ended = True
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._asked.get()
            if self._ended:
                self._asked.put(None)  # for another that an interrupted start left
                return
            try:
                self._compact()
            except PenstockError as error:
                log.warning("compaction in the background failed: %s", error)
            except Exception:  # a defect of ours; the next snapshot is another chance
                log.exception("compaction in the background failed")
