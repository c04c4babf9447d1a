"""Threads for the syncs of the commit loop, with a fast hand-over in both directions.

An executor makes two futures for each sync and wakes a sleeping thread, which adds to the latency
of every durable call. Here a hand-over is a gate, at which a thread spins for a moment (the next
round usually follows at once), and one call of the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from threading import Thread
from typing import Protocol

from penstock.clock import Gate

MOST_THREADS = 8

Work = Callable[[], Exception | None]
Done = Callable[[Exception | None], None]


class Threads(Protocol):
    """Runs work outside the loop."""

    def run(self, work: Work, done: Done) -> None:
        """Call `work` in a thread, then `done` in the loop with the result."""

    def close(self) -> None:
        """End the threads. No work may be running."""


class SyncThreads:
    """Real threads, started when they are first needed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._all: list[_SyncThread] = []
        self._idle: list[_SyncThread] = []
        self._waiting: deque[tuple[Work, Done]] = deque()

    def run(self, work: Work, done: Done) -> None:
        if self._idle:
            self._idle.pop().run(work, done)
        elif len(self._all) < MOST_THREADS:
            thread = _SyncThread(self._loop, self._is_idle, len(self._all))
            self._all.append(thread)
            thread.run(work, done)
        else:
            self._waiting.append((work, done))

    def close(self) -> None:
        for thread in self._all:
            thread.end()

    def _is_idle(self, thread: "_SyncThread") -> None:
        if self._waiting:
            thread.run(*self._waiting.popleft())
        else:
            self._idle.append(thread)  # reused first, while it still spins


class _SyncThread:
    """A thread that runs one piece of work at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        is_idle: "Callable[[_SyncThread], None]",
        number: int,
    ) -> None:
        self._loop = loop
        self._is_idle = is_idle
        self._gate = Gate()
        self._next: tuple[Work, Done] | None = None
        self._thread = Thread(target=self._run, name=f"penstock-commit-{number}", daemon=True)
        self._thread.start()

    def run(self, work: Work, done: Done) -> None:
        self._next = work, done
        self._gate.open()

    def end(self) -> None:
        self._next = None
        self._gate.open()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._gate.wait()
            if self._next is None:
                return
            work, done = self._next
            self._loop.call_soon_threadsafe(self._ended, done, work())

    def _ended(self, done: Done, outcome: Exception | None) -> None:
        self._is_idle(self)
        done(outcome)
