"""What happens to every request that goes to the app: an id, counting, the log, and errors."""

import logging
from http import HTTPStatus

from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.server import cors
from penstock.server.access_log import log_request
from penstock.server.dialects.own_errors import as_said_at
from penstock.server.http_metrics import UNKNOWN_ROUTE
from penstock.server.problems import problem_of
from penstock.server.refusals import MethodNotAllowed, Refused
from penstock.server.replies import SAFETY_HEADERS
from penstock.server.service import Service

log = logging.getLogger("penstock.server")


class Edge:
    """Wraps the router. To Starlette's requests it is the app that they came to."""

    def __init__(self, router: Router, service: Service) -> None:
        self._app = self.router = router
        self._service = service
        self.state = State({"service": service})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "http":
            await _Request(self._app, self._service, scope, send).answer(receive)
        else:
            await self._app(scope, receive, send)


class _Request:
    """One request on its way through the app."""

    def __init__(self, app: ASGIApp, service: Service, scope: Scope, send: Send) -> None:
        self._app = app
        self._service = service
        self._scope = scope
        self._send = send
        self._headers = dict(scope["headers"])
        state = scope.setdefault("state", {})
        self._request_id = state.get("request_id") or service.request_ids.next()
        state["request_id"] = self._request_id
        self._began_ns = service.broker.clock.monotonic_ns()
        self._status = 0  # until the answer begins

    async def answer(self, receive: Receive) -> None:
        settings, method = self._service.settings, self._scope["method"]
        try:
            granted = cors.preflight(settings, method, self._headers)
            if granted is not None:
                await self._start(204, granted)
                return
            cors.refuse_foreign_change(settings, method, self._headers)
            await self._app(self._scope, receive, self._send_on)
        except ClientDisconnect:
            pass  # before its body was read: nothing was done, and nobody takes an answer
        except Exception as error:
            said = _in_our_words(error)
            if not isinstance(said, PenstockError):
                fields = {"request_id": self._request_id}
                log.error("request failed", exc_info=error, extra={"fields": fields})
            if self._status:
                raise  # the answer has begun: the connection is closed
            await self._fail(said)
        finally:
            if self._status:
                self._count()

    async def _send_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message = {
                **message,
                "headers": [*message.get("headers", ()), *self._always(message)],
            }
        await self._send(message)

    def _always(self, message: Message) -> cors.Headers:
        there = {name for name, _ in message.get("headers", ())}
        return [
            *(header for header in SAFETY_HEADERS if header[0] not in there),
            (b"x-request-id", self._request_id.encode()),
            *cors.grant(self._service.settings, self._headers),
        ]

    async def _start(self, status: int, headers: cors.Headers, body: bytes = b"") -> None:
        if status != 204:
            headers = [*headers, (b"content-length", str(len(body)).encode())]
        self._status = status
        headers = [*headers, *SAFETY_HEADERS, (b"x-request-id", self._request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _fail(self, error: Exception) -> None:
        problem = as_said_at(self._scope["raw_path"], problem_of(error))
        headers = [(b"content-type", problem.content_type.encode())]
        headers += [(name.encode(), value.encode()) for name, value in problem.headers.items()]
        headers += cors.grant(self._service.settings, self._headers)
        await self._start(problem.status, headers, problem.body(self._request_id))

    def _count(self) -> None:
        service, method = self._service, self._scope["method"]
        took_ns = service.broker.clock.monotonic_ns() - self._began_ns
        route = self._scope["state"].get("route", UNKNOWN_ROUTE)
        service.http_metrics.answered(route, method, self._status, took_ns)
        if service.settings.access_log or self._status >= 500:
            log_request(method, route, self._status, took_ns, self._request_id)


def _in_our_words(error: Exception) -> Exception:
    """Return our error for one of Starlette's: the route has no such method."""
    if not isinstance(error, HTTPException):
        return error
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"this path has only {allowed}", allowed)
    return Refused(str(error.detail))
