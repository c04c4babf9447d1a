"""The queues of a broker, for threads and for tasks: the methods of the embedded queues, over HTTP.

Both are the same but for the transport of their exchange and for how publishes are batched.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import cast
from weakref import WeakSet

from penstock.checking import Duration
from penstock.client import leasing, publishing
from penstock.client.address import QueueAddress, is_grpc
from penstock.client.answers import QueueDetails, all_rows
from penstock.client.batching import AnyBatcher, AsyncBatcher, Batcher
from penstock.client.calls import Calls, Exchanging
from penstock.client.http_calls import HttpCalls
from penstock.client.leasing import Lease
from penstock.errors import PenstockError
from penstock.ledger.compaction import CompactionResult
from penstock.model import (
    NS,
    DeadLetter,
    HistoryEvent,
    LeasedMessage,
    Message,
    NewMessage,
    Published,
    Settler,
)
from penstock.operations import AwaitEnding, Compact, Extend, Leased, Nack, Operation, Release
from penstock.operations.following import MAX_AWAIT_S
from penstock.queue.behaviours import half_time_ns, several
from penstock.queue.binding import method
from penstock.queue.facade import A, AnyAsyncQueue, AnyQueue, NoSettler, Progress, QueueMethods
from penstock.queue.settings import YEARS_S
from penstock.queue.streaming import Stopper, is_stopped

log = logging.getLogger("penstock.client")


class Remote(QueueMethods):
    """What the queues of a broker share."""

    def __init__(self, address: QueueAddress, exchange: Exchanging, settler: Settler) -> None:
        self.address = address
        self._exchange = exchange
        self._settler = settler
        self._calls = _calls_of(address, exchange)
        self._batcher: AnyBatcher | None = None
        self._streams: list[list[LeasedMessage]] = []  # what each open one leased ahead
        self._views: WeakSet[Remote] = WeakSet()  # of `for_tasks`; closed with this queue
        self._releasing: AbstractAsyncContextManager[object] = nullcontext()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        return str(self.address)

    @method
    async def details(self) -> QueueDetails:
        """Return the queue's name, age and settings, as the broker has them."""
        return await self._exchange.do(self._calls.details())

    def metrics(self) -> dict[str, object]:
        """Return what this client did: requests, retries, and how long they took."""
        return self._exchange.counts.snapshot()

    # -- primitives --------------------------------------------------------------------------------

    async def _publish(self, messages: list[NewMessage]) -> list[Published]:
        now_ns = self._exchange.clock.now_ns()
        return await self._exchange.do(self._calls.publish(messages, now_ns))

    async def _publish_one(self, message: NewMessage) -> Published:
        if self._batcher is not None:
            return await self._batcher.publish(message)
        return (await self._publish([message]))[0]

    async def _lease(
        self,
        n: int,
        lease_s: Duration | None,
        wait_s: Duration,
        group: str,
        holder: str,
        stopper: Stopper | None,
    ) -> list[LeasedMessage]:
        return await self._wait_for_lease(
            n, lease_s, wait_s, group, holder, stopper, idempotent=False
        )

    async def _wait_for_lease(
        self,
        n: int,
        lease_s: Duration | None,
        wait_s: Duration,
        group: str,
        holder: str,
        stopper: Stopper | None,
        *,
        idempotent: bool,
    ) -> list[LeasedMessage]:
        """Lease. `idempotent`: ask again if the answer was lost."""
        lease = Lease(
            self._calls.lease, self._settler, n, lease_s, group, holder, idempotent=idempotent
        )
        return await lease.wait(self._exchange, wait_s, stopper)

    async def _take(self, n: int, wait_s: Duration, group: str) -> list[Message]:
        leased = await self._lease(n, None, wait_s, group, "", None)
        if leased:
            await self._exchange.do(self._calls.ack([one.receipt for one in leased]))
        return [one.message for one in leased]

    async def _jobs(
        self,
        group: str,
        lease_s: Duration | None,
        idle_s: Duration | None,
        batch: int,
        stopper: Stopper | None,
    ) -> AsyncIterator[LeasedMessage]:
        wait_s, clock = YEARS_S if idle_s is None else idle_s, self._exchange.clock
        ahead: list[LeasedMessage] = []
        self._streams.append(ahead)
        try:
            while not is_stopped(stopper):
                # Idempotent: the stream asks again anyway, and the messages of a lost answer come
                # back when their lease ends.
                leased = await self._wait_for_lease(
                    batch, lease_s, wait_s, group, "", stopper, idempotent=True
                )
                if not leased:
                    return
                half_ns = half_time_ns(leased[0], clock.now_ns())
                ahead += reversed(leased)
                job = _pop(ahead)  # at least one, even if a clock is wrong
                while job is not None:
                    yield job
                    is_over = clock.now_ns() >= half_ns or is_stopped(stopper)
                    job = None if is_over else _pop(ahead)
                await self._release_ahead(ahead)  # their leases would end too soon, or it stops
        finally:
            # By identity: two empty lists are equal.
            self._streams[:] = [one for one in self._streams if one is not ahead]
            if not self._exchange.is_closed:
                await self._release_ahead(ahead)

    async def _release_ahead(self, ahead: list[LeasedMessage]) -> None:
        """Release all messages of a list, and empty it."""
        async with self._releasing:
            left: list[LeasedMessage] = []
            while (one := _pop(ahead)) is not None:
                left.append(one)
            if left:
                await self._exchange.do(self._calls.release_valid(leasing.receipts_of(left)))

    async def _ack(self, leased: Leased | Iterable[Leased], emit: list[NewMessage]) -> list[str]:
        publishing.check_all(emit, self._exchange.clock.now_ns())
        return await leasing.settle_in_batches(
            self._exchange, several(leased), lambda receipts: self._calls.ack(receipts, emit)
        )

    def _browse(self, state: str | None, group: str) -> AsyncIterator[Message]:
        return all_rows(self._exchange, self._calls.browse(state, group))

    async def _history(self, id: str, group: str | None) -> list[HistoryEvent]:
        request = self._calls.history(id, group)
        return [event async for event in all_rows(self._exchange, request)]

    def _dead(self, group: str) -> AsyncIterator[DeadLetter]:
        return all_rows(self._exchange, self._calls.dead(group))

    async def _lease_dead(
        self, n: int, lease_s: Duration | None, group: str, holder: str
    ) -> list[LeasedMessage]:
        lease = Lease(self._calls.lease, self._settler, n, lease_s, group, holder, dead=True)
        return await self._exchange.do(lease.once())

    async def _compact(self, on_progress: Progress) -> CompactionResult:
        result = CompactionResult(bytes_freed=await self._run(Compact()))
        if on_progress is not None:
            on_progress(result)
        return result

    async def _run(self, operation: Operation[A]) -> A:
        if isinstance(operation, Nack | Extend | Release):
            leased = several(operation.leased)
            await leasing.settle_in_batches(self._exchange, leased, self._calls.settle(operation))
            return cast(A, None)
        return await self._exchange.do(self._calls.run(operation))

    async def _wait_ended(self, id: str, wait_s: float) -> bool:
        clock = self._exchange.clock
        ends_ns = clock.monotonic_ns() + round(wait_s * NS)
        while True:
            left_s = max(ends_ns - clock.monotonic_ns(), 0) / NS
            asked = AwaitEnding(id, wait_s=min(left_s, MAX_AWAIT_S))
            if await self._exchange.do(self._calls.run(asked)):
                return True
            if clock.monotonic_ns() >= ends_ns:
                return False  # else the broker is stopping, or one request waits no longer

    async def _close(self) -> None:
        if self._batcher is not None:
            await self._batcher.finish()
        try:
            views = [ahead for view in tuple(self._views) for ahead in view._streams]
            # The last one waits for a release that is under way.
            for ahead in [*self._streams, *views, []]:
                await self._release_ahead(ahead)
        except PenstockError as error:
            log.warning("messages leased ahead were not released: %s", error)
        finally:
            await self._exchange.close()


