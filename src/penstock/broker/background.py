"""Work that is carried out to its end, also if the call that asked for it is cancelled.

A thread cannot be cancelled. A call that is cancelled while its thread works would leave behind
what the thread made, such as an open queue that is not registered. So such a call waits for a task
of its own, and only the waiting is cancelled.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Background:
    """Tasks that no caller cancels."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Start the work. Return a task that waits for it: cancelling that leaves the work be."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the loop itself would not keep it alive
        task.add_done_callback(self._ended)
        return asyncio.ensure_future(_result_of(task))

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the task that waits for it raises it, unless it was cancelled

    async def finished(self) -> None:
        """Wait until all work has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)


async def _result_of(task: "asyncio.Task[_T]") -> _T:
    return await asyncio.shield(task)
