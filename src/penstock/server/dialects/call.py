"""What the dialects share: who calls, what was sent, and errors as `{"error": text}`."""

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker import Broker, Caller, Outcome, Settlement
from penstock.errors import PenstockError, ReceiptInvalid
from penstock.model import LeasedMessage
from penstock.server.dialects.json_bodies import Shape
from penstock.server.problems import problem_of
from penstock.server.service import Service, service_of

_T = TypeVar("_T")
_S = TypeVar("_S", bound=Struct)
_JSON = "application/json"
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


class Call:
    """A request, with what a handler needs of it."""

    def __init__(self, service: Service, caller: Caller, request: Request) -> None:
        self.service = service
        self.caller = caller
        self.request = request

    @property
    def broker(self) -> Broker:
        return self.service.broker

    def path(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])

    def count(self, name: str, default: _T, most: int) -> int | _T:
        """A count of the query string, at most `most`; `default` if it is none or not above 0."""
        text = self.request.query_params.get(name, "")
        if not _WHOLE.fullmatch(text) or int(text) <= 0:
            return default
        return min(int(text), most)

    async def read(self, shape: Shape[_S], default: _S | None = None) -> _S:
        """The JSON of the body, whatever its content type. With a default, it may be empty."""
        body = await self.request.body()
        if default is not None and not body.strip():
            return default
        return await self._decoded(shape.read, body)

    async def read_array(self, shape: Shape[_S]) -> list[_S]:
        """The same, where the body is an array."""
        return await self._decoded(shape.read_array, await self.request.body())

    async def _decoded(self, read: Callable[[bytes], _T], body: bytes) -> _T:
        return await self.service.off_loop.run_if_large(len(body), partial(read, body))

    async def settle(self, settlement: Settlement) -> None:
        """ReceiptInvalid unless this very call settled it: who comes second is told so."""
        (outcome,) = await self.broker.settle(self.caller, [settlement])
        _check(outcome)


def _check(outcome: Outcome) -> None:
    if outcome.status == "repeated":
        raise ReceiptInvalid("this lease was acked before: a lease settles once")
    if not outcome.ok:
        raise ReceiptInvalid(outcome.detail)


Handler = Callable[[Call], Awaitable[Response]]


def route(method: str, path: str, handler: Handler, *, needs_key: bool = True) -> Route:
    """A route of a dialect."""

    async def answer(request: Request) -> Response:
        request.state.route = path
        service = service_of(request)
        try:
            caller = await service.caller_of(request) if needs_key else _NOBODY
            return await handler(Call(service, caller, request))
        except PenstockError as error:
            return _error(error)

    return Route(path, answer, methods=[method])


def answer(value: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(value), status, media_type=_JSON)


async def answer_leased(
    call: Call, leased: Sequence[LeasedMessage], make: Callable[[], Any]
) -> Response:
    """A JSON answer with messages; made in a thread if they are large."""
    return await call.service.answer_lease(call.request, leased, lambda: answer(make()))


def nothing() -> Response:
    return Response(status_code=204)


def _error(error: Exception) -> Response:
    problem = problem_of(error)._replace(is_plain=True)
    return Response(problem.body(), problem.status, dict(problem.headers), problem.content_type)


_NOBODY = Caller("nobody", verbs=frozenset(), namespaces=frozenset())
