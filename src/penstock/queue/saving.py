"""Saving snapshots: small ones at once, large ones beside the work.

To write a state with a million delayed messages takes the disk as long as delivering thousands; a
queue that stood still meanwhile would be late for those that are due.
"""

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock

from penstock.background_thread import BackgroundThread
from penstock.errors import LedgerError
from penstock.queue.snapshot import Frozen

logger = logging.getLogger("penstock.queue")

LARGE_BYTES = 1 << 20


class SnapshotSaver:
    """One at a time, and never an older one after a newer."""

    def __init__(self, save: Callable[[int, bytes], None], name: str) -> None:
        self._save = save
        self._name = name
        self._turn = Lock()
        self._saved_event = 0
        self._handed: SimpleQueue[tuple[int, Frozen, Callable[[], None]] | None] = SimpleQueue()
        self._thread: BackgroundThread | None = None
        self._saving = False

    @property
    def is_busy(self) -> bool:
        """Is one being saved in the thread, or about to be?"""
        return self._saving or not self._handed.empty()

    def save(self, event_seq: int, frozen: Frozen) -> None:
        """Save it now."""
        with self._turn:
            if event_seq >= self._saved_event:
                self._save(event_seq, frozen.done())
                self._saved_event = event_seq

    def save_beside(self, event_seq: int, frozen: Frozen, on_saved: Callable[[], None]) -> None:
        """Save it in a thread. By one caller at a time, and not while it `is_busy`."""
        if self._thread is None:
            self._thread = BackgroundThread(self._run)
        self._thread.start()
        self._handed.put((event_seq, frozen, on_saved))

    def end(self) -> None:
        """Finish what was handed over."""
        if self._thread is not None:
            self._handed.put(None)
            self._thread.join()
            self._thread, self._handed = None, SimpleQueue()

    def _run(self) -> None:
        while True:
            handed = self._handed.get()
            if handed is None:
                return
            self._save_handed(*handed)
            del handed  # it may be large, and the next one may be long in coming

    def _save_handed(self, event_seq: int, frozen: Frozen, on_saved: Callable[[], None]) -> None:
        self._saving = True
        try:
            self.save(event_seq, frozen)
            on_saved()
        except LedgerError as error:  # the disk is full, say: the next one is another chance
            logger.warning("no snapshot of %s was saved: %s", self._name, error)
        finally:
            self._saving = False
