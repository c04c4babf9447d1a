"""Spans of the broker, for requests that publish, lease or settle (setting `tracing`).

Without it, nothing is replaced and no request pays. With it, the three calls of this server's
broker note what a request asks for, and what it gets. When the request is answered, its span is
made of the note, the time it took and the trace context in its headers. A message without a context
of its own gets that of the request.
"""

from asyncio import Future
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind, Status, StatusCode

from penstock.broker import Broker, QueueName, Settlement
from penstock.model import NewMessage, TypedPayload
from penstock.server.call import Call
from penstock.tracing import PROPAGATED, Destination, Tracing

_MOST_NOTES = 100_000  # requests under way; those of lost connections are never answered


class _Note(NamedTuple):
    name: str
    operation: str
    kind: SpanKind
    destination: Destination
    messages: int | None = None
    parent: dict[str, str] | None = None
    message_id: str = ""  # if there is one message


class _Watched:
    """A pending call whose result is noted before the call gets it."""

    def __init__(self, tracing: "BrokerTracing", call: Call) -> None:
        self._tracing = tracing
        self._call = call

    def succeed(self, result: Any) -> None:
        self._tracing.note_result(self._call, result)
        self._call.succeed(result)

    def fail(self, error: BaseException) -> None:
        self._call.fail(error)


class BrokerTracing:
    """Makes spans of the requests to one broker."""

    def __init__(self, broker: Broker, tracing: Tracing | None = None) -> None:
        self._tracing = tracing or Tracing()
        self._queue_of_receipt = broker.queue_of_receipt
        self._now_ns = broker.clock.now_ns
        self._notes: OrderedDict[Any, _Note] = OrderedDict()
        self._publish = broker.publish
        self._lease = broker.lease
        self._lease_one = broker.lease_one
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
        if not isinstance(pending, Call):  # of the broker itself, or of another protocol
            return self._publish(caller, queue, messages, pending)
        carried = _carried(pending)
        if carried:
            messages = [_carrying(one, carried) for one in messages]
        elif isinstance(messages[0] if messages else None, NewMessage):
            carried = _of_message(messages[0])
        self._note(
            pending, "publish", "send", SpanKind.SERVER, _destination(queue), len(messages), carried
        )
        found = self._publish(caller, queue, messages, _Watched(self, pending))
        return self._noted(pending, found)

    def lease(self, caller: Any, queue: QueueName, **options: Any) -> Any:
        pending = options.get("pending")
        if not isinstance(pending, Call):
            return self._lease(caller, queue, **options)
        self._note(pending, "lease", "receive", SpanKind.SERVER, _destination(queue))
        found = self._lease(caller, queue, **{**options, "pending": _Watched(self, pending)})
        return self._noted(pending, found)

    def lease_one(self, caller: Any, queue: QueueName, pending: Any, length_of: Any = None) -> Any:
        if not isinstance(pending, Call):
            return self._lease_one(caller, queue, pending, length_of)
        return self.lease(caller, queue, pending=pending)

    def ack(self, caller: Any, receipt: str, read: Any, pending: Any) -> Any:
        return self.settle(caller, [Settlement("ack", receipt)], pending)

    def settle(self, caller: Any, settlements: Sequence[Any], pending: Any = None) -> Any:
        if not isinstance(pending, Call):
            return self._settle(caller, settlements, pending)
        names = {one.verdict for one in settlements}
        name = names.pop() if len(names) == 1 else "settle"
        queues = {self._queue_of_receipt(one.receipt) for one in settlements}
        queue = queues.pop() if len(queues) == 1 else None
        place = Destination("queues", {}) if queue is None else _destination(queue)
        self._note(pending, name, "settle", SpanKind.SERVER, place, len(settlements))
        return self._settle(caller, settlements, pending)

    def _note(
        self,
        call: Call,
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

    def _noted(self, call: Call, found: Any) -> Any:
        """Note a result that the broker returned, or the one of its future."""
        if isinstance(found, Future):
            found.add_done_callback(lambda done: self._future_done(call, done))
        elif found is not None:
            self.note_result(call, found)
        return found

    def _future_done(self, call: Call, done: "Future[Any]") -> None:
        if not done.cancelled() and done.exception() is None:
            self.note_result(call, done.result())

    def note_result(self, call: Call, result: Sequence[Any]) -> None:
        """Note the messages that a request published or leased."""
        note = self._notes.get(call)
        if note is not None:
            id_ = result[0].id if len(result) == 1 else ""
            self._notes[call] = note._replace(messages=len(result), message_id=id_)

    # -- answers -----------------------------------------------------------------------------------

    def answered(self, call: Call, status: int, took_ns: int) -> None:
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
        if note.message_id:
            span.set_attribute("messaging.message.id", note.message_id)
        if status >= 400:
            span.set_attribute("error.type", str(status))
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)


def _carried(call: Call) -> dict[str, str]:
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
