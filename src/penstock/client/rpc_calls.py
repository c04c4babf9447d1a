"""The requests of one queue over gRPC: messages of `penstock.v1.QueueService`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client.answers import ROWS, Page, QueueDetails
from penstock.client.leasing import Lease, extension
from penstock.client.publishing import DedupIds, check_published, payload_bytes, seen
from penstock.client.request import Asked, T
from penstock.codec import parse_id
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.model import (
    NS,
    DeadLetter,
    HistoryEvent,
    LeasedMessage,
    Message,
    NewMessage,
    Published,
)
from penstock.names import QueueName
from penstock.operations import (
    AwaitEnding,
    Browse,
    Extend,
    ListDead,
    ListHistory,
    MessageOperation,
    Nack,
    Operation,
    Release,
)
from penstock.protobuf.descriptors import METHODS, Method, Proto
from penstock.protobuf.messages import add_new_message, leased_of
from penstock.protobuf.operations import answer_of, request_of
from penstock.protobuf.records import as_dict
from penstock.queue.events import as_written
from penstock.queue.settings import QueueSettings
from penstock.queue.settling import check_delay

ANSWER_BYTES = 16 << 20  # of a lease; the channel accepts more than the default of gRPC
_MAX_REASON_CHARS = 4096
_DONE, _REPEATED, _GONE = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcRequest(Asked[T]):
    """A call, and the function that makes a value of its response.

    `read` also learns whether an earlier attempt may have been carried out.
    """

    method: Method
    message: Proto
    read: Callable[[Proto, bool], T]
    idempotent: bool
    wait_s: float = 0.0

    @property
    def path(self) -> str:
        return self.method.path


class RpcCalls:
    """Makes requests for one queue."""

    def __init__(self, queue: QueueName, ids: DedupIds) -> None:
        self._queue = queue
        self._ids = ids

    def _named(self, method: Method, **fields: Any) -> Proto:
        return method.request(namespace=self._queue.namespace, queue=self._queue.name, **fields)

    def publish(self, messages: Sequence[NewMessage], now_ns: int) -> RpcRequest[list[Published]]:
        """Publish all or none. A message with a generated dedup id is never a duplicate."""
        check_published(messages, now_ns)
        method = METHODS["Publish"]
        request = self._named(method)
        for message, id_ in zip(messages, self._ids.generate(messages), strict=True):
            made = add_new_message(request.messages, message, payload_bytes(message.payload))
            if id_:
                made.dedup_id = id_
                made.dedup_window_s = self._ids.window_s

        def read(response: Proto, resent: bool) -> list[Published]:
            return [
                seen(Published(one.id, one.duplicate), message)
                for one, message in zip(response.messages, messages, strict=True)
            ]

        return RpcRequest(method=method, message=request, read=read, idempotent=True)

    def lease(self, lease: Lease, wait_s: float) -> RpcRequest[list[LeasedMessage]]:
        method = METHODS["Lease"]
        request = self._named(
            method,
            max=lease.n,
            lease_s=lease.lease_s,
            wait_s=wait_s,
            group=lease.group,
            holder=lease.holder,
            dead=lease.dead,
            max_bytes=ANSWER_BYTES,
        )

        def read(response: Proto, resent: bool) -> list[LeasedMessage]:
            return [leased_of(one, lease.group, lease.settler) for one in response.messages]

        return RpcRequest(
            method=method,
            message=request,
            read=read,
            idempotent=lease.idempotent,
            wait_s=wait_s,
        )

    # -- settling ----------------------------------------------------------------------------------

    def ack(
        self, receipts: Sequence[str], emit: Sequence[NewMessage] = ()
    ) -> RpcRequest[list[str]]:
        if emit and len(receipts) != 1:
            raise InvalidInput("an ack with emit settles one message: ack the others by themselves")
        request = METHODS["Settle"].request()
        for receipt in receipts:
            made = request.ack.add(receipt=receipt)
            for message in emit:
                add_new_message(made.emit, message, payload_bytes(message.payload))
        return _settle(request)

    def settle(
        self, operation: Nack | Extend | Release
    ) -> Callable[[Sequence[str]], RpcRequest[list[str]]]:
        options: dict[str, Any] = {}
        if isinstance(operation, Nack):
            options["reason"] = as_written("reason", operation.reason)[:_MAX_REASON_CHARS]
            if operation.delay is not None:
                options["delay_s"] = check_delay(operation.delay)
            options["dead"] = operation.dead
        elif isinstance(operation, Extend):
            options = extension(operation)
        if isinstance(operation, Release):
            return lambda receipts: _settle(
                METHODS["Settle"].request(release=receipts), gone_if_resent=True
            )
        field = "nack" if isinstance(operation, Nack) else "extend"

        def make(receipts: Sequence[str]) -> RpcRequest[list[str]]:
            request = METHODS["Settle"].request()
            for receipt in receipts:
                getattr(request, field).add(receipt=receipt, **options)
            return _settle(request, gone_if_resent=field == "nack")

        return make

    def release_valid(self, receipts: Sequence[str]) -> RpcRequest[list[str]]:
        return RpcRequest(
            method=METHODS["Settle"],
            message=METHODS["Settle"].request(release=receipts),
            read=lambda response, resent: [],
            idempotent=True,
        )

    # -- operations --------------------------------------------------------------------------------

    def run(self, operation: Operation[T]) -> RpcRequest[T]:
        for id_ in _ids_of(operation):
            parse_id(id_)  # the error for a bad id is that of the embedded queue
        method, request = request_of(operation)
        if not isinstance(operation, MessageOperation):
            request.namespace, request.queue = self._queue
        return RpcRequest(
            method=method,
            message=request,
            read=lambda response, resent: answer_of(operation, response),
            idempotent=operation.idempotent,
            wait_s=operation.wait_s if isinstance(operation, AwaitEnding) else 0.0,
        )

    def browse(
        self, state: str | None, group: str, after_seq: int = 0
    ) -> RpcRequest[Page[Message]]:
        asked = self.run(Browse(state, group=group, after_seq=after_seq, limit=ROWS))

        def read(response: Proto, resent: bool) -> Page[Message]:
            page = asked.read(response, resent)
            following = self.browse(state, group, page.next_seq) if page.next_seq else None
            return Page([row.message for row in page.rows], following)

        return RpcRequest(method=asked.method, message=asked.message, read=read, idempotent=True)

    def dead(self, group: str, after_seq: int = 0) -> RpcRequest[Page[DeadLetter]]:
        asked = self.run(ListDead(group=group, after_seq=after_seq, limit=ROWS))

        def read(response: Proto, resent: bool) -> Page[DeadLetter]:
            page = asked.read(response, resent)
            following = self.dead(group, page.next_seq) if page.next_seq else None
            return Page(list(page.letters), following)

        return RpcRequest(method=asked.method, message=asked.message, read=read, idempotent=True)

    def history(self, id: str, group: str | None, skip: int = 0) -> RpcRequest[Page[HistoryEvent]]:
        asked = self.run(ListHistory(id, group=group, skip=skip, limit=ROWS))

        def read(response: Proto, resent: bool) -> Page[HistoryEvent]:
            events = asked.read(response, resent)
            is_full = len(events) == ROWS
            return Page(events, self.history(id, group, skip + ROWS) if is_full else None)

        return RpcRequest(method=asked.method, message=asked.message, read=read, idempotent=True)

    def details(self) -> RpcRequest[QueueDetails]:
        def read(response: Proto, resent: bool) -> QueueDetails:
            return QueueDetails(
                namespace=response.namespace,
                name=response.queue,
                created_at=response.created_ns / NS,
                settings=QueueSettings.of_stored(as_dict(response.settings)),
            )

        method = METHODS["GetQueue"]
        return RpcRequest(method=method, message=self._named(method), read=read, idempotent=True)


def _ids_of(operation: Any) -> list[str]:
    one = getattr(operation, "id", None)
    return [*([] if one is None else [one]), *(getattr(operation, "ids", None) or ())]


def _settle(request: Proto, *, gone_if_resent: bool = False) -> RpcRequest[list[str]]:
    """Return a settlement. With `gone_if_resent`, "gone" is a success if the request was resent:
    an earlier attempt may have arrived.
    """

    def read(response: Proto, resent: bool) -> list[str]:
        fine = {_DONE, _REPEATED, *([_GONE] if gone_if_resent and resent else [])}
        results = response.results
        bad = [result for result in results if result.status not in fine]
        if bad:
            more = f" ({len(bad)} of {len(results)} receipts)" if len(results) > 1 else ""
            raise ReceiptInvalid(f"{bad[0].detail or bad[0].status}{more}")
        return [emitted for result in results for emitted in result.ids]

    return RpcRequest(method=METHODS["Settle"], message=request, read=read, idempotent=True)
