"""A queue of a broker, for tasks: the methods of `penstock.aio.AsyncQueue`, over HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Unpack

from penstock.checking import Duration
from penstock.client import leasing, operation_calls, publishing
from penstock.client.address import QueueAddress
from penstock.client.answers import Page, QueueDetails
from penstock.client.batching import AsyncBatcher
from penstock.client.call import Call, T
from penstock.client.connection import AsyncConnection
from penstock.client.leasing import Lease
from penstock.errors import PenstockError
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
from penstock.operations import Compact, Leased, Operation
from penstock.queue.behaviours import as_list, as_new, half_time_ns, several
from penstock.queue.facade import A, AsyncGroups, Awaiting, QueueMethods
from penstock.queue.settings import YEARS_S
from penstock.queue.streaming import AsyncStreaming, Stopper, is_stopped

log = logging.getLogger("penstock.client")


class _NoSettler:
    """A leased message of an async queue cannot settle itself in a plain `with`."""

    def ack(self, leased: LeasedMessage, /) -> None:
        raise TypeError("use `async with queue.lease_one()`, or `await queue.ack(job)`")

    def nack(self, leased: LeasedMessage, /, reason: str = "") -> None:
        raise TypeError("use `async with queue.lease_one()`, or `await queue.nack(job)`")


_NO_SETTLER = _NoSettler()


class AsyncRemoteQueue(QueueMethods, AsyncStreaming, Awaiting):
    """A queue of a broker. `async with` closes its connections.

    Methods are those of `AsyncQueue`; where they differ is on the page `docs/client.md`.
    """

    def __init__(self, address: QueueAddress, connection: AsyncConnection) -> None:
        self.address = address
        self._path = address.path
        self._connection = connection
        self._do = connection.do
        self._run = connection.run
        self._dedup_ids = publishing.DedupIds(connection.options.dedup_window_s())
        batching = connection.options.batching
        self._batcher = None if batching is None else AsyncBatcher(batching, self.publish)
        self._streams: list[list[LeasedMessage]] = []  # what each open one leased ahead
        self._releasing = asyncio.Lock()
        self.groups = AsyncGroups(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        return str(self.address)

    # -- publishing --------------------------------------------------------------------------------

    async def enqueue(self, payload: Payload, **options: Unpack[PublishOptions]) -> str:
        """Publish a message and return its id; for a duplicate, the id of the first.

        Options are those of `NewMessage`, by name: priority, delay, deliver_at, ttl, headers, key,
        dedup_id, dedup_window_s, max_attempts, content_type, compression.
        """
        message = new_message(payload, options)
        if self._batcher is not None:
            return (await self._batcher.publish(message)).id
        return (await self.publish([message]))[0].id

    async def enqueue_batch(self, messages: Iterable[Payload | NewMessage]) -> list[str]:
        """Publish several messages, all or none, and return their ids in the same order."""
        return [published.id for published in await self.publish(as_new(messages))]

    async def publish(self, messages: Iterable[NewMessage]) -> list[Published]:
        """Publish as `enqueue_batch`, and return which messages were duplicates."""
        return await self._do(publishing.publish(self._path, as_list(messages), self._dedup_ids))

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
        """Lease up to `n` messages, each to be settled before its deadline; wait for the first.

        `stopper.stop()` ends the wait within two seconds. If the stopper is stopped already,
        nothing is leased.
        """
        lease = Lease(self._path, _NO_SETTLER, n=n, lease_s=lease_s, group=group, holder=holder)
        return await self._run(lease.waiting(wait_s, self._connection.clock, stopper))

    @asynccontextmanager
    async def lease_one(
        self,
        *,
        lease_s: Duration | None = None,
        wait_s: Duration = 0.0,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
    ) -> AsyncIterator[LeasedMessage | None]:
        """Lease one message for an `async with` block: acked at its end, nacked if it raises.

        None if there is no message.
        """
        leased = await self.lease(1, lease_s=lease_s, wait_s=wait_s, group=group, holder=holder)
        if not leased:
            yield None
            return
        async with self._settled(leased[0]):
            yield leased[0]

    async def dequeue(self, wait_s: Duration = 0.0, group: str = MAIN_GROUP_NAME) -> Message | None:
        """Lease and ack the next message and return it; None if there is none."""
        taken = await self.dequeue_batch(1, wait_s=wait_s, group=group)
        return taken[0] if taken else None

    async def dequeue_batch(
        self, n: int, wait_s: Duration = 0.0, group: str = MAIN_GROUP_NAME
    ) -> list[Message]:
        """Lease and ack up to `n` messages and return them."""
        lease = Lease(self._path, _NO_SETTLER, n=n, lease_s=None, group=group, holder="")
        return await self._run(leasing.take(lease, wait_s, self._connection.clock))

    async def _jobs(
        self,
        group: str,
        lease_s: Duration | None,
        idle_s: Duration | None,
        batch: int,
        stopper: Stopper | None,
    ) -> AsyncIterator[LeasedMessage]:
        wait_s, clock = YEARS_S if idle_s is None else idle_s, self._connection.clock
        # Idempotent: see RemoteQueue.
        lease = Lease(
            self._path,
            _NO_SETTLER,
            n=batch,
            lease_s=lease_s,
            group=group,
            holder="",
            idempotent=True,
        )
        ahead: list[LeasedMessage] = []
        self._streams.append(ahead)
        try:
            while not is_stopped(stopper):
                ahead += reversed(await self._run(lease.waiting(wait_s, clock, stopper)))
                if not ahead:
                    return
                half_ns = half_time_ns(ahead[0], clock.now_ns())
                yield ahead.pop()  # at least one, even if a clock is wrong
                while ahead and clock.now_ns() < half_ns and not is_stopped(stopper):
                    yield ahead.pop()
                await self._release_ahead(
                    ahead
                )  # their leases would end too soon, or the stream is stopped
        finally:
            leasing.forget(self._streams, ahead)
            if not self._connection.is_closed:
                await self._release_ahead(ahead)

    async def _release_ahead(self, ahead: list[LeasedMessage]) -> None:
        """Release all messages of a list, and empty it. One at a time, so that `close` waits."""
        async with self._releasing:
            left = ahead[:]
            ahead.clear()
            if left:
                await self._do(leasing.release_valid(leasing.receipts_of(left)))

    # -- settling ----------------------------------------------------------------------------------

    async def ack(
        self, leased: Leased | Iterable[Leased], *, emit: Sequence[Payload | NewMessage] = ()
    ) -> list[str]:
        """Mark messages as done. `emit` publishes follow-up messages in the same write."""
        new = as_new(emit)
        return await self._run(
            leasing.settle_in_batches(several(leased), lambda receipts: leasing.ack(receipts, new))
        )

    # -- looking -----------------------------------------------------------------------------------

    def browse(
        self, state: str | None = None, *, group: str = MAIN_GROUP_NAME
    ) -> AsyncIterator[Message]:
        """Return messages by state, without consuming them; by default all that are not done."""
        return self._rows(operation_calls.browse(self._path, state, group))

    async def history(self, id: str, *, group: str | None = None) -> list[HistoryEvent]:
        """Return everything that happened to a message."""
        return [event async for event in self._rows(operation_calls.history(id, group))]

    async def details(self) -> QueueDetails:
        """Return the queue's name, age and settings, as the broker has them."""
        return await self._do(operation_calls.details(self._path))

    def metrics(self) -> dict[str, object]:
        """Return what this client did: requests, retries, and how long they took."""
        return self._connection.counts.snapshot()

    # -- operating ---------------------------------------------------------------------------------

    def dead(self, *, group: str = MAIN_GROUP_NAME) -> AsyncIterator[DeadLetter]:
        """Return the dead letters, oldest first, with their reasons in headers `dlq.…`."""
        return self._rows(operation_calls.dead(self._path, group))

    async def lease_dead(
        self,
        n: int = 1,
        *,
        lease_s: Duration | None = None,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
    ) -> list[LeasedMessage]:
        """Lease dead letters, oldest first. An ack removes them; anything else leaves them dead."""
        lease = Lease(
            self._path, _NO_SETTLER, n=n, lease_s=lease_s, group=group, holder=holder, dead=True
        )
        return await self._do(lease.once())

    async def compact(
        self, *, on_progress: Callable[[CompactionResult], None] | None = None
    ) -> CompactionResult:
        """Free disk space that no group and no retention setting needs.

        `on_progress` is called once, at the end: the broker does not report progress.
        """
        result = CompactionResult(bytes_freed=await self.run(Compact()))
        if on_progress is not None:
            on_progress(result)
        return result

    async def run(self, operation: Operation[A]) -> A:
        """Run any operation of `penstock.operations` and return its answer."""
        return await self._run(operation_calls.calls_of(self._path, operation))

    async def close(self) -> None:
        """Send gathered messages, release what open streams leased ahead, close the connections.

        May be called again.
        """
        if self._batcher is not None:
            await self._batcher.finish()
        try:
            for ahead in [*self._streams, []]:  # the last waits for a release that is under way
                await self._release_ahead(ahead)
        except PenstockError as error:
            log.warning("messages leased ahead were not released: %s", error)
        finally:
            await self._connection.close()

    async def __aenter__(self) -> "AsyncRemoteQueue":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _rows(self, call: Call[Page[T]]) -> AsyncIterator[T]:
        following: Call[Page[T]] | None = call
        while following is not None:
            page = await self._do(following)
            for row in page.rows:
                yield row
            following = page.next
