"""One commit loop for all queues: what was written in a round is synced together.

A round takes every queue that somebody waits for, syncs them in parallel, both logs of each (the
disk makes one flush of it), and answers all who waited. Who comes meanwhile waits for the next.
The syncs run in threads; everything else runs in the event loop, so nothing here needs a lock.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.clock import Clock
from penstock.errors import LedgerClosed, PenstockError

_T = TypeVar("_T")
_SYNC_THREADS = 8


class Syncable(Protocol):
    """What a round can sync."""

    def syncs(self) -> list[Callable[[], None]]:
        """Calls, each in a thread: when all have returned, what was written before is on disk."""


class _Waiting(NamedTuple):
    answer: Future[Any]
    result: Any
    on_lost: Callable[[Any], None] | None


class CommitLoop:
    """Rounds of syncs. `observe` is told the seconds and the answers of each round."""

    def __init__(self, clock: Clock, observe: Callable[[float, int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._observe = observe
        self._pool = ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="penstock-commit")
        self._gathering: dict[Syncable, list[_Waiting]] = {}
        self._is_running = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def when_durable(
        self, queue: Syncable, result: _T, on_lost: Callable[[_T], None] | None = None
    ) -> Future[_T]:
        """The result, once everything that the queue wrote so far is on disk.

        If nobody waits for it any more by then, `on_lost` gets it.
        """
        answer: Future[_T] = self._loop.create_future()
        self._add(queue, _Waiting(answer, result, on_lost))
        return answer

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
        self._pool.shutdown()

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
        syncs = [
            [self._loop.run_in_executor(self._pool, _tried, sync) for sync in queue.syncs()]
            for queue in lots
        ]
        left = sum(map(len, syncs))

        def one_is_done(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                errors = [_first_error(of_one) for of_one in syncs]
                self._finish(list(lots.values()), errors, started_ns)

        for of_one in syncs:
            for sync in of_one:
                sync.add_done_callback(one_is_done)

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
                _answer(waiting, error)


def _tried(sync: Callable[[], None]) -> Exception | None:
    try:
        sync()
    except Exception as error:
        return error
    return None


def _first_error(syncs: Sequence[Future[Exception | None]]) -> Exception | None:
    return next((error for sync in syncs if (error := sync.result()) is not None), None)


def _answer(waiting: _Waiting, error: Exception | None) -> None:
    answer, result, on_lost = waiting
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
