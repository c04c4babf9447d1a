"""Publish, lease and settle, answered on the connection itself.

Why: these three are nearly all of a broker's traffic, and most of what an ASGI request costs is
the task, the scope and the routing around it, not the work. Here a request becomes a call of the
broker, and the broker's future writes the answer. Only the plain form is known here; whatever is
unusual (a query, a browser's Origin, a body that is not JSON, a key not seen before) is left to the
app, which has the same routes and the same functions that read and answer.
"""

import logging
from asyncio import Future
from functools import partial
from typing import Any, NamedTuple

from penstock.broker import Caller, QueueName
from penstock.broker.held import SMALL_BYTES
from penstock.errors import KeyRefused, PenstockError, Unavailable
from penstock.server.access_log import log_request
from penstock.server.exchange import NOT_LOOKED_FOR, Exchange, Head
from penstock.server.off_loop import size_of_many
from penstock.server.problems import Problem, problem_of
from penstock.server.protocol import PenstockProtocol
from penstock.server.rest import lease, publish, settle
from penstock.server.rest.message_in import JSON, read_messages
from penstock.server.service import NOWHERE, Service, token_of

log = logging.getLogger("penstock.server")

PUBLISH_ROUTE = "/api/v1/namespaces/{namespace}/queues/{queue}/messages"
LEASE_ROUTE = "/api/v1/namespaces/{namespace}/queues/{queue}/lease"
SETTLE_ROUTE = "/api/v1/settle"

_ABOVE = [b"", b"api", b"v1", b"namespaces"]
_NO_QUEUE = QueueName("", "")
_JSON_TYPES = frozenset({JSON.encode(), b"application/json; charset=utf-8"})


class HotRoutes:
    """The three routes, for the connections of one server."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def answer(self, connection: PenstockProtocol, exchange: Exchange) -> bool:
        """Answer it, now or when the broker did; False: it is the app's."""
        head = exchange.head
        route: _Route | None = head.route
        if route is NOT_LOOKED_FOR:
            route = head.route = _route_of(head)
        if route is None:
            return False
        service = self._service
        peer = connection.client[0] if connection.client else NOWHERE
        if b"x-forwarded-for" in head.known:
            peer = service.address_of(head.known, peer)
        caller = service.keys.known(head.token, peer)
        if caller is None:
            return False  # a new key perhaps: the app looks for it
        route.kind(service, connection, exchange, route).start(caller)
        return True


def _route_of(head: Head) -> "_Route | None":
    """What a head asks for, if that is one of ours in its plain form."""
    if (
        head.method != b"POST"
        or head.known.get(b"content-type") not in _JSON_TYPES
        or b"origin" in head.known
    ):
        return None
    try:
        head.token = token_of(head.known)
    except KeyRefused:
        return None  # the app says what is wrong with it
    if head.url == SETTLE_ROUTE.encode():
        return _Route(SETTLE_ROUTE, _Settling, settle.STATUS, _NO_QUEUE)
    path, _, query = head.url.partition(b"?")
    parts = path.split(b"/")
    if len(parts) != 8 or parts[:4] != _ABOVE or parts[5] != b"queues":
        return None
    try:
        queue = QueueName.checked(parts[4].decode("ascii"), parts[6].decode("ascii"))
    except (UnicodeDecodeError, PenstockError):
        return None  # the app says what is wrong
    if parts[7] == b"messages" and not query:
        return _Route(PUBLISH_ROUTE, _Publishing, publish.STATUS, queue)
    if parts[7] == b"lease" and query in (b"", b"payload=b64"):
        return _Route(LEASE_ROUTE, _Leasing, lease.STATUS, queue, b64=bool(query))
    return None


