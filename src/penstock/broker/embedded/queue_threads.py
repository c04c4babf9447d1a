"""Work in threads for one open queue: its turns, and how long it keeps the queue open."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from penstock.broker.background import Background

_T = TypeVar("_T")


class QueueThreads:
    """Runs long work. Work `alone` holds the queue's lock for long: other calls wait for `turn`,
    because waiting for the lock would block the loop."""

    def __init__(self, background: "Background", on_free: Callable[[], None]) -> None:
        self.turn = asyncio.Lock()
        self.is_occupied = False  # a thread holds the queue's lock for long
        self.is_closing = False
        self._background = background
        self._on_free = on_free  # called in the loop after work that was alone
        self._loop = asyncio.get_running_loop()
        self._busy = 0  # calls that keep the queue open
        self._at_rest = asyncio.Event()
        self._at_rest.set()

    @property
    def is_busy(self) -> bool:
        return self._busy > 0

    async def finished(self) -> None:
        """Wait until no call keeps the queue open."""
        while self._busy:
            await self._at_rest.wait()

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep the queue open: closing it waits until this context ends."""
        self._busy += 1
        self._at_rest.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._at_rest.set()

    def run(
        self,
        work: Callable[[], _T],
        *,
        alone: bool = True,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> "asyncio.Task[_T]":
        """Run work in a thread, also if the caller is cancelled. See `worked`."""
        return self._background.run(self.worked(work, alone=alone, before=before, after=after))

    async def worked(
        self,
        work: Callable[[], _T],
        *,
        alone: bool = True,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> _T:
        """Return the result of work in a thread.

        `before` is called in the loop, in the same turn. `after` is called in the loop at the end.
        """
        with self.kept_open():
            try:
                return await (self._alone(work, before) if alone else asyncio.to_thread(work))
            finally:
                if after is not None:
                    after()

    async def _alone(self, work: Callable[[], _T], before: Callable[[], None] | None) -> _T:
        async with self.turn:
            if before is not None:
                before()
            self.is_occupied = True
            try:
                return await asyncio.to_thread(work)
            finally:
                self.is_occupied = False
                self._loop.call_soon(self._freed)

    def _freed(self) -> None:
        if not self.is_closing:
            self._on_free()
