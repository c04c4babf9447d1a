"""OpenTelemetry: spans for publishing, receiving, processing and settling messages.

Needs the extra `otel`. A queue that is not traced pays nothing: tracing replaces the methods of one
queue object by functions that open a span, as a metrics collector does.

The context travels with the message, in its headers `traceparent` and `tracestate`. Names follow
the semantic conventions for messaging.

>>> import tempfile, penstock
>>> from penstock.tracing import Tracing
>>> queue = Tracing().queue(penstock.open(tempfile.mkdtemp()))
>>> id = queue.enqueue(b"hello")  # within a span, the message carries its context
>>> queue.close()
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

import penstock
from penstock.client.request import CONTEXT_HEADERS
from penstock.locks import Lock
from penstock.model import LeasedMessage, Message, NewMessage

SYSTEM = "penstock"
MAX_LINKS = 128  # of one span: the limit of the SDK
MAX_OPEN = 10_000  # process spans of one worker
PROPAGATED = ("traceparent", "tracestate")

_Q = TypeVar("_Q")


class Destination(NamedTuple):
    """The queue of a span."""

    name: str
    attributes: Mapping[str, str | int]

    @classmethod
    def of(cls, queue: Any) -> "Destination":
        """Return the destination that a queue object or a path or URL stands for."""
        url = str(getattr(queue, "url", None) or "")
        path = str(getattr(queue, "path", queue))
        if not url and "://" in path:
            url = path
        if not url:
            name = path.rstrip("/").rpartition("/")[2]
            return cls(name, {"messaging.destination.name": name})
        parts = urlsplit(url)
        name = "/".join(parts.path.strip("/").split("/")[-2:])
        found: dict[str, str | int] = {"messaging.destination.name": name}
        if parts.hostname:
            found["server.address"] = parts.hostname
        if parts.port:
            found["server.port"] = parts.port
        return cls(name, found)


class Tracing:
    """Creates spans, with the global tracer provider or another one."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("penstock", penstock.__version__, tracer_provider)

    def queue(self, queue: _Q) -> _Q:
        """Make a queue of any kind create spans. Return the same object."""
        own, traced = vars(queue), _TracedCalls(self, Destination.of(queue))
        for name, (operation, kind, call) in _CALLS.items():
            own[name] = traced.wrapped(name, getattr(queue, name), operation, kind, call)
        for_tasks = getattr(queue, "for_tasks", None)
        if for_tasks is not None:
            own["for_tasks"] = lambda: self.queue(for_tasks())
        return queue

    def middleware(self, queue: object) -> "TracingMiddleware":
        """Return the middleware of a worker of this queue: a span around each handler."""
        return TracingMiddleware(self, Destination.of(queue))

    @contextmanager
    def span(
        self,
        name: str,
        operation: str,
        kind: SpanKind,
        destination: Destination,
        *,
        links: Sequence[Link] = (),
        parent: Context | None = None,
    ) -> Iterator[Span]:
        """Make a span current for a block, with the attributes of an operation."""
        with self._tracer.start_as_current_span(
            f"{name} {destination.name}",
            context=parent,
            kind=kind,
            attributes=attributes_of(name, operation, destination),
            links=links,
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                raise

    def start(
        self,
        name: str,
        operation: str,
        kind: SpanKind,
        destination: Destination,
        *,
        links: Sequence[Link] = (),
        parent: Context | None = None,
        start_ns: int | None = None,
    ) -> Span:
        """Start a span that is not current."""
        return self._tracer.start_span(
            f"{name} {destination.name}",
            context=parent,
            kind=kind,
            attributes=attributes_of(name, operation, destination),
            links=links,
            start_time=start_ns,
        )


def attributes_of(name: str, operation: str, destination: Destination) -> dict[str, Any]:
    """Return the attributes that every span of an operation has."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": operation,
        **destination.attributes,
    }


# -- context in headers ----------------------------------------------------------------------------


def with_context(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return headers with the current trace context, unless they have one."""
    if headers is not None and "traceparent" in headers:
        return headers
    carried: dict[str, str] = {}
    inject(carried)
    kept = {name: value for name, value in carried.items() if name in PROPAGATED}
    return {**(headers or {}), **kept} if kept else headers


def context_of(message: Message) -> Context | None:
    """Return the trace context in which a message was published; None if it carries none."""
    if "traceparent" not in message.headers:
        return None
    carried = {name: message.headers[name] for name in PROPAGATED if name in message.headers}
    return extract(carried)


def links_to(messages: Iterable[Message]) -> list[Link]:
    """Return links to the publishing of messages, at most `MAX_LINKS`."""
    links: list[Link] = []
    for message in messages:
        created = context_of(message)
        if created is not None and len(links) < MAX_LINKS:
            published = trace.get_current_span(created).get_span_context()
            if published.is_valid:
                links.append(Link(published, {"messaging.message.id": message.id}))
    return links


# -- calls of a queue ------------------------------------------------------------------------------

_Args = tuple[tuple[Any, ...], dict[str, Any]]


class _Call(NamedTuple):
    """How one method of a queue is traced."""

    begin: Callable[[Span, tuple[Any, ...], dict[str, Any]], _Args]
    end: Callable[[Span, Any], None]


class _TracedCalls:
    """Wraps the methods of one queue. A call that another traced call makes has no span."""

    def __init__(self, tracing: Tracing, destination: Destination) -> None:
        self._tracing = tracing
        self._destination = destination
        self._inside = context.create_key("penstock-inside")

    def wrapped(
        self, name: str, method: Callable[..., Any], operation: str, kind: SpanKind, call: _Call
    ) -> Callable[..., Any]:
        @wraps(method)
        def traced(*args: Any, **options: Any) -> Any:
            if context.get_value(self._inside):
                return method(*args, **options)
            with self._span(name, operation, kind) as span:
                args, options = call.begin(span, args, options)
                result = method(*args, **options)
                call.end(span, result)
                return result

        @wraps(method)
        async def traced_async(*args: Any, **options: Any) -> Any:
            if context.get_value(self._inside):
                return await method(*args, **options)
            with self._span(name, operation, kind) as span:
                args, options = call.begin(span, args, options)
                result = await method(*args, **options)
                call.end(span, result)
                return result

        return traced_async if iscoroutinefunction(method) else traced

    @contextmanager
    def _span(self, name: str, operation: str, kind: SpanKind) -> Iterator[Span]:
        with self._tracing.span(name, operation, kind, self._destination) as span:
            inside = context.attach(context.set_value(self._inside, True))
            carried: dict[str, str] = {}
            inject(carried)
            sent = CONTEXT_HEADERS.set(carried)  # of the HTTP requests of this call
            try:
                yield span
            finally:
                CONTEXT_HEADERS.reset(sent)
                context.detach(inside)


def _publish_one(span: Span, args: tuple[Any, ...], options: dict[str, Any]) -> _Args:
    return args, {**options, "headers": with_context(options.get("headers"))}


def _publish_many(span: Span, args: tuple[Any, ...], options: dict[str, Any]) -> _Args:
    messages, *others = args or (options.pop("messages"),)
    carrying = _carrying(messages)
    span.set_attribute("messaging.batch.message_count", len(carrying))
    return (carrying, *others), options


def _carrying(messages: Iterable[Any]) -> list[Any]:
    """Return messages that carry the current context. Invalid ones stay, to be refused."""
    if isinstance(messages, str | bytes | Mapping):
        return messages  # type: ignore[return-value]
    return [
        replace(one, headers=with_context(one.headers))
        if isinstance(one, NewMessage)
        else NewMessage(payload=one, headers=with_context(None))
        for one in messages
    ]


def _published(span: Span, result: Any) -> None:
    if isinstance(result, str):
        span.set_attribute("messaging.message.id", result)
    elif len(result) == 1:
        span.set_attribute("messaging.message.id", str(getattr(result[0], "id", result[0])))


def _receive(span: Span, args: tuple[Any, ...], options: dict[str, Any]) -> _Args:
    if isinstance(group := options.get("group"), str):
        span.set_attribute("messaging.consumer.group.name", group)
    return args, options


def _received(span: Span, result: Any) -> None:
    found = [] if result is None else [result] if isinstance(result, Message) else result
    messages = [one.message if isinstance(one, LeasedMessage) else one for one in found]
    span.set_attribute("messaging.batch.message_count", len(messages))
    if len(messages) == 1:
        span.set_attribute("messaging.message.id", messages[0].id)
    for link in links_to(messages):
        span.add_link(link.context, link.attributes)


def _settle(span: Span, args: tuple[Any, ...], options: dict[str, Any]) -> _Args:
    given = args[0] if args else None
    if isinstance(given, Iterable) and not isinstance(given, LeasedMessage | str):
        given = list(given)
        args = (given, *args[1:])
    leased = given if isinstance(given, list) else [given]
    span.set_attribute("messaging.batch.message_count", len(leased))
    messages = [one.message for one in leased if isinstance(one, LeasedMessage)]
    if len(messages) == 1:
        span.set_attribute("messaging.message.id", messages[0].id)
    for link in links_to(messages):
        span.add_link(link.context, link.attributes)
    if options.get("emit"):
        options = {**options, "emit": _carrying(options["emit"])}
    return args, options


def _settled(span: Span, result: Any) -> None:
    """Nothing is known of the result that was not known before."""


_SEND = _Call(_publish_many, _published)
_RECEIVE = _Call(_receive, _received)
_SETTLE = _Call(_settle, _settled)
_CALLS: dict[str, tuple[str, SpanKind, _Call]] = {
    "enqueue": ("send", SpanKind.PRODUCER, _Call(_publish_one, _published)),
    "enqueue_batch": ("send", SpanKind.PRODUCER, _SEND),
    "publish": ("send", SpanKind.PRODUCER, _SEND),
    "lease": ("receive", SpanKind.CLIENT, _RECEIVE),
    "lease_dead": ("receive", SpanKind.CLIENT, _RECEIVE),
    "dequeue": ("receive", SpanKind.CLIENT, _RECEIVE),
    "dequeue_batch": ("receive", SpanKind.CLIENT, _RECEIVE),
    "ack": ("settle", SpanKind.CLIENT, _SETTLE),
    "nack": ("settle", SpanKind.CLIENT, _SETTLE),
    "release": ("settle", SpanKind.CLIENT, _SETTLE),
}


# -- a worker --------------------------------------------------------------------------------------


class TracingMiddleware:
    """A span `process …` around the handler, current in it, linked to the publishing."""

    def __init__(self, tracing: Tracing, destination: Destination) -> None:
        self._tracing = tracing
        self._destination = destination
        self._lock = Lock()
        self._open: OrderedDict[str, tuple[Span, object]] = OrderedDict()  # by receipt

    def before(self, message: LeasedMessage) -> None:
        span = self._tracing.start(
            "process",
            "process",
            SpanKind.CONSUMER,
            self._destination,
            links=links_to([message.message]),
        )
        span.set_attributes(
            {
                "messaging.message.id": message.id,
                "messaging.message.body.size": len(message.payload),
                "messaging.consumer.group.name": message.group,
                "penstock.attempt": message.attempt,
            }
        )
        token = context.attach(trace.set_span_in_context(span))
        with self._lock:
            self._open[message.receipt] = span, token
            if len(self._open) > MAX_OPEN:  # handed back at a stop, or the lease was lost
                self._open.popitem(last=False)[1][0].end()

    def after(self, message: LeasedMessage) -> None:
        self._end(message, None)

    def failed(self, message: LeasedMessage, error: Exception) -> None:
        self._end(message, error)

    def _end(self, message: LeasedMessage, error: Exception | None) -> None:
        with self._lock:
            span, token = self._open.pop(message.receipt, (None, None))
        if span is None:
            return
        if error is not None:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()
        context.detach(token)  # type: ignore[arg-type]


# -- logs ------------------------------------------------------------------------------------------


class TraceIds(logging.Filter):
    """Adds `trace_id` and `span_id` of the current span to log records; "" outside of spans.

    Add it to a handler: its formatter can then use %(trace_id)s.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        current = trace.get_current_span().get_span_context()
        record.trace_id = f"{current.trace_id:032x}" if current.is_valid else ""
        record.span_id = f"{current.span_id:016x}" if current.is_valid else ""
        return True
