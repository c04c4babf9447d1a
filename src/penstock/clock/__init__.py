"""The only package that knows the time, compiled code included.

`SteadyClock`, `AdaptiveLock` and `Gate` have a compiled body (`_clock.pyx`) and a pure-Python twin
(`clock_py.py`).
"""

import time
from threading import Condition
from typing import TYPE_CHECKING, Protocol

from penstock.compiled import compiled_or_twin

if TYPE_CHECKING:
    from penstock.clock.clock_py import AdaptiveLock, Gate, SteadyClock
else:
    _body = compiled_or_twin("penstock.clock._clock", "penstock.clock.clock_py")
    AdaptiveLock, Gate, SteadyClock = _body.AdaptiveLock, _body.Gate, _body.SteadyClock

__all__ = ["AdaptiveLock", "Clock", "Gate", "ManualClock", "SteadyClock", "SystemClock"]


class Clock(Protocol):
    """Where the layers below the server get the time from."""

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds, UTC. It may step in both directions."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since some fixed moment. It never goes back."""

    def wait(self, condition: Condition, timeout_s: float | None) -> None:
        """Wait on a condition that the caller holds, until a notification or the timeout."""


class SystemClock:
    """The clock of the machine."""

    # The built-in functions themselves, not wrappers: every append asks for the time.
    now_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)

    def wait(self, condition: Condition, timeout_s: float | None) -> None:
        condition.wait(timeout_s)


class ManualClock:
    """A clock that moves only when told to, for tests.

    >>> clock = ManualClock(now_s=100)
    >>> clock.advance(2.5)
    >>> clock.now_ns()
    102500000000
    """

    def __init__(self, *, now_s: float = 1_700_000_000.0) -> None:
        self._now_ns = round(now_s * 1e9)
        self._monotonic_ns = 0
        self._waiting: list[tuple[Condition, int]] = []

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_ns += round(seconds * 1e9)
        self._monotonic_ns += round(seconds * 1e9)
        for condition, until_ns in list(self._waiting):
            if until_ns <= self._monotonic_ns:
                with condition:
                    condition.notify_all()

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or NTP does; no time passes."""
        self._now_ns += round(seconds * 1e9)

    def wait(self, condition: Condition, timeout_s: float | None) -> None:
        """Return when notified, or when `advance` has gone past the timeout."""
        until_ns = (1 << 63) if timeout_s is None else self._monotonic_ns + round(timeout_s * 1e9)
        waiting = (condition, until_ns)
        self._waiting.append(waiting)
        try:
            condition.wait()
        finally:
            self._waiting.remove(waiting)
