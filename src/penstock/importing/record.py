"""What an import reads: a message of another queue, and where it comes from."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from penstock.errors import PenstockError

PICKLE = "application/x-python-pickle"
JSON = "application/json"
MAX_PROBLEMS = 1000  # kept to be shown

State = Literal["waiting", "done", "dead"]


class ImportFailed(PenstockError):
    """Messages of another queue could not be imported. Nothing was created."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A message of another queue.

    `done` was consumed there, `dead` is a dead letter, `waiting` is to be delivered. `failures`
    counts failed deliveries, `reason` is of the last one. `origin` names the message in errors.
    """

    origin: str
    payload: bytes
    timestamp_ns: int
    state: State = "waiting"
    priority: int | None = None  # None: as the new queue says
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None
    expires_ns: int | None = None
    deliver_ns: int | None = None
    failures: int = 0
    reason: str = ""


class Source(Protocol):
    """Another queue. Reading changes nothing in it; its own programs must not be running."""

    @property
    def name(self) -> str:
        """Return what it is and where, for messages to the user."""

    @property
    def max_attempts(self) -> int | None:
        """Return its limit of deliveries, or None if it has none on record."""

    @property
    def problems(self) -> list[str]:
        """Return what was damaged or left out, found so far."""

    def messages(self) -> Iterator[Imported]:
        """Yield its messages in order. Raise ImportFailed if it cannot be read."""


def content_type_of(payload: bytes) -> str | None:
    """Return the content type of a payload that Python programs wrote. Nothing is unpickled."""
    if payload[:1] == b"\x80" and payload[-1:] == b".":
        return PICKLE
    try:
        json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return JSON
