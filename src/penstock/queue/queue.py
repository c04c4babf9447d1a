"""The embedded queues: a durable queue in a directory, for threads and for tasks.

Every method does its work on the core, then waits until the work is as durable as the sync policy
promises. `Embedded` has all that both share; each adds how it waits. Many tasks that wait for the
disk share one sync. What may take long (compaction, a message's history) leaves the event loop and
runs in a thread.
"""

import asyncio
from abc import abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, Unpack, cast

from penstock.checking import Duration
from penstock.clock import Clock
from penstock.codec import Draft
from penstock.errors import LedgerClosed, PenstockError
from penstock.ledger import Damage
from penstock.ledger.compaction import CompactionResult
from penstock.ledger.files import Files
from penstock.model import (
    MAIN_GROUP_NAME,
    NS,
    DeadLetter,
    HistoryEvent,
    LeasedMessage,
    Message,
    NewMessage,
    Payload,
    Published,
    PublishOptions,
    Settler,
    new_message,
)
from penstock.operations import AwaitEnding, GetStats, Leased, Operation, Runs, Sync
from penstock.queue.behaviours import (
    Behaviours,
    as_list,
    as_new,
    half_time_ns,
    several,
    wait_ns_of,
)
from penstock.queue.binding import SUSPENDED, finish
from penstock.queue.core import QueueCore
from penstock.queue.delivering import ONE
from penstock.queue.facade import (
    NO_MESSAGES,
    NO_WAIT,
    A,
    AnyAsyncQueue,
    AnyQueue,
    NoSettler,
    Progress,
    QueueMethods,
)
from penstock.queue.metrics import MetricsCollector, check_collector, measured
from penstock.queue.opening import open_core
from penstock.queue.operation_handlers import run
from penstock.queue.retry import RetryPolicy
from penstock.queue.settings import YEARS_S, QueueSettings
from penstock.queue.streaming import Stopper, is_stopped

__all__ = ["AsyncQueue", "Queue", "open_core", "open_queue"]

P = ParamSpec("P")
T = TypeVar("T")


def open_queue(
    path: str,
    settings: Mapping[str, object],
    *,
    read_only: bool = False,
    create: bool = True,
    files: Files | None = None,
    clock: Clock | None = None,
    on_damage: Callable[[Damage], None] | None = None,
    metrics: MetricsCollector | None = None,
    retry_policy: RetryPolicy | None = None,
) -> "Queue":
    """Open a queue's directory, or create one. Settings given here are stored with the queue."""
    check_collector(metrics)
    core = open_core(
        path,
        settings,
        read_only=read_only,
        create=create,
        files=files,
        clock=clock,
        on_damage=on_damage,
        retry_policy=retry_policy,
    )
    try:
        queue = Queue(core)
        return queue if metrics is None else measured(queue, metrics, core.clock)
    except BaseException:  # an interrupt
        core.close()
        raise


