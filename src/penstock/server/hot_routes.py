"""Publish, lease and settle, answered on the connection itself.

Why: these three are nearly all of a broker's traffic, and most of what an ASGI request costs is
the task, the scope and the routing around it, not the work. Here a request becomes a call of the
broker, and the broker's future writes the answer. Only the plain form is known here; whatever is
unusual (a query, a browser's Origin, a body that is not JSON, a key not seen before) is left to the
app, which has the same routes and the same functions that read and answer.
"""

import logging
from asyncio import Future
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.broker import Caller, QueueName
from penstock.errors import KeyRefused, PenstockError, Unavailable
from penstock.server.access_log import log_request
from penstock.server.exchange import Exchange
from penstock.server.problems import Problem, problem_of
from penstock.server.protocol import PenstockProtocol
from penstock.server.rest import lease, publish, settle
from penstock.server.rest.message_in import JSON, read_messages
from penstock.server.service import Service, token_of

log = logging.getLogger("penstock.server")

PUBLISH_ROUTE = "/api/v1/namespaces/{namespace}/queues/{queue}/messages"
LEASE_ROUTE = "/api/v1/namespaces/{namespace}/queues/{queue}/lease"
SETTLE_ROUTE = "/api/v1/settle"

_MOST_REMEMBERED = 10_000
_JSON_TYPES = frozenset({JSON.encode(), b"application/json; charset=utf-8"})

Answer = Callable[[Any], bytes | Problem]  # from what the future has


class _Route(NamedTuple):
    """What a URL means."""

    template: str
    start: "Callable[[Caller, bytes], tuple[Future[Any], Answer]]"
    status: int
    is_lease: bool = False


class HotRoutes:
    """The three routes, for the connections of one server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._broker = service.broker
        self._routes: dict[bytes, _Route] = {}  # by URL

    def answer(self, connection: PenstockProtocol, exchange: Exchange) -> bool:
        """Answer it, now or when the broker did; False: it is the app's."""
        if exchange.method != b"POST":
            return False
        route = self._route_of(exchange.url)
        known = exchange.known
        if route is None or known.get(b"content-type") not in _JSON_TYPES or b"origin" in known:
            return False
        pending = _Pending(self._service, connection, exchange, route)
        try:
            peer = connection.client[0] if connection.client else None
            address = self._service.address_of(known, peer)
            try:
                caller = self._service.keys.caller_of(token_of(known), address)
            except KeyRefused:
                return False  # a new key perhaps: the app looks for it
            future, pending.answer = route.start(caller, exchange.body)
        except Exception as error:
            pending.fail(error)
            return True
        if future.done():
            pending.done(future)
        else:
            if route.is_lease:
                connection.wait_for(future)
            future.add_done_callback(pending.done)
        return True

    # -- routes ------------------------------------------------------------------------------------

    def _route_of(self, url: bytes) -> _Route | None:
        route = self._routes.get(url)
        if route is None:
            route = self._read_url(url)
            if route is not None:  # its URL has names of bounded length
                if len(self._routes) >= _MOST_REMEMBERED:
                    self._routes.clear()
                self._routes[url] = route
        return route

    def _read_url(self, url: bytes) -> _Route | None:
        if url == SETTLE_ROUTE.encode():
            return _Route(SETTLE_ROUTE, self._settle, settle.STATUS)
        path, _, query = url.partition(b"?")
        parts = path.split(b"/")
        if len(parts) != 8 or parts[:4] != [b"", b"api", b"v1", b"namespaces"]:
            return None
        try:
            namespace, queues, name, noun = (part.decode("ascii") for part in parts[4:])
            queue = QueueName.checked(namespace, name)
        except (UnicodeDecodeError, PenstockError):
            return None  # the app says what is wrong
        if queues != "queues":
            return None
        if noun == "messages" and not query:
            return _Route(
                PUBLISH_ROUTE,
                lambda caller, body: self._publish(caller, queue, body),
                publish.STATUS,
            )
        if noun == "lease" and query in (b"", b"payload=b64"):
            b64 = bool(query)
            return _Route(
                LEASE_ROUTE,
                lambda caller, body: self._lease(caller, queue, body, b64),
                lease.STATUS,
                is_lease=True,
            )
        return None

    def _publish(self, caller: Caller, queue: QueueName, body: bytes) -> tuple[Future[Any], Answer]:
        messages, many = read_messages(body)
        return (
            self._broker.publish(caller, queue, messages),
            lambda found: publish.answer(found, many=many),
        )

    def _lease(
        self, caller: Caller, queue: QueueName, body: bytes, b64: bool
    ) -> tuple[Future[Any], Answer]:
        return (
            lease.start(self._broker, caller, queue, body),
            lambda found: lease.answer(found, b64=b64),
        )

    def _settle(self, caller: Caller, body: bytes) -> tuple[Future[Any], Answer]:
        return self._broker.settle(caller, settle.read_settlements(body)), settle.answer


class _Pending:
    """A request that the broker is at work on."""

    __slots__ = ("_connection", "_exchange", "_route", "_service", "answer")

    def __init__(
        self, service: Service, connection: PenstockProtocol, exchange: Exchange, route: _Route
    ) -> None:
        self._service = service
        self._connection = connection
        self._exchange = exchange
        self._route = route
        self.answer: Answer

    def done(self, future: "Future[Any]") -> None:
        """Write the answer; if nobody is there to take it, give back what was leased."""
        error: BaseException | None
        if future.cancelled():
            error = Unavailable("the server is stopping: try again in a moment")
        else:
            error = future.exception()
        if self._connection.transport.is_closing():
            if error is None and self._route.is_lease:
                self._service.broker.give_back(future.result())
            return
        if error is not None:
            self.fail(error)
            return
        try:
            made = self.answer(future.result())
        except Exception as failure:
            if self._route.is_lease:
                self._service.broker.give_back(future.result())
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
        close = connection.is_last
        if isinstance(made, bytes):
            status = self._route.status
            data = connection.replies.json(status, made, request_id, close=close)
        else:
            status = made.status
            data = connection.replies.problem(made, request_id, close=close)
        service = self._service
        took_ns = service.broker.clock.monotonic_ns() - self._exchange.began_ns
        service.http_metrics.answered(self._route.template, "POST", status, took_ns)
        if service.settings.access_log or status >= 500:
            log_request("POST", self._route.template, status, took_ns, request_id)
        connection.reply(data)
