"""The public methods of every queue: embedded or of a broker, for threads or for tasks.

Each is defined once, in `QueueMethods`. `AnyQueue` has them for threads, `AnyAsyncQueue` for tasks;
see `binding.py`. A kind of queue implements the primitives (`_publish`, `_lease`, …), which take
checked arguments by position.

Most methods run one operation and are one line: the operation's fields are the method's
parameters, its docstring is the method's.

    seek = runs(Seek)        # AnyQueue.seek(to=None, *, seq=None, ...) -> int
                             # AnyAsyncQueue.seek(to=None, *, seq=None, ...) -> Coroutine[..., int]
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from penstock.checking import Duration, check_seconds, check_whole
from penstock.codec import parse_id
from penstock.errors import InvalidInput, PenstockError, ReceiptInvalid
from penstock.ledger.compaction import CompactionResult
from penstock.model import (
    MAIN_GROUP_NAME,
    DeadLetter,
    HistoryEvent,
    LeasedMessage,
    Message,
    NewMessage,
    Payload,
    Published,
    PublishOptions,
    new_message,
)
from penstock.names import check_name
from penstock.operations import (
    Browse,
    Cancel,
    CreateGroup,
    DeleteGroup,
    Discard,
    ExplainWait,
    Extend,
    FindMessage,
    GetLimits,
    GetMessage,
    GetRetryInfo,
    GetSchedule,
    GetStats,
    GetStorage,
    Leased,
    ListConsumers,
    ListDead,
    ListDeadReasons,
    ListGroups,
    ListHistory,
    ListKeys,
    ListSchedules,
    Nack,
    Operation,
    Pause,
    PauseSchedule,
    Peek,
    PreviewSeek,
    Purge,
    PutSchedule,
    Redrive,
    Release,
    RemoveSchedule,
    Resume,
    ResumeSchedule,
    Row,
    Schedules,
    ScheduleState,
    Seek,
    Sync,
    check_operation,
)
from penstock.queue.behaviours import as_list, as_new
from penstock.queue.binding import (
    ForTasks,
    ForThreads,
    block,
    finish,
    listing,
    method,
    runs,
    runs_for,
    value_of,
)
from penstock.queue.delivering import MAX_LEASE_COUNT, check_lease_s
from penstock.queue.handlers import check_done, check_handler, check_plain_handler, done
from penstock.queue.settings import YEARS_S
from penstock.queue.streaming import Handler, Stopper, StreamMethod, is_stopped

log = logging.getLogger("penstock.queue")

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")

# Sentinels: `is` is faster than `==`, and excludes other empty values.
NO_WAIT = 0.0
NO_MESSAGES: tuple[NewMessage, ...] = ()
Progress = Callable[[CompactionResult], None] | None


# -- operations of methods whose parameters or results differ --------------------------------------


def _get(id: str) -> GetMessage:
    """Return a message by its id, done or not, as long as its bytes are kept."""
    return GetMessage(id)


def _get_state(id: str, *, group: str = MAIN_GROUP_NAME) -> GetMessage:
    """Return a message's state: ready, scheduled, leased, parked, blocked, dead, expired
    or done."""
    return GetMessage(id, group=group)


def _find(dedup_id: str) -> FindMessage:
    """Return the id of the message that was published under a dedup id, or None.

    A queue remembers a dedup id for the window that it was published with.
    """
    return FindMessage(dedup_id)


def _id(found: str) -> str | None:
    return found or None


def _messages(rows: list[Row]) -> list[Message]:
    return [row.message for row in rows]


def _message(row: Row) -> Message:
    return row.message


def _state(row: Row) -> str:
    return row.state


def _schedules(answer: Schedules) -> list[ScheduleState]:
    return answer.schedules


def _nothing(answer: object) -> None:
    return None


# -- the definition --------------------------------------------------------------------------------


class QueueMethods(ABC):
    """The methods of every queue."""

    # -- publishing --------------------------------------------------------------------------------

    @method
    async def enqueue(self, payload: Payload, **options: Unpack[PublishOptions]) -> str:
        """Publish a message and return its id; for a duplicate, the id of the first.

        Options are those of `NewMessage`, by name: priority, delay, deliver_at, ttl, headers, key,
        dedup_id, dedup_window_s, max_attempts, content_type, compression,
        after, after_failed, tenant.
        """
        return (await self._publish_one(new_message(payload, options))).id

    @method
    async def enqueue_batch(self, messages: Iterable[Payload | NewMessage]) -> list[str]:
        """Publish several messages, all or none, and return their ids in the same order."""
        return await self._publish_payloads(as_list(messages))

    @method
    async def publish(self, messages: Iterable[NewMessage]) -> list[Published]:
        """Publish as `enqueue_batch`, and return which messages were duplicates."""
        return await self._publish(as_list(messages))

    # -- delivering --------------------------------------------------------------------------------

    @method
    async def lease(
        self,
        n: int = 1,
        lease_s: Duration | None = None,
        wait_s: Duration = NO_WAIT,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
        stopper: Stopper | None = None,
    ) -> list[LeasedMessage]:
        """Lease up to `n` messages, each to be settled before its deadline; wait for the first.

        `stopper.stop()` ends the wait: at once in a directory, within two seconds at a broker. If
        the stopper is stopped already, nothing is leased.
        """
        return await self._lease(n, lease_s, wait_s, group, holder, stopper)

    @block
    @asynccontextmanager
    async def lease_one(
        self,
        *,
        lease_s: Duration | None = None,
        wait_s: Duration = NO_WAIT,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
    ) -> AsyncIterator[LeasedMessage | None]:
        """Lease one message for a `with` block: acked at its end, nacked if the block raises.

        None if there is no message. In a queue for tasks, write `async with`.
        """
        options: Any = {"lease_s": lease_s, "wait_s": wait_s, "group": group, "holder": holder}
        leased = await value_of(self.lease(1, **options))
        if not leased:
            yield None
            return
        async with self._settled(leased[0]):
            yield leased[0]

    @method
    async def dequeue(
        self, wait_s: Duration = NO_WAIT, group: str = MAIN_GROUP_NAME
    ) -> Message | None:
        """Lease and ack the next message and return it; None if there is none."""
        taken = await self._take(1, wait_s, group)
        return taken[0] if taken else None

    @method
    async def dequeue_batch(
        self, n: int, wait_s: Duration = NO_WAIT, group: str = MAIN_GROUP_NAME
    ) -> list[Message]:
        """Lease and ack up to `n` messages and return them."""
        return await self._take(n, wait_s, group)

    @StreamMethod
    def stream(
        self,
        handler: Handler | None = None,
        *,
        group: str = MAIN_GROUP_NAME,
        lease_s: Duration | None = None,
        idle_s: Duration | None = None,
        batch: int = 32,
        stopper: Stopper | None = None,
    ) -> Any:
        """Lease messages as they come, until none came for `idle_s` or `stopper.stop()`.

        With a handler, call it for each message, ack if it returns and nack if it raises. Return
        the number of successes (in a queue for tasks, an awaitable of it). Without a handler,
        return an iterator: settle each message, best by `with job:`.
        """
        if handler is not None:
            self._check_handler(handler)
        is_stopped(stopper)  # checks its type
        check_whole("batch", batch, 1, MAX_LEASE_COUNT)
        check_name("group", group)
        if lease_s is not None:
            check_lease_s(lease_s)
        if idle_s is not None:
            check_seconds("idle_s", idle_s, 0, YEARS_S)
        jobs = self._jobs(group, lease_s, idle_s, batch, stopper)
        return jobs if handler is None else self._handle(jobs, handler)

    async def _handle(self, jobs: AsyncIterator[LeasedMessage], handler: Handler) -> int:
        succeeded = 0
        async for job in jobs:
            try:
                async with self._settled(job):
                    await self._finish(handler(job))
                succeeded += 1
            except ReceiptInvalid:
                log.warning("message %s was settled elsewhere while it was handled", job.id)
            except Exception as error:
                log.error("handling message %s failed; it was nacked", job.id, exc_info=error)
        return succeeded

    @asynccontextmanager
    async def _settled(self, job: LeasedMessage) -> AsyncIterator[None]:
        """Ack at the end of the block, nack if it raises."""
        try:
            yield
        except BaseException as error:
            try:
                await value_of(self.nack(job, f"{type(error).__name__}: {error}"))
            except PenstockError:
                if isinstance(error, Exception):
                    raise  # an interrupt or a cancellation is raised as it is
            raise
        await value_of(self.ack(job))

    # -- settling ----------------------------------------------------------------------------------

    @method
    async def ack(
        self,
        leased: Leased | Iterable[Leased],
        *,
        emit: Sequence[Payload | NewMessage] = NO_MESSAGES,
    ) -> list[str]:
        """Mark messages as done. `emit` publishes follow-up messages in the same write.

        Return the ids of the emitted messages.
        """
        return await self._ack(leased, as_new(emit))

    nack = runs(Nack)
    extend = runs(Extend)
    release = runs(Release)

    # -- looking -----------------------------------------------------------------------------------

    @listing
    def browse(
        self, state: str | None = None, *, group: str = MAIN_GROUP_NAME
    ) -> AsyncIterator[Message]:
        """Return messages by state, without consuming them; by default all that are not done."""
        Browse(state, group=group)  # checks them
        return self._browse(state, group)

    @method
    async def history(self, id: str, *, group: str | None = None) -> list[HistoryEvent]:
        """Return everything that happened to a message."""
        ListHistory(id, group=group)
        return await self._history(id, group)

    @method
    async def wait_ended(self, id: str, wait_s: Duration = YEARS_S) -> bool:
        """Wait until a message is done, a dead letter or removed in group `main`.

        Return False if it is not after `wait_s`. The wait is on an event: nothing is polled.
        """
        parse_id(id)
        return await self._wait_ended(id, check_seconds("wait_s", wait_s, 0, YEARS_S))

    peek = runs_for(Peek, _messages)
    get = runs_for(_get, _message)
    state = runs_for(_get_state, _state)
    find = runs_for(_find, _id)
    why = runs(ExplainWait)
    retry_info = runs(GetRetryInfo)
    stats = runs(GetStats)

    # -- operating ---------------------------------------------------------------------------------

    @listing
    def dead(self, *, group: str = MAIN_GROUP_NAME) -> AsyncIterator[DeadLetter]:
        """Return the dead letters, oldest first, with their reasons in headers `dlq.…`."""
        ListDead(group=group)
        return self._dead(group)

    @method
    async def lease_dead(
        self,
        n: int = 1,
        *,
        lease_s: Duration | None = None,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
    ) -> list[LeasedMessage]:
        """Lease dead letters, oldest first. An ack removes them; anything else leaves them dead."""
        return await self._lease_dead(n, lease_s, group, holder)

    @method
    async def compact(self, *, on_progress: Progress = None) -> CompactionResult:
        """Free disk space that no group and no retention setting needs.

        `on_progress` is called with the result so far; a broker reports it once, at the end.
        """
        if on_progress is not None and not callable(on_progress):
            raise InvalidInput(f"on_progress is {on_progress!r}; it must be a function")
        return await self._compact(on_progress)

    seek = runs(Seek)
    cancel = runs(Cancel)
    purge = runs(Purge)
    pause = runs(Pause)
    resume = runs(Resume)
    redrive = runs(Redrive)
    discard = runs(Discard)
    consumers = runs(ListConsumers)
    key_backlogs = runs(ListKeys)
    dead_reasons = runs(ListDeadReasons)
    preview_seek = runs(PreviewSeek)
    storage = runs(GetStorage)
    limits = runs(GetLimits)
    sync = runs(Sync)

    # -- schedules ---------------------------------------------------------------------------------

    put_schedule = runs(PutSchedule)
    remove_schedule = runs(RemoveSchedule)
    pause_schedule = runs(PauseSchedule)
    resume_schedule = runs(ResumeSchedule)
    schedule = runs(GetSchedule)
    schedules = runs_for(ListSchedules, _schedules)

    @method
    async def close(self) -> None:
        """Release what open streams leased ahead, and close the queue. May be called again.

        A directory is synced, a snapshot is saved, and its lock is released.
        """
        await self._close()

    # -- primitives --------------------------------------------------------------------------------

    @abstractmethod
    async def _publish(self, messages: list[NewMessage]) -> list[Published]: ...

    async def _publish_one(self, message: NewMessage) -> Published:
        return (await self._publish([message]))[0]

    async def _publish_payloads(self, messages: list[Payload | NewMessage]) -> list[str]:
        return [published.id for published in await self._publish(as_new(messages))]

    @abstractmethod
    async def _lease(
        self,
        n: int,
        lease_s: Duration | None,
        wait_s: Duration,
        group: str,
        holder: str,
        stopper: Stopper | None,
    ) -> list[LeasedMessage]: ...

    @abstractmethod
    async def _take(self, n: int, wait_s: Duration, group: str) -> list[Message]: ...

    @abstractmethod
    def _jobs(
        self,
        group: str,
        lease_s: Duration | None,
        idle_s: Duration | None,
        batch: int,
        stopper: Stopper | None,
    ) -> AsyncIterator[LeasedMessage]: ...

    @abstractmethod
    async def _ack(
        self, leased: Leased | Iterable[Leased], emit: list[NewMessage]
    ) -> list[str]: ...

    @abstractmethod
    def _browse(self, state: str | None, group: str) -> AsyncIterator[Message]: ...

    @abstractmethod
    async def _history(self, id: str, group: str | None) -> list[HistoryEvent]: ...

    @abstractmethod
    def _dead(self, group: str) -> AsyncIterator[DeadLetter]: ...

    @abstractmethod
    async def _lease_dead(
        self, n: int, lease_s: Duration | None, group: str, holder: str
    ) -> list[LeasedMessage]: ...

    @abstractmethod
    async def _compact(self, on_progress: Progress) -> CompactionResult: ...

    @abstractmethod
    async def _run(self, operation: Operation[A]) -> A: ...

    @abstractmethod
    async def _wait_ended(self, id: str, wait_s: float) -> bool: ...

    @abstractmethod
    async def _close(self) -> None: ...

    @abstractmethod
    def _check_handler(self, handler: object) -> None:
        """Raise InvalidInput if a stream cannot call this handler."""

    @abstractmethod
    async def _finish(self, result: object) -> None:
        """Complete the call of a handler that returned `result`."""

    @abstractmethod
    def metrics(self) -> dict[str, object]:
        """Return counts and latency percentiles of this handle since it was opened."""


class AnyQueue(QueueMethods, ForThreads):
    """Any queue for threads: the embedded `Queue`, or the `RemoteQueue` of a broker.

    Thread-safe; a context manager that closes it.
    """

    @property
    def groups(self) -> "Groups":
        return Groups(self)

    def run(self, operation: Operation[A]) -> A:
        """Run an operation of `penstock.operations` and return its answer.

        Raise InvalidInput for those of brokers: Browse, ListDead, ListHistory, ReleaseHolder and
        CancelDeliverable. A queue has methods for them.
        """
        check_operation(operation)
        return finish(self._run, operation)

    @abstractmethod
    def for_tasks(self) -> "AnyAsyncQueue":
        """Return the same queue for asyncio.

        Closing it leaves this queue open; closing this queue closes it, too.
        """

    def _check_handler(self, handler: object) -> None:
        check_plain_handler(handler)

    async def _finish(self, result: object) -> None:
        check_done(result)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class AnyAsyncQueue(QueueMethods, ForTasks):
    """Any queue for tasks: the embedded `AsyncQueue`, or the `AsyncRemoteQueue` of a broker.

    `async with` closes it.
    """

    @property
    def groups(self) -> "AsyncGroups":
        return AsyncGroups(self)

    async def run(self, operation: Operation[A]) -> A:
        """Run an operation of `penstock.operations` and return its answer; see `AnyQueue.run`."""
        check_operation(operation)
        return await self._run(operation)

    def _check_handler(self, handler: object) -> None:
        check_handler(handler)

    async def _finish(self, result: object) -> None:
        await done(result)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


class NoSettler:
    """A leased message of a queue for tasks cannot settle itself in a plain `with`."""

    def ack(self, leased: LeasedMessage, /) -> None:
        raise TypeError("use `async with queue.lease_one()`, or `await queue.ack(job)`")

    def nack(self, leased: LeasedMessage, /, reason: str = "") -> None:
        raise TypeError("use `async with queue.lease_one()`, or `await queue.nack(job)`")


# -- groups ----------------------------------------------------------------------------------------


class _GroupMethods:
    create = runs_for(CreateGroup, _nothing)
    delete = runs(DeleteGroup)

    def __init__(self, queue: QueueMethods) -> None:
        self._queue = queue

    async def _run(self, operation: Operation[A]) -> A:
        return await self._queue._run(operation)


class Groups(_GroupMethods, ForThreads):
    """The consumer groups of a queue: independent readers with their own position, leases and
    dead letters. Iterate over their names; `"audit" in queue.groups` asks for one."""

    def _names(self) -> list[str]:
        return finish(self._run, ListGroups())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __len__(self) -> int:
        return len(self._names())


class AsyncGroups(_GroupMethods, ForTasks):
    """The consumer groups of a queue, for tasks."""

    names = runs(ListGroups)
