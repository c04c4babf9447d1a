"""`Consume`: push messages to a client, limited by its credit, and settle them on the same call.

The call is a stream in both directions, because a settlement frees credit: on a call of its own it
would have to name its stream, and could overtake or outlive it.
"""

import asyncio
from asyncio import Future, Queue
from typing import NamedTuple

from grpc.aio import EOF

from penstock.broker import Outcome, Verb
from penstock.broker.access import INSIDE
from penstock.broker.consumers import Consumer
from penstock.errors import InvalidInput, KeyRefused, NoSuchGroup, NoSuchQueue, Unavailable
from penstock.model import LeasedMessage
from penstock.operations import ListGroups
from penstock.protobuf.descriptors import METHODS, Proto
from penstock.protobuf.messages import lease_response
from penstock.server.grpc.call import COPIES, GrpcCall, parse, queue_of
from penstock.server.grpc.leasing import (
    group_of,
    holder_of,
    settle_response,
    settlements_of,
)
from penstock.server.service import token_of

_USUAL_CREDIT = 10
# Leased at once, and so held in memory until the client takes them. Few clients have messages so
# large that fewer than a hundred, which is the most anyway, reach it.
_AT_ONCE_BYTES = 512 * 1024
_MOST_UNANSWERED = 256  # settlements that are not answered; then reading stops
_MOST_UNANSWERED_RECEIPTS = 10_000  # of them all
_RECEIPT_BYTES = 512  # of memory, for a receipt that is being settled
_METHOD = METHODS["Consume"]


async def consume(call: GrpcCall) -> None:
    """Push messages until one side ends the call, then release all unsettled ones."""
    request = await call.read(_METHOD.request)
    if request.WhichOneof("request") != "start":
        raise InvalidInput("the first request of Consume must be `start`")
    consumer = await _consumer(call, request.start)
    try:
        await call.begin()
        await _Stream(call, consumer).run()
    finally:
        consumer.close()


async def _consumer(call: GrpcCall, start: Proto) -> Consumer:
    broker, caller, queue, group = call.broker, call.caller, queue_of(start), group_of(start)
    broker.admit(caller, Verb.CONSUME, queue.namespace)
    if not broker.has_queue(queue):
        if not broker.settings.create_on_use:
            raise NoSuchQueue(f"there is no queue {queue}: create it first")
    elif group not in await broker.run(INSIDE, ListGroups(), queue):
        raise NoSuchGroup(f"there is no group {group!r} of queue {queue}: create it first")
    held = call.shared.service.held
    messages, size = _credit(start.credit) if start.HasField("credit") else (_USUAL_CREDIT, None)
    return Consumer(
        broker,
        caller,
        queue,
        credit=messages,
        max_bytes=size,
        at_once_bytes=_AT_ONCE_BYTES,
        check_room=lambda size: held.check_room_for(COPIES * size),
        group=group,
        lease_s=start.lease_s if start.HasField("lease_s") else None,
        holder=holder_of(start) or f"grpc:{caller.client}",
    )


def _credit(credit: Proto) -> tuple[int, int | None]:
    return credit.messages, credit.bytes if credit.HasField("bytes") else None


class _Settling(NamedTuple):
    """A request `settle` that is not answered."""

    outcomes: Future[list[Outcome]]
    receipts: int
    size: int  # bytes, in `Held`


class _Stream:
    """A call of `Consume` that has started."""

    def __init__(self, call: GrpcCall, consumer: Consumer) -> None:
        self._call = call
        self._consumer = consumer
        self._held = call.shared.service.held
        self._settling: Queue[_Settling] = Queue(_MOST_UNANSWERED)
        self._receipts = 0  # of settlements that are not answered
        self._held_bytes = 0  # by them
        self._answered = asyncio.Event()

    async def run(self) -> None:
        """Run until the client ends its side. Raise an error if the broker must end the call."""
        receiving = asyncio.create_task(self._receive())
        others = [
            asyncio.create_task(work)
            for work in (self._push(), self._answer(), self._until_revoked(), self._until_stopped())
        ]
        try:
            await asyncio.wait([receiving, *others], return_when=asyncio.FIRST_COMPLETED)
            for work in (receiving, *others):
                if work.done():
                    work.result()  # raises its error
            await self._settling.join()
        finally:
            for work in (receiving, *others):
                work.cancel()
            await asyncio.wait([receiving, *others])
            self._held.bytes -= self._held_bytes

    async def _push(self) -> None:
        """Send messages. The next ones are leased when the client has taken these."""
        while True:
            # Only the encoded response is kept while the client does not read.
            response = _delivery(await self._consumer.next())
            if response is None:
                return
            await self._call.send(response)

    async def _receive(self) -> None:
        while (raw := await self._call.context.read()) is not EOF:
            request = parse(_METHOD.request, raw)
            match request.WhichOneof("request"):
                case "settle":
                    await self._settle(request.settle, len(raw))
                case "credit":
                    self._consumer.set_credit(*_credit(request.credit))
                case _:
                    raise InvalidInput("after `start`, a request is `settle` or `credit`")

    async def _settle(self, request: Proto, request_bytes: int) -> None:
        """Settle, unless too many settlements are unanswered: then wait, and read nothing."""
        settlements = settlements_of(request)
        count = len(settlements)
        size = request_bytes + count * _RECEIPT_BYTES
        self._hold(size)
        self._held.check_room()
        while self._receipts and self._receipts + count > _MOST_UNANSWERED_RECEIPTS:
            self._answered.clear()
            await self._answered.wait()
        self._receipts += count
        settling = self._consumer.settle(settlements)
        await self._settling.put(_Settling(settling, count, size))

    async def _answer(self) -> None:
        """Send the results of settlements in their order. Many run at once, to share a sync."""
        while True:
            one = await self._settling.get()
            response = _METHOD.response(settled=settle_response(await one.outcomes))
            await self._call.send(response.SerializeToString())
            self._hold(-one.size)
            self._receipts -= one.receipts
            self._answered.set()
            self._settling.task_done()

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._held.bytes += size

    async def _until_revoked(self) -> None:
        call = self._call
        keys = call.shared.service.stream_keys
        address = call.shared.service.address_of(call.headers, call.peer)
        is_refused = keys.watch(token_of(call.headers), address, call.caller)
        try:
            await is_refused.wait()
        finally:
            keys.forget(is_refused)
        raise KeyRefused("the API key of this call was revoked or changed")

    async def _until_stopped(self) -> None:
        await self._call.shared.is_stopping.wait()
        raise Unavailable("the broker is stopping: connect again in a moment")


def _delivery(messages: list[LeasedMessage]) -> bytes | None:
    """Return the response with these messages, encoded; None if there are none."""
    if not messages:
        return None
    made: bytes = _METHOD.response(delivered=lease_response(messages)).SerializeToString()
    return made
