"""Wait for a queue that another writer holds for a moment.

A Python worker of a killed driver may outlive it, and two streams may write to one queue. Each
holds the queue's lock for the length of a commit. The kernel tells nobody when a lock is released,
so it is tried again, with a growing pause.
"""

from collections.abc import Callable
from threading import Condition
from typing import TypeVar

from penstock.clock import SystemClock
from penstock.errors import LedgerLocked
from penstock.model import NS

LOCK_WAIT_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5

_Result = TypeVar("_Result")


def wait_for_lock(attempt: Callable[[], _Result]) -> _Result:
    """Return what `attempt` returns. Repeat it while it raises LedgerLocked, until a deadline."""
    clock, pause_s, unlocked = SystemClock(), _FIRST_PAUSE_S, Condition()
    deadline_ns = clock.monotonic_ns() + round(LOCK_WAIT_S * NS)
    while True:
        try:
            return attempt()
        except LedgerLocked:
            left_s = (deadline_ns - clock.monotonic_ns()) / NS
            if left_s <= 0:
                raise
        with unlocked:
            clock.wait(unlocked, min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
