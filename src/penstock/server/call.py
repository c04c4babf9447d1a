# cython: annotation_typing=False
"""One request and its reply.

A handler is a function of a call. It returns an answer, a coroutine that returns one, or LATER if
it called `when_done` (wait for the broker) or `with_body` (read the body first). Most calls need no
task. An answer is a struct, bytes of JSON, a `Reply`, a `Problem`, or None, which is status 204.
"""

import logging
from asyncio import Future, Task
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.broker import Broker, Caller, QueueName, Verb, check_name
from penstock.broker.limits import SMALL_BYTES
from penstock.broker.store import Publishable, payload_bytes
from penstock.errors import PenstockError
from penstock.model import LeasedMessage, Published
from penstock.server import cors, strict_json
from penstock.server.coroutines import error_of, rest_of
from penstock.server.off_loop import size_of_many
from penstock.server.problems import NotJson, Problem, in_format_of, problem_of
from penstock.server.replies import JSON, Headers, Reply, reply_of
from penstock.server.rest.query import NO_QUERY, Query, query_of
from penstock.server.routes import NO_TARGET, Route, Target

if TYPE_CHECKING:
    from penstock.server.connection import Connection
    from penstock.server.service import Service

log = logging.getLogger("penstock.server")
_T = TypeVar("_T")
encode = msgspec.json.Encoder().encode
_SURELY_SMALL_BYTES = SMALL_BYTES // 2  # of one payload: its answer is less than SMALL_BYTES


class Later:
    """The type of LATER."""


LATER = Later()
Answer = msgspec.Struct | Reply | Problem | bytes | None | Later


def _size_of_leased(leased: list[LeasedMessage]) -> int:
    if len(leased) == 1 and len(leased[0][0][2]) < _SURELY_SMALL_BYTES:
        return 0
    return size_of_many(len(leased), payload_bytes(leased))


