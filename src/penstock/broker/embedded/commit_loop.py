"""One commit loop for all queues: what was written in a round is synced together.

A round takes every queue that somebody waits for, syncs them in parallel, both logs of each (the
disk makes one flush of it), and answers all who waited. Who comes meanwhile waits for the next.
The syncs run in threads; everything else runs in the event loop, so nothing here needs a lock.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.broker.embedded.sync_threads import SyncThreads, Threads
from penstock.clock import Clock
from penstock.errors import LedgerClosed, PenstockError

_T = TypeVar("_T")
_SMALL_BYTES = 4096  # a result that is handed over in a moment does not count any more


class Syncable(Protocol):
    """What a round can sync."""

    def syncs(self) -> list[Callable[[], None]]:
        """Calls, each in a thread: when all have returned, what was written before is on disk."""


class _Waiting(NamedTuple):
    answer: Future[Any]
    result: Any
    on_lost: Callable[[Any], None] | None
    size: int


class CommitLoop:
    """Rounds of syncs. `observe` is told the seconds and the answers of each round."""

    def __init__(
        self,
        clock: Clock,
        observe: Callable[[float, int], None],
        threads: Callable[[asyncio.AbstractEventLoop], Threads] = SyncThreads,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._observe = observe
        self._threads = threads(self._loop)
        self._gathering: dict[Syncable, list[_Waiting]] = {}
        self._is_running = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self.held_bytes = 0  # of results that wait, or are not handed over yet

    def when_durable(
        self,
        queue: Syncable,
        result: _T,
        on_lost: Callable[[_T], None] | None = None,
        size: int = 0,
    ) -> Future[_T]:
        """The result, once everything that the queue wrote so far is on disk.

        If nobody waits for it any more by then, `on_lost` gets it. `size`: bytes of the result, to
        be counted in `held_bytes` until it is handed over.
        """
        answer: Future[_T] = self._loop.create_future()
        self._add(queue, _Waiting(answer, result, on_lost, size))
        self.held_bytes += size
        if size > _SMALL_BYTES:
            answer.add_done_callback(partial(self._handed_over, size))
        return answer

    def _handed_over(self, size: int, answer: Future[Any]) -> None:
        if not answer.cancelled():  # else the result is there until the end of the round
            self.held_bytes -= size

    def run(self, work: Callable[["HeldResult"], Coroutine[Any, Any, _T]]) -> "asyncio.Task[_T]":
        """Run a task that says how large its result is."""
        held = HeldResult(self)
        task = self._loop.create_task(work(held))
        task.add_done_callback(held.let_go)
        return task

    def soon(self, queue: Syncable) -> None:
        """Sync it in the next round, though nobody waits."""
        self._add(queue, None)

    async def drained(self) -> None:
        """When all that was asked for before is answered."""
        while self._is_running or self._gathering:
            await self._idle.wait()

    async def close(self) -> None:
        """Answer everyone, then end the threads."""
        self._closed = True
        await self.drained()
        self._threads.close()

    def _add(self, queue: Syncable, waiting: _Waiting | None) -> None:
        if self._closed:
            raise LedgerClosed("the store is closed")
        lot = self._gathering.get(queue)
        if lot is None:
            lot = self._gathering[queue] = []
            if not self._is_running:
                self._is_running = True
                self._idle.clear()
                # Not at once: what the loop has at hand now can share the round.
                self._loop.call_soon(self._start)
        if waiting is not None:
            lot.append(waiting)

    def _start(self) -> None:
        lots, self._gathering = self._gathering, {}
        started_ns = self._clock.monotonic_ns()
        syncs = [(index, sync) for index, queue in enumerate(lots) for sync in queue.syncs()]
        left = len(syncs)
        errors: list[Exception | None] = [None] * len(lots)

        def one_is_done(index: int, error: Exception | None) -> None:
            nonlocal left
            left -= 1
            errors[index] = errors[index] or error
            if not left:
                self._finish(list(lots.values()), errors, started_ns)

        for index, sync in syncs:
            self._threads.run(partial(_tried, sync), partial(one_is_done, index))

    def _finish(
        self, lots: Sequence[list[_Waiting]], errors: Sequence[Exception | None], started_ns: int
    ) -> None:
        if self._gathering:
            self._start()  # first: the next sync runs while these are answered
        else:
            self._is_running = False
            self._idle.set()
        self._observe((self._clock.monotonic_ns() - started_ns) / 1e9, sum(map(len, lots)))
        for lot, error in zip(lots, errors, strict=True):
            for waiting in lot:
                if waiting.size <= _SMALL_BYTES or waiting.answer.cancelled():
                    self.held_bytes -= waiting.size
                _answer(waiting, error)


class HeldResult:
    """Bytes of a task's result, which count until the task's callbacks are called."""

    def __init__(self, commits: CommitLoop) -> None:
        self._commits = commits
        self._size = 0

    def hold(self, size: int) -> None:
        self._size = size
        self._commits.held_bytes += size

    def let_go(self, _: Future[Any]) -> None:
        self._commits.held_bytes -= self._size


def _tried(sync: Callable[[], None]) -> Exception | None:
    try:
        sync()
    except Exception as error:
        return error
    return None


def _answer(waiting: _Waiting, error: Exception | None) -> None:
    answer, result, on_lost, _ = waiting
    if answer.done():  # cancelled
        if on_lost is not None and error is None:
            on_lost(result)
    elif error is None:
        answer.set_result(result)
    else:
        answer.set_exception(_again(error))


def _again(error: Exception) -> Exception:
    """The same error for another waiter, each with a traceback of its own."""
    if not isinstance(error, PenstockError):
        return error
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