class Embedded(QueueMethods):
    """What the embedded queues share. `core` and `behaviours` are for Penstock and its tests."""

    def __init__(self, core: QueueCore, settler: Settler) -> None:
        self.core = core
        self.behaviours = Behaviours(core, settler)
        self._ledger = core.ledger
        self._streams: list[Callable[[], None]] = []  # of each open one: releases what it has left

    def __repr__(self) -> str:
        ledger = self._ledger
        state = ", closed" if ledger.is_closed else ", read-only" if ledger.read_only else ""
        return f"<{type(self).__name__} {ledger.path!r}{state}>"

    @property
    def path(self) -> str:
        return self._ledger.path

    @property
    def settings(self) -> QueueSettings:
        return self.core.settings

    def metrics(self) -> dict[str, object]:
        """Return counts and latency percentiles of this handle since it was opened."""
        return self.core.metrics.snapshot()

    # -- how a queue waits -------------------------------------------------------------------------

    @abstractmethod
    def _commit(self) -> Awaitable[None] | None:
        """Make what was written as durable as the sync policy promises; None: it is."""

    @abstractmethod
    async def _until(
        self, wait_s: Duration, attempt: Callable[[], list[T]], stopper: Stopper | None = None
    ) -> list[T]:
        """Try until something is found, the time is over or the stopper is stopped.

        Between attempts, wait for an arrival or for the next due time.
        """

    @abstractmethod
    async def _in_thread(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Do work that may take long."""

    async def _durable(self, result: T) -> T:
        """Return a result when it is as durable as the sync policy promises."""
        if (waiting := self._commit()) is not None:
            await waiting
        return result

    # -- primitives --------------------------------------------------------------------------------

    async def _publish(self, messages: list[NewMessage]) -> list[Published]:
        return await self._durable(self.behaviours.publishing.publish(messages))

    async def _publish_payloads(self, messages: list[Payload | NewMessage]) -> list[str]:
        if self.behaviours.all_plain(messages):
            plain: Any = messages
            return await self._durable(self.behaviours.publishing.publish_plain_batch(plain))
        return [published.id for published in await self._publish(as_new(messages))]

    async def _lease(
        self,
        n: int,
        lease_s: Duration | None,
        wait_s: Duration,
        group: str,
        holder: str,
        stopper: Stopper | None,
    ) -> list[LeasedMessage]:
        if stopper is not None and is_stopped(stopper):
            return []
        leased = await self._until(
            wait_s, lambda: self.behaviours.delivering.lease(n, lease_s, group, holder), stopper
        )
        return await self._durable_lease(leased)

    async def _durable_lease(self, leased: list[LeasedMessage]) -> list[LeasedMessage]:
        settling = self.behaviours.settling
        try:
            return await self._durable(leased)
        except asyncio.CancelledError:
            with suppress(PenstockError):  # the task is cancelled, even if the disk is full
                settling.give_back(leased)  # the caller will never see them
            raise

    async def _take(self, n: int, wait_s: Duration, group: str) -> list[Message]:
        taken = await self._until(wait_s, lambda: self.behaviours.delivering.take(n, group))
        return await self._durable(taken)

    async def _jobs(
        self,
        group: str,
        lease_s: Duration | None,
        idle_s: Duration | None,
        batch: int,
        stopper: Stopper | None,
    ) -> AsyncIterator[LeasedMessage]:
        wait_s = YEARS_S if idle_s is None else idle_s
        while not is_stopped(stopper):
            leased = await self._lease(batch, lease_s, wait_s, group, "", stopper)
            if not leased:
                return
            with self._one_by_one(leased, stopper) as jobs:
                for job in jobs:
                    yield job

    @contextmanager
    def _one_by_one(
        self, leased: list[LeasedMessage], stopper: Stopper | None
    ) -> Iterator[Iterator[LeasedMessage]]:
        """Hand on the messages of one lease. Release the others, also if the queue is closed.

        A message whose lease is half over is not handed on.
        """
        core, clock, left = self.core, self.core.clock, leased[::-1]
        half_ns = half_time_ns(leased[0], clock.now_ns())

        def jobs() -> Iterator[LeasedMessage]:
            while clock.now_ns() < half_ns and not is_stopped(stopper):
                try:
                    job = left.pop()
                except IndexError:  # handed on, or released by another thread
                    return
                yield job

        def give_back() -> None:
            with core.lock, core.change:
                ahead = left[:]
                left.clear()
                if ahead and not self._ledger.is_stopped:
                    self.behaviours.settling.give_back(ahead)

        core.before_close.append(give_back)
        self._streams.append(give_back)
        try:
            self._ledger.check_open()
            yield jobs()
        finally:
            core.before_close.remove(give_back)
            self._streams.remove(give_back)
            if left:
                give_back()

    async def _ack(self, leased: Leased | Iterable[Leased], emit: list[NewMessage]) -> list[str]:
        return await self._durable(self.behaviours.settling.ack(several(leased), emit))

    def _browse(self, state: str | None, group: str) -> AsyncIterator[Message]:
        return _rows(self.behaviours.inspecting.browse(state, group))

    async def _history(self, id: str, group: str | None) -> list[HistoryEvent]:
        return await self._in_thread(self.behaviours.inspecting.history, id, group)

    async def _dead(self, group: str) -> AsyncIterator[DeadLetter]:
        await self._run(GetStats())  # expires what is due, durably
        for letter in self.behaviours.inspecting.dead(group):
            yield letter

    async def _lease_dead(
        self, n: int, lease_s: Duration | None, group: str, holder: str
    ) -> list[LeasedMessage]:
        return await self._durable(self.behaviours.delivering.lease_dead(n, lease_s, group, holder))

    async def _compact(self, on_progress: Progress) -> CompactionResult:
        return await self._in_thread(self.behaviours.core.compacting.compact, on_progress)

    async def _run(self, operation: Operation[A]) -> A:
        events = self._ledger.events
        before = events.next_seq
        if operation.runs is Runs.LOOP and not isinstance(operation, Sync):
            answer = run(self.behaviours, operation)
        else:
            answer = await self._in_thread(run, self.behaviours, operation)
        has_changed = events.next_seq != before  # leases may have expired
        if operation.writes or operation.is_durable or has_changed:
            return await self._durable(answer)
        return answer

    async def _wait_ended(self, id: str, wait_s: float) -> bool:
        asked = AwaitEnding(id)
        ended = await self._until(wait_s, lambda: [True] if run(self.behaviours, asked) else [])
        return bool(await self._durable(ended))

    async def _close(self) -> None:
        await self._in_thread(self.core.close)


async def _rows(found: Iterator[T]) -> AsyncIterator[T]:
    for row in found:
        yield row


def _waking(stopper: Stopper | None, wake: Callable[[], None]) -> AbstractContextManager[None]:
    return nullcontext() if stopper is None else stopper.waking(wake)


class Queue(Embedded, AnyQueue):
    """A durable queue in a directory. Thread-safe; a context manager that closes it.

    >>> import penstock, tempfile
    >>> with penstock.open(tempfile.mkdtemp()) as queue:
    ...     id = queue.enqueue(b"hello")
    ...     with queue.lease_one() as job:
    ...         print(job.payload.decode())
    hello
    """

    def __init__(self, core: QueueCore, settler: Settler | None = None) -> None:
        """`settler` settles leased messages that are used in a `with`; None: this queue."""
        super().__init__(core, settler or self)
        self._max_plain_bytes = self.behaviours.max_plain_bytes
        publishing = self.behaviours.publishing
        self._publish_plain = publishing.publish_plain
        self._publish_once = publishing.publish_once
        self._drafts = publishing.drafts
        fast_path = self.behaviours.fast_path
        self._take_plain, self._lease_plain = fast_path.take, fast_path.lease
        self._ack_plain = fast_path.ack
        self._commits = core.settings.storage.sync == "always"

    def for_tasks(self) -> "AsyncQueue":
        return AsyncQueue(self.core, is_view=True)

    # -- fast path ---------------------------------------------------------------------------------

    def _fast_enqueue(self, payload: Payload, **options: Unpack[PublishOptions]) -> str:
        if not options and type(payload) is bytes and len(payload) <= self._max_plain_bytes:
            publish = self._publish_plain  # a local: callables in attributes are slow to call
            id_ = publish(payload)
            if self._commits:
                self._ledger.commit()
            return id_
        if self._drafts is not None:
            draft = self._drafts.of_options(payload, options)
            if draft is not None:
                publish_once, publish = self._publish_once, self._publish_plain
                has_dedup_id = "dedup_id" in options and options["dedup_id"] is not None
                made = publish_once(draft) if has_dedup_id else publish(draft)
                if made is not None:
                    if self._commits:
                        self._ledger.commit()
                    return made
        message = new_message(payload, options)
        try:  # `finish` in line, which is 1 µs faster; no interrupt fits between call and `send`
            self._publish_one(message).send(None)
        except StopIteration as end:
            published: Published = end.value
            return published.id
        raise RuntimeError(SUSPENDED)

    def _fast_enqueue_batch(self, messages: Iterable[Payload | NewMessage]) -> list[str]:
        listed: Any = as_list(messages)
        if not self.behaviours.all_plain(listed):
            return finish(self._publish_payloads, listed)
        ids = self.behaviours.publishing.publish_plain_batch(listed)
        if self._commits:
            self._ledger.commit()
        return ids

    def _fast_lease(
        self,
        n: int = 1,
        lease_s: Duration | None = None,
        wait_s: Duration = NO_WAIT,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
        stopper: Stopper | None = None,
    ) -> list[LeasedMessage]:
        if wait_s is not NO_WAIT:
            wait_ns_of(wait_s)  # checks it, also if nothing has to wait
        if n is ONE and lease_s is None and holder == "" and stopper is None:
            lease = self._lease_plain
            leased = lease(group)
            if leased is not None:
                if self._commits:
                    self._ledger.commit()
                return [leased]
        if wait_s is not NO_WAIT or stopper is not None:
            return finish(self._lease, n, lease_s, wait_s, group, holder, stopper)
        several_leased = self.behaviours.delivering.lease(n, lease_s, group, holder)
        if self._commits:
            self._ledger.commit()
        return several_leased

    def _fast_dequeue(
        self, wait_s: Duration = NO_WAIT, group: str = MAIN_GROUP_NAME
    ) -> Message | None:
        if wait_s is not NO_WAIT:
            wait_ns_of(wait_s)
        if group is MAIN_GROUP_NAME:
            take = self._take_plain
            message = take()
            if message is not None:
                if self._commits:
                    self._ledger.commit()
                return message
        taken = finish(self._take, 1, wait_s, group)
        return taken[0] if taken else None

    def _fast_dequeue_batch(
        self, n: int, wait_s: Duration = NO_WAIT, group: str = MAIN_GROUP_NAME
    ) -> list[Message]:
        if wait_s is not NO_WAIT:
            return finish(self._take, n, wait_s, group)
        taken = self.behaviours.delivering.take(n, group)
        if self._commits:
            self._ledger.commit()
        return taken

    def _fast_ack(
        self,
        leased: Leased | Iterable[Leased],
        *,
        emit: Sequence[Payload | NewMessage] = NO_MESSAGES,
    ) -> list[str]:
        ack = self._ack_plain
        if type(leased) is LeasedMessage and emit is NO_MESSAGES and ack(leased):
            if self._commits:
                self._ledger.commit()
            return []
        ids = self.behaviours.settling.ack(several(leased), as_new(emit))
        if self._commits:
            self._ledger.commit()
        return ids

    # -- how it waits ------------------------------------------------------------------------------

    def _commit(self) -> None:
        if self._commits:
            self._ledger.commit()

    async def _until(
        self, wait_s: Duration, attempt: Callable[[], list[T]], stopper: Stopper | None = None
    ) -> list[T]:
        core, wait_ns = self.core, wait_ns_of(wait_s)
        if not wait_ns:
            return attempt()
        waking = _waking(stopper, core.arrived)
        with waking, core.lock, core.change, core.expecting():
            ends_ns = core.clock.monotonic_ns() + wait_ns
            while not (found := attempt()):
                left_ns = ends_ns - core.clock.monotonic_ns()
                if left_ns <= 0 or is_stopped(stopper):
                    break
                core.wait(left_ns)
                self._ledger.check_open()
        return found

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return work(*args, **options)


class _ClosedBehaviours:
    """The behaviours of a view after it was closed."""

    def __getattr__(self, name: str) -> Any:
        raise LedgerClosed("this queue for tasks was closed; call for_tasks() again")


class AsyncQueue(Embedded, AnyAsyncQueue):
    """A durable queue in a directory, for tasks. `async with` closes it.

    If it `is_view`, `close` releases what its streams leased ahead, and leaves the core open.
    """

    def __init__(self, core: QueueCore, *, is_view: bool = False) -> None:
        super().__init__(core, NoSettler())
        self._is_view = is_view

    async def _fast_enqueue(self, payload: Payload, **options: Unpack[PublishOptions]) -> str:
        behaviours = self.behaviours
        publishing = behaviours.publishing
        item: bytes | Draft | None = None
        if not options and type(payload) is bytes and len(payload) <= behaviours.max_plain_bytes:
            item = payload
        elif publishing.drafts is not None:
            item = publishing.drafts.of_options(payload, options)
        id_ = None
        if isinstance(item, Draft) and options.get("dedup_id") is not None:
            id_ = publishing.publish_once(item)
        elif item is not None:
            id_ = publishing.publish_plain(item)
        if id_ is not None:
            waiting = self._ledger.commit_async()
            if waiting is not None:
                await waiting
            return id_
        return (await self._publish_one(new_message(payload, options))).id

    async def _publish(self, messages: list[NewMessage]) -> list[Published]:
        publishing = self.behaviours.publishing
        if self.settings.when_full != "block":
            return await self._durable(publishing.publish(messages))
        published = await self._until(
            self.settings.block_s, lambda: publishing.try_publish(messages)
        )
        if not published:
            published = publishing.publish(messages, block_s=0)  # raises QueueFull
        return await self._durable(published)

    async def _lease(
        self,
        n: int,
        lease_s: Duration | None,
        wait_s: Duration,
        group: str,
        holder: str,
        stopper: Stopper | None,
    ) -> list[LeasedMessage]:
        is_plain = n is ONE and lease_s is None and group is MAIN_GROUP_NAME
        if is_plain and holder == "" and stopper is None:
            wait_ns_of(wait_s)  # checks it, also if nothing has to wait
            leased = self.behaviours.fast_path.lease()
            if leased is not None:
                return await self._durable_lease([leased])
        return await super()._lease(n, lease_s, wait_s, group, holder, stopper)

    async def _take(self, n: int, wait_s: Duration, group: str) -> list[Message]:
        if n is ONE and group is MAIN_GROUP_NAME:
            wait_ns_of(wait_s)
            message = self.behaviours.fast_path.take()
            if message is not None:
                return await self._durable([message])
        return await super()._take(n, wait_s, group)

    async def _ack(self, leased: Leased | Iterable[Leased], emit: list[NewMessage]) -> list[str]:
        if type(leased) is LeasedMessage and not emit and self.behaviours.fast_path.ack(leased):
            return await self._durable([])
        return await super()._ack(leased, emit)

    async def _compact(self, on_progress: Progress) -> CompactionResult:
        report = None
        if on_progress is not None:
            loop, tell = asyncio.get_running_loop(), on_progress

            def report(so_far: CompactionResult) -> None:
                loop.call_soon_threadsafe(tell, replace(so_far))

        return await super()._compact(report)

    async def _close(self) -> None:
        if not self._is_view:
            return await super()._close()
        for give_back in tuple(self._streams):
            give_back()
        self.behaviours = cast(Behaviours, _ClosedBehaviours())
        self.core.arrived()  # tasks that wait look again, and raise
        if not self._ledger.is_closed:
            await self._durable(None)

    # -- how it waits ------------------------------------------------------------------------------

    def _commit(self) -> Awaitable[None] | None:
        return self._ledger.commit_async()

    async def _until(
        self, wait_s: Duration, attempt: Callable[[], list[T]], stopper: Stopper | None = None
    ) -> list[T]:
        core, wait_ns = self.core, wait_ns_of(wait_s)
        if not wait_ns:
            return attempt()
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed before its tasks ended
                loop.call_soon_threadsafe(woken.set)

        core.listeners.append(wake)  # before the first attempt: see QueueCore.expecting
        try:
            with _waking(stopper, wake):
                return await self._attempts(wait_ns, attempt, woken, stopper)
        finally:
            core.listeners.remove(wake)

    async def _attempts(
        self,
        wait_ns: int,
        attempt: Callable[[], list[T]],
        woken: asyncio.Event,
        stopper: Stopper | None,
    ) -> list[T]:
        core = self.core
        ends_ns = core.clock.monotonic_ns() + wait_ns
        while True:
            woken.clear()
            with core.lock, core.change:
                found = attempt()
                wake_ns = core.next_wake_ns()
            left_ns = ends_ns - core.clock.monotonic_ns()
            if found or left_ns <= 0 or is_stopped(stopper):
                return found
            timeout_ns = left_ns if wake_ns is None else min(left_ns, wake_ns)
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_ns / NS):
                    await woken.wait()
            self._ledger.check_open()

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return await asyncio.to_thread(work, *args, **options)