class Call:
    """A request, from its head until its reply is sent."""

    __slots__ = (
        "_body",
        "_make",
        "_size_of",
        "_undo",
        "began_ns",
        "caller",
        "connection",
        "headers",
        "keep_alive",
        "method",
        "query",
        "query_string",
        "repeated",
        "request_id",
        "service",
        "size",
        "target",
        "url",
    )

    caller: Caller
    query: Query
    target: Target

    def __init__(
        self,
        connection: "Connection",
        service: "Service",
        method: str,
        url: bytes,
        headers: dict[bytes, bytes],
        repeated: list[tuple[bytes, bytes]],
        keep_alive: bool,
    ) -> None:
        self.connection = connection
        self.service = service
        self.method = method
        self.url = url
        self.headers = headers  # by name; the last one of a repeated header
        self.repeated = repeated  # the other ones
        self.keep_alive = keep_alive
        self.target = NO_TARGET
        self._body: bytes | bytearray = b""
        self.size = 0  # bytes of the body so far
        self.began_ns = 0  # when its handler was started
        self.request_id = b""

    # -- the request -------------------------------------------------------------------------------

    @property
    def broker(self) -> Broker:
        return self.service.broker

    def add(self, part: bytes) -> None:
        """Add a part of the body. Parts are joined: an object for each costs more than a byte."""
        if not self.size:
            self._body = part
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += part
        self.size += len(part)

    @property
    def body(self) -> bytes:
        return self.whole_body()

    def whole_body(self) -> bytes:
        """Return the body. A method, because that is faster in compiled code."""
        if not isinstance(self._body, bytes):
            self._body = bytes(self._body)
        return self._body

    @property
    def header_list(self) -> list[tuple[bytes, bytes]]:
        """Return all headers; repeated ones in their order."""
        return [*self.repeated, *self.headers.items()]

    @property
    def content_type(self) -> str | None:
        found = self.headers.get(b"content-type")
        return None if found is None else found.decode("latin-1")

    @property
    def queue(self) -> QueueName:
        """Return the queue that the path names."""
        return self.target.queue()

    @property
    def namespace(self) -> str:
        return check_name("namespace", self.target.params["namespace"])

    @property
    def group(self) -> str:
        return check_name("group", self.target.params["group"])

    def path(self, name: str) -> str:
        """Return a part of the path, as it was sent."""
        return self.target.params[name]

    async def read(self, kind: type[_T], default: _T | None = None) -> _T:
        """Return the decoded JSON body; `default` if the body is empty and there is one."""
        body = self.body
        if not body and default is not None:
            return default
        require_json(self)
        decode = partial(strict_json.decode, body, _decoder(kind))
        return await self.service.off_loop.run_if_large(len(body), decode)

    # -- from the request to an answer -------------------------------------------------------------

    def start(self) -> None:
        """Find the route and the caller, and run the handler."""
        service, headers = self.service, self.headers
        self.began_ns = service.monotonic_ns()
        self.request_id = service.request_id(headers.get(b"x-request-id"))
        try:
            if b"origin" in headers or self.method == "OPTIONS":
                granted = cors.preflight(service.settings, self.method, headers)
                if granted is not None:
                    self._send(Reply(b"", 204), granted)
                    return
                needs_key = service.keys.required
                cors.refuse_foreign_change(
                    service.settings, self.method, headers, needs_key=needs_key
                )
            self.target, self.query_string = self.connection.routes.find(self.method, self.url)
            if self.target.route.needs_key:
                peer = self.connection.peer
                caller = service.known_caller(headers, self.query_string, peer)
                if caller is None:
                    self._drive(self._admit())
                    return
                self.caller = caller
            made = self._run()
        except Exception as error:
            self.fail(error)
            return
        self._take(made)

    async def _admit(self) -> Any:
        """Check a key that is not in memory, or was not checked recently, and run the handler."""
        service = self.service
        self.caller = await service.admit(self.headers, self.query_string, self.connection.peer)
        return self._run()

    def _run(self) -> Any:
        route = self.target.route
        if route.parameters is not None:
            query = self.query_string
            self.query = query_of(query, route.parameters) if query else NO_QUERY
        if route.is_large:
            return self._run_large(route)
        return route.handler(self)

    def _run_large(self, route: Route) -> Any:
        """Run a handler whose answer may be large: not many at a time."""
        service = self.service
        if service.large_answers.locked():
            self._drive(self._run_in_turn(route))
            return LATER
        service.held.check_room()
        made = route.handler(self)
        if type(made) is CoroutineType:
            self._drive(self._await_large(made))
            return LATER
        return made

    async def _run_in_turn(self, route: Route) -> Answer:
        async with self.service.large_answers:
            self.service.held.check_room()  # in this call's turn, not before
            made = route.handler(self)
            if type(made) is CoroutineType:
                made = await made
            return self._take_large(made)

    async def _await_large(self, made: Coroutine[Any, Any, Answer]) -> Answer:
        async with self.service.large_answers:  # it was free a moment ago
            return self._take_large(await made)

    def _take_large(self, made: Any) -> Answer:
        if isinstance(made, Reply):  # sent at once, and counted by the connection
            self.service.held.check_room_for(len(made.body))
        self._take(made)
        return LATER

    def _take(self, made: "Answer | Coroutine[Any, Any, Answer]") -> None:
        if made is LATER:
            return
        if type(made) is bytes:
            self._answer_json(made)
            return
        if type(made) is CoroutineType:
            self._drive(made)
        else:
            self._answer(made)  # type: ignore[arg-type]

    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine to its first wait. Only the rest of it becomes a task."""
        try:
            awaited = coroutine.send(None)
        except StopIteration as done:
            self._take(done.value)
        except Exception as error:
            self.fail(error)
        else:
            task = self.connection.loop.create_task(rest_of(coroutine, awaited))
            self.service.tasks.add(task)
            task.add_done_callback(self._task_done)

    def _task_done(self, task: "Task[Any]") -> None:
        self.service.tasks.discard(task)
        error = error_of(task)
        if error is not None:
            self.fail(error)
        else:
            self._take(task.result())

    def with_body(
        self,
        read: Callable[[bytes], _T],
        then: "Callable[[Call, _T], Any]",
        *,
        small_bytes: int = SMALL_BYTES,
    ) -> "Answer | Coroutine[Any, Any, Answer]":
        """Read the body, in a thread if it is large; then call `then`, which returns an answer."""
        body = self.body
        if len(body) <= small_bytes:
            made: Answer = then(self, read(body))
            return made
        reading = self.service.off_loop.run(partial(read, body))
        reading.add_done_callback(partial(self._was_read, then))
        return LATER

    def _was_read(self, then: "Callable[[Call, Any], Any]", reading: "Future[Any]") -> None:
        error = error_of(reading)
        if error is not None:
            self.fail(error)
            return
        self._body = b""  # free the memory of a large body
        try:
            made = then(self, reading.result())
        except Exception as failure:
            self.fail(failure)
            return
        self._take(made)

    def publish_one(
        self,
        message: Publishable,
        make: "Callable[[Call, Sequence[Published]], bytes]",
    ) -> "Answer":
        """Publish a message to the queue of the path, and answer with what `make` returns."""
        service = self.service
        found = service.broker.publish(self.caller, self.target.queue(), (message,), self)
        if type(found) is list:  # the usual case if the answer need not be durable
            return make(self, found)
        return self.when_done(found, make)

    def lease_one(self, make: "Callable[[Call, list[LeasedMessage]], Answer]") -> "Answer":
        """Lease a message of the queue of the path, and answer with what `make` returns."""
        broker, connection = self.service.broker, self.connection
        found = broker.lease_one(self.caller, self.target.queue(), self)
        if (
            type(found) is not list
            or len(found) != 1
            or len(found[0][0][2]) >= _SURELY_SMALL_BYTES
            or connection.is_closed
        ):
            return self.when_leased(found, make)
        try:  # the usual case
            made = make(self, found)
        except BaseException:
            broker.give_back(found)
            raise
        connection.confirm_delivery(found)
        return made

    def when_done(
        self,
        found: "Future[_T] | _T | None",
        make: "Callable[[Call, _T], Answer]",
        size_of: Callable[[_T], int] | None = None,
        undo: Callable[[_T], None] | None = None,
    ) -> Later:
        """Answer with what `make` returns for the broker's result.

        `found` is the result, a future of it, or None if the broker calls `succeed` or `fail`. A
        large answer (by `size_of`) is made in a thread. `undo` reverts a result that cannot be
        sent because the client disconnected.
        """
        self._make, self._size_of, self._undo = make, size_of, undo
        if found is None:
            return LATER
        if not isinstance(found, Future):
            self.succeed(found)
        elif found.done():
            self._future_done(found)
        else:
            found.add_done_callback(self._future_done)
        return LATER

    def when_leased(
        self,
        leasing: "Future[list[LeasedMessage]] | list[LeasedMessage] | None",
        make: "Callable[[Call, list[LeasedMessage]], Answer]",
    ) -> Later:
        """Answer with leased messages. Release them if they cannot be sent."""
        if not isinstance(leasing, Future) or leasing.done():
            return self.when_done(leasing, make, _size_of_leased, self.broker.give_back)
        self.connection.wait_for(leasing)
        leasing.add_done_callback(self._waited)
        return self.when_done(None, make, _size_of_leased, self.broker.give_back)

    def _waited(self, leasing: "Future[list[LeasedMessage]]") -> None:
        if error_of(leasing) is None and leasing.result():
            self._drive(self._deliver(leasing.result()))
        else:
            self._future_done(leasing)

    async def _deliver(self, leased: list[LeasedMessage]) -> Later:
        """Answer a long poll. Its key may have been revoked or changed while it waited."""
        service = self.service
        size = _size_of_leased(leased)
        service.held.bytes += size
        try:
            caller = await service.admit_now(self.headers, self.connection.peer)
            caller.check(Verb.CONSUME, self.target.namespace)
        except BaseException:
            self._take_back(leased)
            raise
        finally:
            service.held.bytes -= size
        self.succeed(leased)
        return LATER

    def _future_done(self, future: "Future[Any]") -> None:
        error = error_of(future)
        if error is not None:
            self.fail(error)
        else:
            self.succeed(future.result())

    def succeed(self, result: Any) -> None:
        """Answer with the broker's result."""
        if self._undo is not None and self.connection.is_closed:
            self._undo(result)
            return
        size = 0 if self._size_of is None else self._size_of(result)
        if size > SMALL_BYTES:
            service = self.service
            service.held.bytes += size  # until it is written; then it counts as unsent
            making = service.off_loop.run(partial(self._make, self, result))
            making.add_done_callback(partial(self._was_made, result, size))
            return
        try:
            made = self._make(self, result)
        except Exception as failure:
            self._take_back(result)
            self.fail(failure)
            return
        if self._undo is not None and result:
            self.connection.confirm_delivery(result)
        self._answer(made)

    def _was_made(self, result: Any, size: int, making: "Future[Any]") -> None:
        self.service.held.bytes -= size
        error = error_of(making)
        if error is not None or self.connection.is_closed:
            self._take_back(result)
        if error is not None:
            self.fail(error)
            return
        if self._undo is not None and not self.connection.is_closed:
            self.connection.confirm_delivery(result)
        self._answer(making.result())

    def _take_back(self, result: Any) -> None:
        if self._undo is not None:
            self._undo(result)

    # -- the reply ---------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Reply with an error."""
        if not isinstance(error, PenstockError):
            fields = {"request_id": self.request_id.decode()}
            log.error("request failed", exc_info=error, extra={"fields": fields})
        error_reply = self.target.route.error_reply
        if error_reply is not None:
            self._answer(error_reply(self, error))
        else:
            self._answer(in_format_of(self.url, problem_of(error)))

    def _answer(self, made: Answer) -> None:
        connection = self.connection
        if connection.is_closed:
            return
        if isinstance(made, Problem):
            self._send(reply_of(made, self.request_id))
        elif made is None:
            self._send(Reply(b"", 204))
        elif isinstance(made, Reply):
            self._send(made)
        else:
            try:
                body = made if isinstance(made, bytes) else encode(made)
            except Exception as error:
                self.fail(error)
                return
            self._answer_json(body)

    def _answer_json(self, body: bytes) -> None:
        connection = self.connection
        if connection.is_closed:
            return
        status = self.target.route.status
        if (
            not self.keep_alive
            or connection.is_draining
            or len(body) > SMALL_BYTES
            or self.method == "HEAD"
            or b"origin" in self.headers
        ):
            self._send(Reply(body, status))
            return
        self._count(status)
        connection.reply(self.service.replies.json(status, body, self.request_id))

    def _send(self, reply: Reply, more: Headers = ()) -> None:
        connection, service = self.connection, self.service
        if b"origin" in self.headers and not more:
            more = cors.grant(service.settings, self.headers)
        is_last = connection.is_last
        head = service.replies.head(reply, self.request_id, more, close=is_last)
        body = b"" if self.method == "HEAD" else reply.body
        self._count(reply.status)
        if is_last or len(body) > SMALL_BYTES:  # separately, to avoid a copy
            connection.reply_at_once(head, body, is_last=is_last)
        else:
            connection.reply(head + body)

    def _count(self, status: int) -> None:
        service, target = self.service, self.target
        took_ns = service.monotonic_ns() - self.began_ns
        times = target.times.get(status)
        if times is None:
            times = service.http_metrics.times(target.route.path, self.method, status)
            if target is not NO_TARGET:
                target.times[status] = times
        times.add(took_ns)
        if status >= 500 or service.reports_answers:
            self._report(status, took_ns)

    def _report(self, status: int, took_ns: int) -> None:
        service, target = self.service, self.target
        if service.tracing is not None:
            service.tracing.answered(self, status, took_ns)
        # A server that stops answers 503, and the client tries again: that is no failure.
        is_failure = status >= 500 and not (status == 503 and service.is_stopping)
        if is_failure or service.settings.access_log:
            # The route, not the path: a path may contain private data.
            fields = {
                "method": self.method,
                "route": target.route.path,
                "status": status,
                "took_s": round(took_ns / 1e9, 6),
                "request_id": self.request_id.decode(),
                "client": service.address_of(self.headers, self.connection.peer),
            }
            trace = self.headers.get(b"traceparent", b"").split(b"-")
            if len(trace) == 4:
                fields["trace_id"] = trace[1].decode("latin-1")
            level = logging.ERROR if is_failure else logging.INFO
            log.log(level, "request", extra={"fields": fields})


def require_json(call: Call) -> None:
    """Raise NotJson unless the content type of a request is JSON."""
    if call.headers.get(b"content-type") == b"application/json":
        return
    content_type = call.content_type or ""
    if media_type(content_type) != JSON:
        raise NotJson(f"the content type is {content_type!r}; send -H 'Content-Type: {JSON}'")


def media_type(content_type: str | None) -> str:
    """Return the type without its parameters."""
    return (content_type or "").partition(";")[0].strip().lower()


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[_T]) -> "msgspec.json.Decoder[_T]":
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]
