"""The timer of the schedules of an embedded queue: a thread that sleeps until one is due.

A broker has a timer of its own, for all its queues.
"""

import logging
from threading import Condition
from typing import TYPE_CHECKING

from penstock.background_thread import BackgroundThread
from penstock.errors import LedgerClosed, PenstockError
from penstock.locks import Lock
from penstock.model import NS

if TYPE_CHECKING:
    from penstock.queue.core import QueueCore

log = logging.getLogger("penstock.queue")

_TROUBLE_NS = NS  # between two attempts if the queue takes no writes


class ScheduleTimer:
    """Ticks a queue when a schedule is due. The thread starts with the first schedule."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core
        # Written in C: an interrupt cannot leave it taken, unlike the lock of a condition.
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._asked = False
        self._ended = False
        self._thread = BackgroundThread(self._run)

    def ask(self) -> None:
        """Look again when the next schedule is due. Do not wait."""
        self._thread.start()
        with self._lock:
            self._asked = True
            self._changed.notify_all()

    def end(self) -> None:
        """Stop, before the queue is closed."""
        with self._lock:
            self._ended = True
            self._changed.notify_all()
        if not self._core.lock._is_owned():  # type: ignore[attr-defined]
            self._thread.join()
        # Else a signal handler closes the queue: the thread waits for its lock, and ends after it.

    def _run(self) -> None:
        while not self._ended:
            with self._lock:
                self._asked = False
            try:
                after_ns = self._fire()
            except LedgerClosed:
                return
            except (PenstockError, OSError) as error:
                log.warning("schedules of %s wait: %s", self._core.ledger.path, error)
                after_ns = _TROUBLE_NS
            except Exception:  # a bug; the next tick may succeed
                log.exception("schedules of %s wait", self._core.ledger.path)
                after_ns = _TROUBLE_NS
            with self._lock:
                if not (self._ended or self._asked):
                    timeout_s = None if after_ns is None else after_ns / NS
                    self._core.clock.wait(self._changed, timeout_s)

    def _fire(self) -> int | None:
        """Publish what is due. Return the nanoseconds until the next tick."""
        core = self._core
        with core.lock, core.change:
            before = core.ledger.events.next_seq
            now_ns = core.tick()
            happened = core.ledger.events.next_seq != before
            left = core.firing.wake_after_ns(now_ns)
        if happened and core.settings.storage.sync == "always":
            core.ledger.sync()  # no caller waits for it
        return left[0] if left else None
