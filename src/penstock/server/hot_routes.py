"""Publish, lease and settle, answered on the connection itself.

Why: these three are nearly all of a broker's traffic, and most of what an ASGI request costs is
the task, the scope and the routing around it, not the work. Here a request becomes a call of the
broker, and the broker's future writes the answer. Only the plain form is known here; whatever is
unusual (a query, a browser's Origin, a body that is not JSON, a key not seen before) is left to the
app, which has the same routes and the same functions that read and answer.
"""

import logging
from asyncio import Future
from typing import Any, NamedTuple

from penstock.broker import Caller, QueueName
from penstock.errors import KeyRefused, PenstockError, Unavailable
from penstock.server.access_log import log_request
from penstock.server.exchange import NOT_LOOKED_FOR, Exchange, Head
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
        route.kind(service, connection, exchange, route).start(caller, exchange.body)
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

    def start(self, caller: Caller, body: bytes) -> None:
        """Call the broker; answer now if it has, else when it has."""
        try:
            future = self.call(caller, body)
        except Exception as error:
            self.fail(error)
            return
        if future.done():
            self.done(future)
        else:
            self.wait(future)
            future.add_done_callback(self.done)

    def call(self, caller: Caller, body: bytes) -> "Future[Any]":
        raise NotImplementedError

    def answer(self, result: Any) -> bytes | Problem:
        raise NotImplementedError

    def wait(self, future: "Future[Any]") -> None:
        """It is not done yet."""

    def undo(self, result: Any) -> None:
        """Nobody is there to take the answer."""

    def done(self, future: "Future[Any]") -> None:
        """Write the answer."""
        error: BaseException | None
        if future.cancelled():
            error = Unavailable("the server is stopping: try again in a moment")
        else:
            error = future.exception()
        if error is not None:
            self.fail(error)
            return
        result = future.result()
        if self._connection.transport.is_closing():
            self.undo(result)
            return
        try:
            made = self.answer(result)
        except Exception as failure:
            self.undo(result)
            self.fail(failure)
            return
        self._reply(made)

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
        if isinstance(made, bytes):
            status = self._route.status
            data = connection.replies.json(status, made, request_id, close=is_last)
        else:
            status = made.status
            data = connection.replies.problem(made, request_id, close=is_last)
        service = self._service
        took_ns = service.broker.clock.monotonic_ns() - self._exchange.began_ns
        service.http_metrics.answered(self._route.template, "POST", status, took_ns)
        if status >= 500 or service.settings.access_log:
            log_request("POST", self._route.template, status, took_ns, request_id)
        connection.reply(data, is_last=is_last)


class _Publishing(_Pending):
    __slots__ = ("_many",)

    def call(self, caller: Caller, body: bytes) -> "Future[Any]":
        messages, self._many = read_messages(body)
        return self._service.broker.publish(caller, self._route.queue, messages)

    def answer(self, result: Any) -> bytes | Problem:
        return publish.answer(result, many=self._many)


class _Leasing(_Pending):
    """What is leased for a connection that closes is given back."""

    __slots__ = ()

    def call(self, caller: Caller, body: bytes) -> "Future[Any]":
        return lease.start(self._service.broker, caller, self._route.queue, body)

    def answer(self, result: Any) -> bytes | Problem:
        return lease.answer(result, b64=self._route.b64)

    def wait(self, future: "Future[Any]") -> None:
        self._connection.wait_for(future)

    def undo(self, result: Any) -> None:
        self._service.broker.give_back(result)


class _Settling(_Pending):
    __slots__ = ()

    def call(self, caller: Caller, body: bytes) -> "Future[Any]":
        return self._service.broker.settle(caller, settle.read_settlements(body))

    def answer(self, result: Any) -> bytes | Problem:
        return settle.answer(result)


class _Route(NamedTuple):
    """What a head means."""

    template: str
    kind: type[_Pending]
    status: int
    queue: QueueName
    b64: bool = False
