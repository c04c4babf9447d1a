"""One commit loop for all queues: group commit of everything written in a round.

A round takes every queue that has waiting calls, syncs both logs of each in parallel (the disk
merges the flushes), and answers the calls. Calls that arrive in the meantime wait for the next
round. A call is answered through an object with `succeed` and `fail`, such as a future's adapter.
The syncs run in threads, or a `Committer` does them: `DiskCommitter` for files. Everything else
runs in the event loop, so nothing here needs a lock.

A `Committer` may have several rounds under way: each begins while the one before is on its way to
the disk. They are answered in order.
"""

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from threading import Thread
from typing import Any, Protocol, TypeVar

from penstock.broker.store import Pending
from penstock.clock import Clock, Gate
from penstock.errors import LedgerClosed, PenstockError

log = logging.getLogger("penstock.broker")
_T = TypeVar("_T")
Work = Callable[[], Exception | None]
Done = Callable[[Exception | None], None]
MOST_THREADS = 8
_AVERAGE_OF = 16  # rounds
_FEW = 2  # calls of one queue
_SMALL_BYTES = 4096  # smaller results do not count after the sync


# -- threads ---------------------------------------------------------------------------------------


class Threads(Protocol):
    """Runs syncs outside the loop."""

    def run(self, work: Work, done: Done) -> None:
        """Call `work` in a thread, then `done` in the loop with the result."""

    def close(self) -> None:
        """End the threads. No work may be running."""


class SyncThreads:
    """Real threads, started when they are first needed, with a fast hand-over.

    An executor makes two futures for each sync and wakes a sleeping thread, which adds to the
    latency of every durable call. Here a hand-over is a gate, at which a thread spins for a moment
    (the next round usually follows at once), and one call of the loop.
    """

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


# -- rounds ----------------------------------------------------------------------------------------


class Syncable(Protocol):
    """Something a round can sync."""

    def syncs(self) -> list[Callable[[], None]]:
        """Return functions for threads. When all have returned, earlier writes are on disk."""


class Committer(Protocol):
    """Makes the writes of many queues durable together, without threads."""

    max_rounds: int  # how many may be under way

    def start(
        self, queues: Sequence[Any], done: Callable[[int, Exception | None], None], *, few: bool
    ) -> Sequence[int]:
        """Begin to make the writes of queues durable. Call `done` for each, by its index.

        `few`: hardly any calls wait, so their latency matters more than what a sync costs. Return
        the indexes of those that must be synced in threads instead.
        """


_Waiting = tuple[Pending, Any, int]  # who gets the result, the result, its size


