"""A route of the native interface: one description, from which both the app and the OpenAPI
document are made."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request

from penstock.broker import Broker, Caller, QueueName, Verb, check_name
from penstock.server import strict_json
from penstock.server.problems import Problem
from penstock.server.refusals import NotJson
from penstock.server.rest.message_in import JSON, media_type
from penstock.server.rest.query import Query
from penstock.server.service import Service

_T = TypeVar("_T")

API = "/api/v1"
QUEUE = f"{API}/namespaces/{{namespace}}/queues/{{queue}}"


class Parameter(NamedTuple):
    """A parameter of a query string."""

    name: str
    description: str
    schema: Any = str  # a type that says what it may be
    required: bool = False


class Reply(NamedTuple):
    """An answer that is not simply a struct with the usual status."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Sequence[tuple[str, str]] = ()


Answer = msgspec.Struct | Reply | Problem | None  # None: 204


class Call:
    """A request, with what a handler needs of it."""

    def __init__(self, service: Service, request: Request, endpoint: "Endpoint") -> None:
        self.service = service
        self.request = request
        self.endpoint = endpoint
        self.caller: Caller
        self.query: Query

    async def admit(self) -> None:
        """Find out who calls, before anything that they sent is looked at."""
        if self.endpoint.verb is not None:
            self.caller = await self.service.caller_of(self.request)
        known = frozenset(parameter.name for parameter in self.endpoint.query)
        self.query = Query(self.request.scope["query_string"], known)

    @property
    def broker(self) -> Broker:
        return self.service.broker

    @property
    def queue(self) -> QueueName:
        """The queue that the path names."""
        return QueueName.checked(self.path("namespace"), self.path("queue"))

    @property
    def namespace(self) -> str:
        return check_name("namespace", self.path("namespace"))

    @property
    def group(self) -> str:
        return check_name("group", self.path("group"))

    def path(self, name: str) -> str:
        """A part of the path, as it was sent."""
        return str(self.request.path_params[name])

    async def body(self) -> bytes:
        return await self.request.body()

    async def read(self, kind: type[_T], default: _T | None = None) -> _T:
        """The JSON of the body. With a default, no body at all is good too."""
        body = await self.body()
        if not body and default is not None:
            return default
        content_type = self.request.headers.get("content-type", "")
        if media_type(content_type) != JSON:
            raise NotJson(f"the content type is {content_type!r}; send -H 'Content-Type: {JSON}'")
        decode = partial(strict_json.decode, body, _decoder(kind))
        return await self.service.off_loop.run_if_large(len(body), decode)


class Endpoint(NamedTuple):
    """A method of a path, and what it does."""

    method: str
    path: str
    handler: Callable[[Call], Awaitable[Answer]]
    verb: Verb | None  # that the caller's key must be good for; None: no key is needed
    answer: Any = None  # the type of the answer, or a tuple of some; None: there is none
    status: int = 200
    body: Any = None  # the type of the body; None: there is none
    body_optional: bool = False
    query: tuple[Parameter, ...] = ()
    also: tuple[int, ...] = ()  # further statuses, beside those that any route may answer
    is_large: bool = False  # its answer may be: few are made at a time, and not in the loop

    @property
    def summary(self) -> str:
        """What it does: the first line of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[_T]) -> "msgspec.json.Decoder[_T]":
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]
