"""An event loop on a virtual clock: time passes only when nothing is left to do.

When every task waits, the clock jumps to the next timer. So days pass in a moment, the same seed
gives the same run, and nothing sleeps. Threads (a sync, a search) are waited for: while one works,
the clock stands still.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Any, TypeVar

from penstock.broker.embedded.commit_loop import Done, Work

_T = TypeVar("_T")


class LoopClock:
    """The clock of a virtual loop, for what asks a `Clock`. May be jumped, as NTP does."""

    def __init__(self, *, now_s: float = 1_700_000_000.0) -> None:
        self._start_ns = round(now_s * 1e9)
        self.passed_ns = 0

    def now_ns(self) -> int:
        return self._start_ns + self.passed_ns

    def monotonic_ns(self) -> int:
        return self.passed_ns

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back; no time passes."""
        self._start_ns += round(seconds * 1e9)

    def wait(self, condition: Condition, timeout_s: float | None) -> None:
        """A thread waits for what a task does; time does not pass meanwhile."""
        if not condition.wait(60):
            raise AssertionError("a thread waits for time to pass, which only the loop can do")


class _Selector(selectors.SelectSelector):
    """Waits for files and threads in real time, never for a timer: that one is jumped to."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        if self.loop.working_threads or self.loop.awaits_sockets:
            return super().select(None)  # a thread wakes the loop when it is done
        if timeout is None:
            raise AssertionError("every task waits, and no timer is set: nothing will ever happen")
        self.loop.clock.passed_ns += max(round(timeout * 1e9), 1)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, with the clock above."""

    def __init__(self, clock: LoopClock | None = None, *, inline: bool = False) -> None:
        """`inline`: what is meant for a thread is done at once, so that every run is the same."""
        self.clock = clock or LoopClock()
        self._inline = inline
        self.working_threads = 0
        self._readers: dict[int, Any] = {}
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-9
        self._threads = ThreadPoolExecutor(4)
        self.set_default_executor(self._threads)

    def time(self) -> float:
        return self.clock.passed_ns / 1e9

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., _T], *args: Any
    ) -> "asyncio.Future[_T]":
        if self._inline:
            done: asyncio.Future[_T] = self.create_future()
            try:
                done.set_result(func(*args))
            except Exception as error:
                done.set_exception(error)
            return done
        self.working_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_is_done)
        return future

    def add_reader(  # type: ignore[override]
        self, fd: int, callback: Callable[..., Any], *args: Any
    ) -> None:
        """Wait for another program, such as a database. Connections of asyncio do not call it."""
        self._readers[fd] = getattr(callback, "__self__", None)
        super().add_reader(fd, callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        self._readers.pop(fd, None)
        return super().remove_reader(fd)

    @property
    def awaits_sockets(self) -> bool:
        """Return whether the answer of another program is awaited: time stands still meanwhile."""
        return any(getattr(one, "is_waiting", True) for one in self._readers.values())

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        self._threads.shutdown()  # asyncio's own does it in a thread that the loop does not know

    def _thread_is_done(self, _: object) -> None:
        self.working_threads -= 1


class LoopThreads:
    """Syncs in the loop's own threads: the loop knows when they are at work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Work, done: Done) -> None:
        future = self._loop.run_in_executor(None, work)
        future.add_done_callback(lambda ended: done(ended.result()))

    def close(self) -> None:
        pass


def run_virtually(
    main: Callable[[LoopClock], Coroutine[Any, Any, _T]],
    *,
    clock: LoopClock | None = None,
    inline: bool = False,
) -> _T:
    """Run to the end, on a clock of its own."""
    loop = VirtualLoop(clock, inline=inline)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop.clock))