class _Round:
    """The calls that one round answers, by queue, and the errors of the queues."""

    __slots__ = ("calls", "errors", "left", "started_ns")

    def __init__(self, calls: dict[Syncable, list[_Waiting]], started_ns: int) -> None:
        self.calls = calls
        self.errors: list[Exception | None] = [None] * len(calls)
        self.left = len(calls)  # syncs that have not ended
        self.started_ns = started_ns


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
        self._size = size  # counts until the result is delivered
        if size:
            future.add_done_callback(self._handed_over)

    def succeed(self, result: Any) -> None:
        if not self._future.done():
            self._future.set_result(result)
            return
        self._commits.held_bytes -= self._size  # cancelled, but the result was held until now
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
    """Rounds of syncs. `observe` gets the duration and the number of answers of each round."""

    def __init__(
        self,
        clock: Clock,
        observe: Callable[[float, int], None],
        threads: Callable[[asyncio.AbstractEventLoop], Threads] = SyncThreads,
        committer: Committer | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._observe = observe
        self._threads = threads(self._loop)
        self._committer = committer
        self._max_rounds = 1 if committer is None else committer.max_rounds
        self._gathering: dict[Syncable, list[_Waiting]] = {}
        self._rounds: deque[_Round] = deque()  # under way, oldest first
        self._next: asyncio.Handle | None = None  # starts the next round
        self._average_s = 0.0  # how long a round takes
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self.held_bytes = 0  # of results that wait or are not delivered yet

    def when_durable(
        self,
        queue: Syncable,
        result: _T,
        on_lost: Callable[[_T], None] | None = None,
        size: int = 0,
        *,
        covered: bool = False,
    ) -> Future[_T]:
        """Return the result once everything that the queue wrote so far is on disk.

        If the future was cancelled by then, `on_lost` gets the result. `size`: bytes of the
        result, counted in `held_bytes` until it is delivered. `covered` as below.
        """
        answer: Future[_T] = self._loop.create_future()
        late = size if size > _SMALL_BYTES else 0
        pending = _ToFuture(self, answer, on_lost, late)
        self.tell_when_durable(queue, pending, result, size - late, covered=covered)
        self.held_bytes += late
        return answer

    def at_once(self, result: _T, size: int) -> Future[_T]:
        """Return a result that waits for no disk. Its size counts until it is delivered."""
        answer: Future[_T] = self._loop.create_future()
        answer.set_result(result)
        if size > _SMALL_BYTES:
            held = HeldResult(self)
            held.hold(size)
            answer.add_done_callback(held.let_go)
        return answer

    def tell_when_durable(
        self,
        queue: Syncable,
        pending: Pending,
        result: Any,
        size: int = 0,
        *,
        covered: bool = False,
    ) -> None:
        """Answer `pending` once everything that the queue wrote so far is on disk.

        `size` counts in `held_bytes` until then. `covered`: the last round that was started is
        enough, if it is still running; what was written since is synced by the next one.
        """
        waiting = pending, result, size
        calls = self._last_calls(queue) if covered else None
        if calls is not None:
            calls.append(waiting)
            self.soon(queue)
        elif queue in self._gathering and not self._closed:  # the usual case of `_add`
            self._gathering[queue].append(waiting)
        else:
            self._add(queue, waiting)
        if size:
            self.held_bytes += size

    def _last_calls(self, queue: Syncable) -> list[_Waiting] | None:
        """Return the calls of the last round under way that syncs a queue."""
        for round_ in reversed(self._rounds):
            calls = round_.calls.get(queue)
            if calls is not None:
                return calls
        return None

    def run(self, work: Callable[["HeldResult"], Coroutine[Any, Any, _T]]) -> "asyncio.Task[_T]":
        """Run a task that reports the size of its result."""
        held = HeldResult(self)
        task = self._loop.create_task(work(held))
        task.add_done_callback(held.let_go)
        return task

    def soon(self, queue: Syncable) -> None:
        """Sync a queue in the next round, without a waiting call."""
        self._add(queue, None)

    async def drained(self) -> None:
        """Wait until all earlier calls are answered."""
        while self._rounds or self._gathering:
            await self._idle.wait()

    async def close(self) -> None:
        """Answer all calls, then end the threads."""
        self._closed = True
        await self.drained()
        self._threads.close()

    def _add(self, queue: Syncable, waiting: _Waiting | None) -> None:
        if self._closed:
            raise LedgerClosed("the store is closed")
        calls = self._gathering.get(queue)
        if calls is None:
            calls = self._gathering[queue] = []
            self._idle.clear()
            self._plan()
        if waiting is not None:
            calls.append(waiting)

    def _plan(self) -> None:
        """Have the next round started, unless that is planned or too many are under way."""
        if self._next is not None:
            return
        if not self._rounds:
            # Not at once: calls that the loop handles now can share the round.
            self._next = self._loop.call_soon(self._start)
        elif len(self._rounds) < self._max_rounds:
            # Spread over the time of a round: the more calls share one, the fewer commits.
            passed_s = (self._clock.monotonic_ns() - self._rounds[-1].started_ns) / 1e9
            left_s = self._average_s / self._max_rounds - passed_s
            self._next = self._loop.call_later(max(left_s, 0.0), self._start)

    def _start(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        by_queue, self._gathering = self._gathering, {}
        round_ = _Round(by_queue, self._clock.monotonic_ns())
        self._rounds.append(round_)
        queues = list(by_queue)
        in_threads: Sequence[int] = range(len(queues))
        if self._committer is not None:
            few = len(queues) == 1 and 1 <= len(by_queue[queues[0]]) <= _FEW
            in_threads = self._committer.start(queues, partial(self._synced, round_), few=few)
        syncs = [(index, sync) for index in in_threads for sync in queues[index].syncs()]
        round_.left += len(syncs) - len(in_threads)
        for index, sync in syncs:
            self._threads.run(partial(_try_sync, sync), partial(self._synced, round_, index))

    def _synced(self, round_: _Round, index: int, error: Exception | None) -> None:
        round_.left -= 1
        round_.errors[index] = round_.errors[index] or error
        if not round_.left and self._rounds[0] is round_:
            self._finish()

    def _finish(self) -> None:
        """Answer the oldest rounds, as far as they have ended."""
        ended: list[_Round] = []
        while self._rounds and not self._rounds[0].left:
            ended.append(self._rounds.popleft())
        if not self._gathering:
            if not self._rounds:
                self._idle.set()
        elif not self._rounds:
            self._start()  # first: the next sync runs while these are answered
        else:
            self._plan()
        for round_ in ended:
            self._answer(round_)

    def _answer(self, round_: _Round) -> None:
        took_s = (self._clock.monotonic_ns() - round_.started_ns) / 1e9
        self._average_s += (took_s - self._average_s) / _AVERAGE_OF
        answered = list(round_.calls.values())
        self._observe(took_s, sum(map(len, answered)))
        for calls, error in zip(answered, round_.errors, strict=True):
            for pending, result, size in calls:
                if size:
                    self.held_bytes -= size
                try:
                    if error is None:
                        pending.succeed(result)
                    else:
                        pending.fail(_copy(error))
                except Exception as failure:  # the other calls must be answered
                    log.error("a call could not be answered", exc_info=failure)


class HeldResult:
    """The bytes of a task's result, counted until the task's callbacks are called."""

    def __init__(self, commits: CommitLoop) -> None:
        self._commits = commits
        self._size = 0

    def hold(self, size: int) -> None:
        self._size = size
        self._commits.held_bytes += size

    def let_go(self, _: Future[Any]) -> None:
        self._commits.held_bytes -= self._size


def _try_sync(sync: Callable[[], None]) -> Exception | None:
    try:
        sync()
    except Exception as error:
        return error
    return None


def _copy(error: Exception) -> Exception:
    """Return a copy of an error, so that each call gets a traceback of its own."""
    if not isinstance(error, PenstockError):
        return error
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
