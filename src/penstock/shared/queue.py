"""Queues of a shared directory, for threads and for tasks.

In a client they are those of a broker. In the holder, what is called for every message (publish,
lease, settle) uses the open queue of this process. Everything else goes through the socket there as
well, so that only the broker's event loop changes settings and groups.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack, cast

from penstock.checking import Duration
from penstock.client.address import QueueAddress
from penstock.client.calls import Exchanging
from penstock.client.publishing import DedupIds, seen
from penstock.client.queue import AsyncRemoteQueue, Remote, RemoteQueue
from penstock.codec import parse_id
from penstock.errors import LedgerClosed, LedgerForked, ReceiptInvalid
from penstock.model import (
    MAIN_GROUP_NAME,
    LeasedMessage,
    Message,
    NewMessage,
    Payload,
    Published,
    PublishOptions,
    new_message,
)
from penstock.operations import Extend, Leased, Nack, Operation, Release
from penstock.queue.behaviours import as_new, several
from penstock.queue.binding import finish, value_of
from penstock.queue.core import QueueCore
from penstock.queue.facade import NO_MESSAGES, NO_WAIT, A
from penstock.queue.gate import gate_of
from penstock.queue.queue import AsyncQueue, Queue
from penstock.queue.streaming import Stopper
from penstock.shared.exchange import SharedExchange

T = TypeVar("T")
_CLOSED = (LedgerClosed, LedgerForked)  # by another thread, or by a fork


class _NotHere:
    """The answer of a call that another process must answer."""


_NOT_HERE = _NotHere()


class Shared(Remote):
    """What the queues of a shared directory share."""

    def _begin(self, exchange: SharedExchange) -> None:
        self._shared = exchange
        self._member = exchange.member
        self._ids = DedupIds(exchange.options.dedup_window_s())
        self._own: Queue | AsyncQueue | None = None  # of this process, while it is the holder

    @property
    def path(self) -> str:
        """The directory."""
        return self._member.place.path

    @property
    def role(self) -> str:
        """Return "holder" if this process serves the directory, "client" if another one does.

        "joining" while no process does, which is for less than a second.
        """
        return self._member.standing.role

    def _open_own(self, core: QueueCore) -> Queue | AsyncQueue:
        """Return the open queue of this process, for threads or for tasks."""
        raise NotImplementedError

    def _here(self) -> Queue | AsyncQueue | None:
        """Return the open queue of this process; None if another process has it."""
        holder = self._member.holder
        if holder is None or self._shared.is_closed:
            return None
        core = holder.core_of(self.address.queue)
        if core is None:
            return None
        own = self._own
        if own is None or own.core is not core:
            own = self._own = self._open_own(core)
        return own

    async def _try_here(
        self, call: Callable[[Queue | AsyncQueue], T | Coroutine[Any, Any, T]]
    ) -> T | _NotHere:
        """Call the open queue of this process. Return _NOT_HERE if it is not there."""
        here = self._here()
        if here is None:
            return _NOT_HERE
        try:
            return await value_of(call(here))
        except _CLOSED:
            self._gone(here.core)
            return _NOT_HERE

    def _gone(self, core: QueueCore) -> None:
        holder = self._member.holder
        if holder is not None:
            holder.forget(self.address.queue, core)

    # -- primitives --------------------------------------------------------------------------------

    async def _publish(self, messages: list[NewMessage]) -> list[Published]:
        here = self._here()
        if here is None or _follow_others(messages, here.core.identity):
            return await super()._publish(messages)  # the broker looks at the other queues
        if isinstance(here, Queue) or here.settings.storage.sync != "always":
            found = await self._try_here(lambda here: here.publish(messages))
            return await super()._publish(messages) if isinstance(found, _NotHere) else found
        # For tasks, it may be closed while one waits for the disk: then they are sent again.
        named = [
            message
            if not id_
            else replace(message, dedup_id=id_, dedup_window_s=self._ids.window_s)
            for message, id_ in zip(messages, self._ids.generate(messages), strict=True)
        ]
        found = await self._try_here(lambda here: here.publish(named))
        if isinstance(found, _NotHere):
            found = await super()._publish(named)
        return [seen(one, message) for one, message in zip(found, messages, strict=True)]

    async def _publish_one(self, message: NewMessage) -> Published:
        if self._here() is not None:
            return (await self._publish([message]))[0]
        return await super()._publish_one(message)

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
        leased = await self._try_here(
            lambda here: here.lease(n, lease_s, wait_s, group, holder, stopper)
        )
        if not isinstance(leased, _NotHere):
            return leased
        # If the holder dies, the next one is asked. What the lost answer had comes back when its
        # lease ends.
        return await super()._wait_for_lease(
            n, lease_s, wait_s, group, holder, stopper, idempotent=True
        )

    async def _take(self, n: int, wait_s: Duration, group: str) -> list[Message]:
        taken = await self._try_here(lambda here: here.dequeue_batch(n, wait_s, group))
        return await super()._take(n, wait_s, group) if isinstance(taken, _NotHere) else taken

    async def _ack(self, leased: Leased | Iterable[Leased], emit: list[NewMessage]) -> list[str]:
        listed = _listed(leased)
        try:
            ids = await self._try_here(lambda here: here.ack(listed, emit=emit))
            if not isinstance(ids, _NotHere):
                return ids
        except ReceiptInvalid:
            pass  # the broker settles each by itself, and knows those that were acked before
        return await super()._ack(listed, emit)

    async def _wait_ended(self, id: str, wait_s: float) -> bool:
        ended = await self._try_here(lambda here: here.wait_ended(id, wait_s))
        return await super()._wait_ended(id, wait_s) if isinstance(ended, _NotHere) else ended

    async def _run(self, operation: Operation[A]) -> A:
        if isinstance(operation, Nack | Extend | Release):
            operation = cast(Operation[A], replace(operation, leased=_listed(operation.leased)))
            try:
                answer = await self._try_here(lambda here: here.run(operation))
                if not isinstance(answer, _NotHere):
                    return answer
            except ReceiptInvalid:
                pass
        return await super()._run(operation)


def _follow_others(messages: Sequence[NewMessage], identity: int) -> bool:
    """Return whether messages come after some of other queues, and are not behind gates."""
    return any(
        isinstance(one, str) and parse_id(one)[1] != identity
        for message in messages
        if message.after and gate_of(message) is None
        for one in message.after
    )


def _listed(leased: Leased | Iterable[Leased]) -> list[Leased]:
    """Return leased messages so that they can be read twice."""
    return list(several(leased))


class SharedQueue(Shared, RemoteQueue):
    """A queue of a shared directory. Thread-safe; a context manager that closes it."""

    def __init__(self, address: QueueAddress, exchange: SharedExchange) -> None:
        RemoteQueue.__init__(self, address, exchange)
        self._begin(exchange)

    def _view(self, exchange: Exchanging) -> "AsyncSharedQueue":
        return AsyncSharedQueue(self.address, cast(SharedExchange, exchange))

    def _open_own(self, core: QueueCore) -> Queue:
        return Queue(core, settler=self)

    # -- fast path of the holder -------------------------------------------------------------------

    def _fast_enqueue(self, payload: Payload, **options: Unpack[PublishOptions]) -> str:
        here: Any = None if options.get("after") else self._here()
        if here is not None:
            # If it is closed after the write, the call returns nevertheless: it is on disk.
            try:
                id_: str = here.enqueue(payload, **options)
                return id_
            except _CLOSED:
                self._gone(here.core)
        return finish(self._publish_one, new_message(payload, options)).id

    def _fast_lease(
        self,
        n: int = 1,
        lease_s: Duration | None = None,
        wait_s: Duration = NO_WAIT,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
        stopper: Stopper | None = None,
    ) -> list[LeasedMessage]:
        here: Any = self._here()
        if here is not None:
            try:
                leased: list[LeasedMessage] = here.lease(n, lease_s, wait_s, group, holder, stopper)
                return leased
            except _CLOSED:
                self._gone(here.core)
        return finish(self._lease, n, lease_s, wait_s, group, holder, stopper)

    def _fast_ack(
        self,
        leased: Leased | Iterable[Leased],
        *,
        emit: Sequence[Payload | NewMessage] = NO_MESSAGES,
    ) -> list[str]:
        here: Any = self._here()
        if here is not None and type(leased) is LeasedMessage:
            try:
                ids: list[str] = here.ack(leased, emit=emit)
                return ids
            except _CLOSED:
                self._gone(here.core)
            except ReceiptInvalid:
                pass
        return finish(self._ack, leased, as_new(emit))


class AsyncSharedQueue(Shared, AsyncRemoteQueue):
    """A queue of a shared directory. `async with` closes it."""

    def __init__(self, address: QueueAddress, exchange: SharedExchange) -> None:
        AsyncRemoteQueue.__init__(self, address, exchange)
        self._begin(exchange)

    def _open_own(self, core: QueueCore) -> AsyncQueue:
        return AsyncQueue(core, is_view=True)
