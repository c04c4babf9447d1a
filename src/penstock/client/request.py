"""One request to a broker and how its answer is read, without the HTTP library."""

import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.errors import InvalidInput

T = TypeVar("T")

JSON = "application/json"

# Headers that every request of the current context carries: those of a trace.
CONTEXT_HEADERS: ContextVar[Mapping[str, str]] = ContextVar("CONTEXT_HEADERS", default={})  # noqa: B039


class Reply(NamedTuple):
    """A good answer."""

    data: Any  # the body's JSON; None if it was empty; its bytes if the request is `raw`
    resent: bool = False  # the broker may have carried out an earlier attempt of the same request
    headers: Mapping[str, str] = {}
    status: int = 200


class Asked(Generic[T]):
    """A request of any transport, whose answer has the type `T`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Asked[T]):
    """A request over HTTP, and the function that makes a value of its answer."""

    method: str
    path: str  # below the broker's address; names in it are quoted
    read: Callable[[Reply], T]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    idempotent: bool  # may be sent again although the broker may have carried it out
    wait_s: float = 0.0  # how long the broker may wait before it answers, beyond the timeout
    also_read: int = 0  # an error status whose body `read` understands
    raw: bool = False  # the answer is bytes, not JSON


def get(
    path: str, read: Callable[[Reply], T], query: Mapping[str, Any] | None = None
) -> Request[T]:
    """Return a request that only reads."""
    return Request(method="GET", path=path, read=read, query=_texts(query), idempotent=True)


def post(
    path: str,
    read: Callable[[Reply], T],
    body: Mapping[str, Any] | list[Any] | None = None,
    *,
    method: str = "POST",
    query: Mapping[str, Any] | None = None,
    idempotent: bool = False,
    wait_s: float = 0.0,
    also_read: int = 0,
) -> Request[T]:
    """Return a request that changes something. Fields of the body that are None are left out."""
    return Request(
        method=method,
        path=path,
        read=read,
        query=_texts(query),
        headers={} if body is None else {"content-type": JSON},
        body=b"" if body is None else to_json(body),
        idempotent=idempotent,
        wait_s=wait_s,
        also_read=also_read,
    )


def to_json(value: Mapping[str, Any] | list[Any]) -> bytes:
    """Return a body as JSON; raise InvalidInput if a value cannot be encoded."""
    if isinstance(value, Mapping):
        value = {name: item for name, item in value.items() if item is not None}
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"this cannot be sent: {error}") from None


def nothing(reply: Reply) -> None:
    """Read an answer without content."""


def _texts(query: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (query or {}).items() if value is not None}
