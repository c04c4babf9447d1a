"""An event loop whose clock jumps to the next timer when nothing else is to be done.

Days pass in milliseconds, and always in the same order. What waits for another thread or a socket
waits really: the clock jumps only over timers, after a moment in which nothing came.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.clock import ManualClock

_T = TypeVar("_T")


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, clock: ManualClock, patience_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._patience_s = patience_s

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(self._patience_s)
        if not ready:
            self._clock.advance(timeout)
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """Runs on a manual clock. `patience_s` is real: what threads get to answer before a jump."""

    def __init__(self, clock: ManualClock, *, patience_s: float = 0.0) -> None:
        self._clock_of_loop = clock
        super().__init__(_JumpingSelector(clock, patience_s))

    def time(self) -> float:
        return self._clock_of_loop.monotonic_ns() / 1e9


def run_jumping(
    story: Coroutine[Any, Any, _T], clock: ManualClock, *, patience_s: float = 0.0
) -> _T:
    """As `asyncio.run`, on a clock that jumps."""
    with asyncio.Runner(loop_factory=lambda: JumpingLoop(clock, patience_s=patience_s)) as runner:
        return runner.run(story)