def _calls_of(address: QueueAddress, exchange: Exchanging) -> Calls:
    ids = publishing.DedupIds(exchange.options.dedup_window_s())
    if not is_grpc(address.base):
        return HttpCalls(address.path, ids)
    from penstock.client.rpc_calls import RpcCalls  # needs the extra `grpc`

    return RpcCalls(address.queue, ids)


def _pop(ahead: list[LeasedMessage]) -> LeasedMessage | None:
    """Remove and return the last message. Atomic: `close` may empty the list in another thread."""
    try:
        return ahead.pop()
    except IndexError:
        return None


class RemoteQueue(Remote, AnyQueue):
    """A queue of a broker. Thread-safe; a context manager that closes its connections.

    Methods are those of the embedded `Queue`; where they differ is on the page `docs/client.md`.
    """

    def __init__(self, address: QueueAddress, exchange: Exchanging) -> None:
        super().__init__(address, exchange, self)
        if exchange.options.batching is not None:
            self._batcher = Batcher(exchange.options.batching, self._publish)

    def for_tasks(self) -> "AsyncRemoteQueue":
        view = self._view(self._exchange.view_for_tasks())
        self._views.add(view)
        return view

    def _view(self, exchange: Exchanging) -> "AsyncRemoteQueue":
        return AsyncRemoteQueue(self.address, exchange)


class AsyncRemoteQueue(Remote, AnyAsyncQueue):
    """A queue of a broker. `async with` closes its connections.

    Methods are those of `AsyncQueue`; where they differ is on the page `docs/client.md`.
    """

    def __init__(self, address: QueueAddress, exchange: Exchanging) -> None:
        super().__init__(address, exchange, NoSettler())
        self._releasing = asyncio.Lock()  # one at a time, so that `close` waits
        if exchange.options.batching is not None:
            self._batcher = AsyncBatcher(exchange.options.batching, self._publish)
