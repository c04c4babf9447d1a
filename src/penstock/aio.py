"""The queue for asyncio: the same methods, awaitable, over the same core.

    queue = await penstock.aio.open("./orders")
    async with queue:
        await queue.enqueue(b"hello")

Many tasks that wait for the disk share one sync. What may take long (opening, compaction, reading a
message's history) runs in a thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, TypeVar, Unpack, cast

from penstock.checking import Duration, path_of
from penstock.errors import InvalidInput, PenstockError
from penstock.ledger.compaction import CompactionResult
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
    new_message,
)
from penstock.operations import Leased, Operation, Runs, Sync
from penstock.queue.behaviours import as_list, as_new, several, wait_ns_of
from penstock.queue.core import QueueCore
from penstock.queue.facade import A, AsyncGroups, Awaiting, QueueMethods
from penstock.queue.handle import Handle
from penstock.queue.measuring import MetricsCollector, check_collector, measured
from penstock.queue.opening import open_core
from penstock.queue.operation_handlers import run
from penstock.queue.retry import RetryPolicy
from penstock.queue.settings import YEARS_S
from penstock.queue.streaming import AsyncStreaming, Stopper, is_stopped

if TYPE_CHECKING:
    from penstock.client import OpenOptions

_T = TypeVar("_T")


async def open(  # noqa: A001
    path: str | PathLike[str],
    *,
    read_only: bool = False,
    metrics: MetricsCollector | None = None,
    retry_policy: RetryPolicy | None = None,
    **settings: Unpack["OpenOptions"],
) -> "AsyncQueue":
    """Open the queue in a directory, or make one there, or that at a URL; see `penstock.open`."""
    if isinstance(path, str) and path.startswith(("http://", "https://")):
        from penstock.client import connect_async, options_of  # needs the extra `client`

        if read_only:
            raise InvalidInput("read_only is for directories: a key says what a client may do")
        if retry_policy is not None:
            raise InvalidInput("retry_policy is for directories: a broker retries by its settings")
        queue = settings.pop("queue", None)
        return cast(
            AsyncQueue,
            connect_async(path, queue=queue, options=options_of(settings), metrics=metrics),
        )
    check_collector(metrics)
    if read_only and settings:
        raise InvalidInput(
            f"read_only changes nothing, so that {', '.join(settings)} would not be stored: give "
            f"settings to the writer"
        )
    opened = partial(
        open_core,
        path_of(path),
        settings,
        read_only=read_only,
        create=not read_only,
        retry_policy=retry_policy,
    )
    opening = asyncio.get_running_loop().run_in_executor(None, opened)
    try:
        core = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unseen)  # the thread goes on, and takes the lock
        raise
    face = AsyncQueue(core)
    return face if metrics is None else measured(face, metrics, core.clock)


def _close_unseen(opening: "asyncio.Future[QueueCore]") -> None:
    """Close a queue whose opening nobody waits for any more."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class AsyncQueue(Handle, QueueMethods, AsyncStreaming, Awaiting):
    """A durable queue in a directory, for tasks. `async with` closes it."""

    def __init__(self, core: QueueCore) -> None:
        super().__init__(core, _NoSettler())
        self.groups = AsyncGroups(self)

    async def _durable(self, result: _T) -> _T:
        """The result, when it is as durable as the sync policy promises."""
        waiting = self._ledger.commit_async()
        if waiting is not None:
            await waiting
        return result

    # -- publishing --------------------------------------------------------------------------------

    async def enqueue(self, payload: Payload, **options: Unpack[PublishOptions]) -> str:
        """Publish a message; its id. A duplicate's answer is the id of the first.

        Options are those of `NewMessage`, by name: priority, delay, deliver_at, ttl, headers, key,
        dedup_id, dedup_window_s, max_attempts, content_type, compression.
        """
        if (
            not options
            and type(payload) is bytes
            and len(payload) <= self._behaviours.max_plain_bytes
        ):
            id_ = self._behaviours.publishing.publish_plain(payload)
            waiting = self._ledger.commit_async()
            if waiting is not None:
                await waiting
            return id_
        message = new_message(payload, options)
        return (await self.publish([message]))[0].id

    async def enqueue_batch(self, messages: Iterable[Payload | NewMessage]) -> list[str]:
        """Publish several messages, all or none; their ids in the same order."""
        messages = as_list(messages)
        if self._behaviours.all_plain(messages):
            return await self._durable(
                self._behaviours.publishing.publish_plain_batch(messages)  # type: ignore[arg-type]
            )
        return [published.id for published in await self.publish(as_new(messages))]

    async def publish(self, messages: Iterable[NewMessage]) -> list[Published]:
        """As `enqueue_batch`, and says which messages were duplicates."""
        messages = as_list(messages)
        publishing = self._behaviours.publishing
        if self.settings.when_full != "block":
            return await self._durable(publishing.publish(messages))
        published = await self._until(
            self.settings.block_s, lambda: publishing.try_publish(messages)
        )
        if not published:
            published = publishing.publish(messages, block_s=0)  # says that the queue is full
        return await self._durable(published)

    # -- delivering --------------------------------------------------------------------------------

    async def lease(
        self,
        n: int = 1,
        lease_s: Duration | None = None,
        wait_s: Duration = 0.0,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
        stopper: Stopper | None = None,
    ) -> list[LeasedMessage]:
        """Up to `n` messages, each to be settled before its deadline; waits for the first.

        `stopper.stop()` ends the wait; with one that is stopped already, nothing is leased.
        """
        if stopper is not None and is_stopped(stopper):
            return []
        leased = await self._until(
            wait_s, lambda: self._behaviours.delivering.lease(n, lease_s, group, holder), stopper
        )
        try:
            return await self._durable(leased)
        except asyncio.CancelledError:
            with suppress(PenstockError):  # a cancelled task ends as one, also on a full disk
                self._behaviours.settling.give_back(leased)  # the caller will never see them
            raise

    @asynccontextmanager
    async def lease_one(
        self,
        *,
        lease_s: Duration | None = None,
        wait_s: Duration = 0.0,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
    ) -> AsyncIterator[LeasedMessage | None]:
        """One message for the length of an `async with` block: acked at its end, nacked if it
        raises. None if there was no message."""
        leased = await self.lease(1, lease_s=lease_s, wait_s=wait_s, group=group, holder=holder)
        if not leased:
            yield None
            return
        async with self._settled(leased[0]):
            yield leased[0]

    async def dequeue(self, wait_s: Duration = 0.0, group: str = MAIN_GROUP_NAME) -> Message | None:
        """Take the next message for good, without a lease; None if there is none."""
        taken = await self.dequeue_batch(1, wait_s=wait_s, group=group)
        return taken[0] if taken else None

    async def dequeue_batch(
        self, n: int, wait_s: Duration = 0.0, group: str = MAIN_GROUP_NAME
    ) -> list[Message]:
        """Take up to `n` messages for good."""
        taken = await self._until(wait_s, lambda: self._behaviours.delivering.take(n, group))
        return await self._durable(taken)

    async def _until(
        self, wait_s: Duration, attempt: Callable[[], list[_T]], stopper: Stopper | None = None
    ) -> list[_T]:
        """Try, and wait for an arrival or a due time, until something came or the time is over."""
        core, wait_ns = self._core, wait_ns_of(wait_s)
        if not wait_ns:
            return attempt()
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:
                pass  # the loop was closed under its tasks; whoever publishes is not to blame

        core.listeners.append(wake)  # before the first try: see QueueCore.expecting
        try:
            with self._waking(stopper, wake):
                return await self._tried(wait_ns, attempt, woken, stopper)
        finally:
            core.listeners.remove(wake)

    async def _tried(
        self,
        wait_ns: int,
        attempt: Callable[[], list[_T]],
        woken: asyncio.Event,
        stopper: Stopper | None,
    ) -> list[_T]:
        core = self._core
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
            try:
                async with asyncio.timeout(timeout_ns / NS):
                    await woken.wait()
            except TimeoutError:
                pass
            self._ledger.check_open()

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
            leased = await self.lease(
                batch, lease_s=lease_s, wait_s=wait_s, group=group, stopper=stopper
            )
            if not leased:
                return
            with self._one_by_one(leased, stopper) as ahead:
                for job in ahead:
                    yield job

    # -- settling ----------------------------------------------------------------------------------

    async def ack(
        self, leased: Leased | Iterable[Leased], *, emit: Sequence[Payload | NewMessage] = ()
    ) -> list[str]:
        """The work is done. With `emit`, follow-up messages are published in the same write."""
        return await self._durable(self._behaviours.settling.ack(several(leased), as_new(emit)))

    # -- looking -----------------------------------------------------------------------------------

    async def browse(
        self, state: str | None = None, *, group: str = MAIN_GROUP_NAME
    ) -> AsyncIterator[Message]:
        """Messages by state, without consuming; all that are not done by default."""
        for message in self._behaviours.inspecting.browse(state, group):
            yield message

    async def history(self, id: str, *, group: str | None = None) -> list[HistoryEvent]:
        """Everything that happened to a message."""
        return await asyncio.to_thread(self._behaviours.inspecting.history, id, group)

    async def dead(self, *, group: str = MAIN_GROUP_NAME) -> AsyncIterator[DeadLetter]:
        """The dead letters, oldest first, with the reason of their death in headers `dlq.…`."""
        await self.stats()  # lets happen what is due, durably
        for letter in self._behaviours.inspecting.dead(group):
            yield letter

    async def lease_dead(
        self,
        n: int = 1,
        *,
        lease_s: Duration | None = None,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
    ) -> list[LeasedMessage]:
        """Lease dead letters, oldest first: an ack settles them for good, anything else leaves
        them dead."""
        return await self._durable(
            self._behaviours.delivering.lease_dead(n, lease_s, group, holder)
        )

    async def compact(
        self, *, on_progress: Callable[[CompactionResult], None] | None = None
    ) -> CompactionResult:
        """Give back disk space that no group and no retention setting needs."""
        told = None
        if on_progress is not None:
            loop, tell = asyncio.get_running_loop(), on_progress

            def told(so_far: CompactionResult) -> None:
                loop.call_soon_threadsafe(tell, replace(so_far))

        return await asyncio.to_thread(self._core.compacting.compact, told)

    async def run(self, operation: Operation[A]) -> A:
        """Run any operation of `penstock.operations` and return its answer."""
        events = self._ledger.events
        before = events.next_seq
        if operation.runs is Runs.LOOP and not isinstance(operation, Sync):
            answer = run(self._behaviours, operation)
        else:
            answer = await asyncio.to_thread(run, self._behaviours, operation)
        if operation.writes or events.next_seq != before:  # leases may have been found to be over
            return await self._durable(answer)
        return answer

    async def close(self) -> None:
        """Save a snapshot, sync, let go of the directory. May be called again."""
        await asyncio.to_thread(self._core.close)

    async def __aenter__(self) -> "AsyncQueue":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


class _NoSettler:
    """A leased message of an async queue cannot settle itself in a plain `with`."""

    def ack(self, leased: LeasedMessage, /) -> None:
        raise TypeError("use `async with queue.lease_one()`, or `await queue.ack(job)`")

    def nack(self, leased: LeasedMessage, /, reason: str = "") -> None:
        raise TypeError("use `async with queue.lease_one()`, or `await queue.nack(job)`")