class _Pending:
    """A request that the broker is at work on."""

    __slots__ = ("_connection", "_exchange", "_route", "_service")

    def __init__(
        self, service: Service, connection: PenstockProtocol, exchange: Exchange, route: "_Route"
    ) -> None:
        self._service = service
        self._connection = connection
        self._exchange = exchange
        self._route = route

    def start(self, caller: Caller) -> None:
        """Read the body, in a thread if it is large; then call the broker."""
        exchange = self._exchange
        if exchange.size > SMALL_BYTES:
            reading = self._service.off_loop.run(lambda: self.read(exchange.body))
            reading.add_done_callback(partial(self._was_read, caller))
            return
        try:
            asked = self.read(exchange.body)
        except Exception as error:
            self.fail(error)
            return
        self._ask(caller, asked)

    def _was_read(self, caller: Caller, reading: "Future[Any]") -> None:
        error = _error_of(reading)
        if error is not None:
            self.fail(error)
            return
        self._exchange.chunks.clear()  # it is read, and large
        self._ask(caller, reading.result())

    def _ask(self, caller: Caller, asked: Any) -> None:
        """Call the broker; answer now if it has, else when it has."""
        try:
            future = self.ask(caller, asked)
        except Exception as error:
            self.fail(error)
            return
        if future.done():
            self.done(future)
        else:
            self.wait(future)
            future.add_done_callback(self.done)

    def read(self, body: bytes) -> Any:
        """What a body asks for. Perhaps in a thread."""
        raise NotImplementedError

    def ask(self, caller: Caller, asked: Any) -> "Future[Any]":
        raise NotImplementedError

    def answer(self, result: Any) -> bytes | Problem:
        """The answer. Perhaps in a thread."""
        raise NotImplementedError

    def size(self, result: Any) -> int:
        """Return the size of the answer, at most."""
        raise NotImplementedError

    def wait(self, future: "Future[Any]") -> None:
        """It is not done yet."""

    def undo(self, result: Any) -> None:
        """Nobody is there to take the answer."""

    def done(self, future: "Future[Any]") -> None:
        """Write the answer."""
        error = _error_of(future)
        if error is not None:
            self.fail(error)
            return
        result = future.result()
        if self._connection.transport.is_closing():
            self.undo(result)
            return
        size = self.size(result)
        if size > SMALL_BYTES:
            self._service.held.bytes += size  # until it is written, which counts it as unsent
            making = self._service.off_loop.run(partial(self.answer, result))
            making.add_done_callback(partial(self._made, result, size))
            return
        try:
            made = self.answer(result)
        except Exception as failure:
            self.undo(result)
            self.fail(failure)
            return
        self._reply(made)

    def _made(self, result: Any, size: int, making: "Future[bytes | Problem]") -> None:
        self._service.held.bytes -= size
        error = _error_of(making)
        if error is not None or self._connection.transport.is_closing():
            self.undo(result)
        if error is not None:
            self.fail(error)
        elif not self._connection.transport.is_closing():
            self._reply(making.result())

    def fail(self, error: BaseException) -> None:
        if not isinstance(error, PenstockError):
            log.error(
                "request failed",
                exc_info=error,
                extra={"fields": {"request_id": self._exchange.request_id}},
            )
        if not self._connection.transport.is_closing():
            self._reply(problem_of(error))

    def _reply(self, made: bytes | Problem) -> None:
        connection, request_id = self._connection, self._exchange.request_id
        is_last = connection.is_last
        body = b""
        if isinstance(made, bytes):
            status = self._route.status
            if len(made) > SMALL_BYTES:
                body = made
                data = connection.replies.json_head(status, len(made), request_id, close=is_last)
            else:
                data = connection.replies.json(status, made, request_id, close=is_last)
        else:
            status = made.status
            data = connection.replies.problem(made, request_id, close=is_last)
        service = self._service
        took_ns = service.broker.clock.monotonic_ns() - self._exchange.began_ns
        service.http_metrics.answered(self._route.template, "POST", status, took_ns)
        if status >= 500 or service.settings.access_log:
            log_request("POST", self._route.template, status, took_ns, request_id)
        connection.reply(data, is_last=is_last, body=body)


def _error_of(future: "Future[Any]") -> BaseException | None:
    if future.cancelled():
        return Unavailable("the server is stopping: try again in a moment")
    return future.exception()


class _Publishing(_Pending):
    __slots__ = ("_many",)

    def read(self, body: bytes) -> Any:
        messages, self._many = read_messages(body)
        return messages

    def ask(self, caller: Caller, asked: Any) -> "Future[Any]":
        return self._service.broker.publish(caller, self._route.queue, asked)

    def answer(self, result: Any) -> bytes | Problem:
        return publish.answer(result, many=self._many)

    def size(self, result: Any) -> int:
        return size_of_many(len(result))


class _Leasing(_Pending):
    """What is leased for a connection that closes is given back."""

    __slots__ = ()

    def read(self, body: bytes) -> Any:
        return lease.read(body)

    def ask(self, caller: Caller, asked: Any) -> "Future[Any]":
        return lease.start(self._service.broker, caller, self._route.queue, asked)

    def answer(self, result: Any) -> bytes | Problem:
        return lease.answer(result, b64=self._route.b64)

    def size(self, result: Any) -> int:
        return lease.size(result)

    def wait(self, future: "Future[Any]") -> None:
        self._connection.wait_for(future)

    def undo(self, result: Any) -> None:
        self._service.broker.give_back(result)


class _Settling(_Pending):
    __slots__ = ()

    def read(self, body: bytes) -> Any:
        return settle.read_settlements(body)

    def ask(self, caller: Caller, asked: Any) -> "Future[Any]":
        return self._service.broker.settle(caller, asked)

    def answer(self, result: Any) -> bytes | Problem:
        return settle.answer(result)

    def size(self, result: Any) -> int:
        return size_of_many(len(result))


class _Route(NamedTuple):
    """What a head means."""

    template: str
    kind: type[_Pending]
    status: int
    queue: QueueName
    b64: bool = False
