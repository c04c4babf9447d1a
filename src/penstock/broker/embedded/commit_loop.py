"""One commit loop for all queues: what was written in a round is synced together.

A round takes every queue that somebody waits for, syncs them in parallel, both logs of each (the
disk makes one flush of it), and answers all who waited. Who comes meanwhile waits for the next.
A call is told by an object with `succeed` and `fail`; a future is only one such object.
The syncs run in threads; everything else runs in the event loop, so nothing here needs a lock.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.broker.embedded.sync_threads import SyncThreads, Threads
from penstock.broker.store import Pending
from penstock.clock import Clock
from penstock.errors import LedgerClosed, PenstockError

log = logging.getLogger("penstock.broker")
_T = TypeVar("_T")
_SMALL_BYTES = 4096  # a result that is handed over in a moment does not count any more


class Syncable(Protocol):
    """What a round can sync."""

    def syncs(self) -> list[Callable[[], None]]:
        """Calls, each in a thread: when all have returned, what was written before is on disk."""


class _Waiting(NamedTuple):
    pending: Pending
    result: Any
    size: int


class _ToFuture:
    """A pending call that is answered by a future."""

    __slots__ = ("_commits", "_future", "_on_lost", "_size")

    def __init__(
        self,
        commits: "CommitLoop",
        future: Future[Any],
        on_lost: Callable[[Any], None] | None,
        size: int,
    ) -> None:
        self._commits = commits
        self._future = future
        self._on_lost = on_lost
        self._size = size  # that counts until the result is handed over
        if size:
            future.add_done_callback(self._handed_over)

    def succeed(self, result: Any) -> None:
        if not self._future.done():
            self._future.set_result(result)
            return
        self._commits.held_bytes -= self._size  # cancelled, but the result was there until now
        if self._on_lost is not None:
            self._on_lost(result)

    def fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)
        else:
            self._commits.held_bytes -= self._size

    def _handed_over(self, future: Future[Any]) -> None:
        if not future.cancelled():
            self._commits.held_bytes -= self._size


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
        late = size if size > _SMALL_BYTES else 0
        self.tell_when_durable(queue, _ToFuture(self, answer, on_lost, late), result, size - late)
        self.held_bytes += late
        return answer

    def tell_when_durable(
        self, queue: Syncable, pending: Pending, result: Any, size: int = 0
    ) -> None:
        """Tell `pending` its result once everything that the queue wrote so far is on disk.

        `size` counts in `held_bytes` until then.
        """
        self._add(queue, _Waiting(pending, result, size))
        self.held_bytes += size

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
            for pending, result, size in lot:
                self.held_bytes -= size
                try:
                    if error is None:
                        pending.succeed(result)
                    else:
                        pending.fail(_again(error))
                except Exception as failure:  # the others must be told all the same
                    log.error("a call could not be answered", exc_info=failure)


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


def _again(error: Exception) -> Exception:
    """The same error for another waiter, each with a traceback of its own."""
    if not isinstance(error, PenstockError):
        return error
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
