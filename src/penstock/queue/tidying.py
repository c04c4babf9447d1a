"""Compaction that happens by itself: when enough was written since, and at an interval."""

import logging
from collections.abc import Callable
from threading import Condition, Lock

from penstock.background_thread import BackgroundThread
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.model import NS

log = logging.getLogger("penstock.queue")

LONGEST_WAIT_S = 86400.0 * 365  # what a thread can wait in one go


class Tidying:
    """Run `compact` in the background, once at a time: when asked to, and every `interval_s`."""

    def __init__(
        self, compact: Callable[[], object], name: str, *, clock: Clock, interval_s: float = 0.0
    ) -> None:
        self._compact = compact
        self._name = name
        self._clock = clock
        self._interval_ns = round(interval_s * NS)  # 0: no interval
        self._due_ns = clock.monotonic_ns() + self._interval_ns
        self._lock = Lock()  # made in C: no interrupt keeps it, as it may that of a condition
        self._changed = Condition(self._lock)
        self._asked = False
        self._ended = False
        self._thread = BackgroundThread(self._run)
        if interval_s:
            self._thread.start()

    def ask(self) -> None:
        """Compact soon; does not wait."""
        self._thread.start()
        with self._lock:
            self._asked = True
            self._changed.notify_all()

    def end(self) -> None:
        """Finish what is running, and stop."""
        with self._lock:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while self._wait():
            try:
                self._compact()
            except PenstockError as error:
                log.warning("compaction of %s in the background failed: %s", self._name, error)
            except Exception:  # a defect of ours; the next time is another chance
                log.exception("compaction of %s in the background failed", self._name)

    def _wait(self) -> bool:
        """Return True when it is time to compact, False when it is time to stop."""
        with self._lock:
            while not self._ended and not self._asked:
                if not self._interval_ns:
                    self._clock.wait(self._changed, None)
                    continue
                left_ns = self._due_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    break
                self._clock.wait(self._changed, min(left_ns / NS, LONGEST_WAIT_S))
            self._asked = False
            self._due_ns = self._clock.monotonic_ns() + self._interval_ns
            return not self._ended
