"""One request to a broker and how its answer is read. Nothing here knows how it travels."""

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.errors import InvalidInput

T = TypeVar("T")

JSON = "application/json"


class Reply(NamedTuple):
    """A good answer."""

    data: Any  # the body's JSON; None where it was empty; its bytes where the call is `raw`
    resent: bool = False  # an earlier try of the same call may have been carried out
    headers: Mapping[str, str] = {}
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """What is asked, and how the answer becomes a value."""

    method: str
    path: str  # below the broker's address; names in it are quoted
    read: Callable[[Reply], T]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    # May be sent again though an earlier try may have been carried out: it makes no difference.
    repeatable: bool
    wait_s: float = 0.0  # the broker may take so long on purpose, before it answers
    also_read: int = 0  # a status beside the good ones whose body `read` understands
    raw: bool = False  # the answer is bytes, and not JSON


# Several calls that are one to the user: yields calls, is sent what they read, returns the result.
Story = Generator[Call[Any], Any, T]


def get(path: str, read: Callable[[Reply], T], query: Mapping[str, Any] | None = None) -> Call[T]:
    """A look: may always be repeated."""
    return Call(method="GET", path=path, read=read, query=_texts(query), repeatable=True)


def post(
    path: str,
    read: Callable[[Reply], T],
    body: Mapping[str, Any] | list[Any] | None = None,
    *,
    method: str = "POST",
    query: Mapping[str, Any] | None = None,
    repeatable: bool = False,
    wait_s: float = 0.0,
    also_read: int = 0,
) -> Call[T]:
    """A change. What is None in the body is left out."""
    return Call(
        method=method,
        path=path,
        read=read,
        query=_texts(query),
        headers={} if body is None else {"content-type": JSON},
        body=b"" if body is None else to_json(body),
        repeatable=repeatable,
        wait_s=wait_s,
        also_read=also_read,
    )


def to_json(value: Mapping[str, Any] | list[Any]) -> bytes:
    """What goes into a body; InvalidInput where a value has no place in JSON."""
    if isinstance(value, Mapping):
        value = {name: item for name, item in value.items() if item is not None}
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"this cannot be sent: {error}") from None


def nothing(reply: Reply) -> None:
    """Reads an answer that says no more than that it is done."""


def _texts(query: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (query or {}).items() if value is not None}
