"""Spans of the broker, for requests that publish, lease or settle (setting `tracing`).

Without it, nothing is replaced and no request pays. With it, the three calls of this server's
broker note what a request asks for. When the request is answered, its span is made of the note, the
time it took and the trace context in its headers. A message without a context of its own gets that
of the request.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind, Status, StatusCode

from penstock.broker import Broker, QueueName, Settlement
from penstock.model import NewMessage, TypedPayload
from penstock.tracing import PROPAGATED, Destination, Tracing

if TYPE_CHECKING:
    from penstock.server.call import Call

_MOST_NOTES = 100_000  # requests under way; those of lost connections are never answered


class _Note(NamedTuple):
    name: str
    operation: str
    kind: SpanKind
    destination: Destination
    messages: int | None = None
    parent: dict[str, str] | None = None


class BrokerTracing:
    """Makes spans of the requests to one broker."""

    def __init__(self, broker: Broker, tracing: Tracing | None = None) -> None:
        self._tracing = tracing or Tracing()
        self._now_ns = broker.clock.now_ns
        self._notes: OrderedDict[Any, _Note] = OrderedDict()
        self._publish = broker.publish
        self._lease = broker.lease
        self._settle = broker.settle
        vars(broker).update(
            publish=self.publish,
            lease=self.lease,
            lease_one=self.lease_one,
            settle=self.settle,
            ack=self.ack,
        )

    # -- calls of the broker -----------------------------------------------------------------------

    def publish(
        self, caller: Any, queue: QueueName, messages: Sequence[Any], pending: Any = None
    ) -> Any:
        if pending is None:
            return self._publish(caller, queue, messages)
        carried = _carried(pending)
        if carried:
            messages = [_carrying(one, carried) for one in messages]
        elif isinstance(messages[0] if messages else None, NewMessage):
            carried = _of_message(messages[0])
        self._note(
            pending, "publish", "send", SpanKind.SERVER, _destination(queue), len(messages), carried
        )
        return self._publish(caller, queue, messages, pending)

    def lease(self, caller: Any, queue: QueueName, **options: Any) -> Any:
        pending = options.get("pending")
        if pending is not None:
            self._note(pending, "lease", "receive", SpanKind.SERVER, _destination(queue))
        return self._lease(caller, queue, **options)

    def lease_one(self, caller: Any, queue: QueueName, pending: Any) -> Any:
        return self.lease(caller, queue, pending=pending)

    def ack(self, caller: Any, receipt: str, pending: Any) -> Any:
        return self.settle(caller, [Settlement("ack", receipt)], pending)

    def settle(self, caller: Any, settlements: Sequence[Any], pending: Any = None) -> Any:
        if pending is None:
            return self._settle(caller, settlements)
        names = {one.verdict for one in settlements}
        name = names.pop() if len(names) == 1 else "settle"
        self._note(
            pending, name, "settle", SpanKind.SERVER, Destination("queues", {}), len(settlements)
        )
        return self._settle(caller, settlements, pending)

    def _note(
        self,
        call: "Call",
        name: str,
        operation: str,
        kind: SpanKind,
        destination: Destination,
        count: int | None = None,
        parent: dict[str, str] | None = None,
    ) -> None:
        self._notes[call] = _Note(
            name, operation, kind, destination, count, parent or _carried(call)
        )
        if len(self._notes) > _MOST_NOTES:
            self._notes.popitem(last=False)

    # -- answers -----------------------------------------------------------------------------------

    def answered(self, call: "Call", status: int, took_ns: int) -> None:
        """Make the span of a request, if it has one."""
        note = self._notes.pop(call, None)
        if note is None:
            return
        ended_ns = self._now_ns()
        parent: Context | None = extract(note.parent) if note.parent else None
        span = self._tracing.start(
            note.name,
            note.operation,
            note.kind,
            note.destination,
            parent=parent,
            start_ns=ended_ns - took_ns,
        )
        span.set_attribute("http.response.status_code", status)
        span.set_attribute("penstock.request_id", call.request_id.decode())
        if note.messages is not None:
            span.set_attribute("messaging.batch.message_count", note.messages)
        if status >= 400:
            span.set_attribute("error.type", str(status))
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)


def _carried(call: "Call") -> dict[str, str]:
    """Return the trace context in the headers of a request."""
    found = {name: call.headers.get(name.encode()) for name in PROPAGATED}
    if found["traceparent"] is None:
        return {}
    return {name: value.decode("latin-1") for name, value in found.items() if value is not None}


def _destination(queue: QueueName) -> Destination:
    return Destination(str(queue), {"messaging.destination.name": str(queue)})


def _of_message(message: NewMessage) -> dict[str, str]:
    headers = message.headers
    if not isinstance(headers, dict) or "traceparent" not in headers:
        return {}
    return {name: headers[name] for name in PROPAGATED if name in headers}


def _carrying(message: Any, carried: dict[str, str]) -> Any:
    """Return the message with the context of its request, unless it has one."""
    if isinstance(message, NewMessage):
        headers = message.headers
        if headers is not None and "traceparent" in headers:
            return message
        return replace(message, headers={**(headers or {}), **carried})
    if isinstance(message, TypedPayload):
        return NewMessage(
            payload=message.payload, headers=carried, content_type=message.content_type
        )
    return NewMessage(payload=message, headers=carried)
