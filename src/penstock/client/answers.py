"""The broker's JSON as values of the model, and listings page by page."""

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Generic, NamedTuple

from penstock.client.calls import Exchanging
from penstock.client.request import Asked, Reply, Request, T, get
from penstock.model import (
    NO_HEADERS,
    NS,
    DeadLetter,
    GroupStats,
    Message,
    Stats,
    StorageStats,
)
from penstock.operations.answers import time_ns
from penstock.queue.settings import QueueSettings

Json = Mapping[str, Any]

ROWS = 500  # of a page


class QueueDetails(NamedTuple):
    """A queue of a broker."""

    namespace: str
    name: str
    created_at: float  # Unix seconds
    settings: QueueSettings


def message_of(data: Json) -> Message:
    return Message(
        id=data["id"],
        seq=data["seq"],
        payload=_payload(data),
        priority=data["priority"],
        published_ns=time_ns(data["published_at"]),
        deliver_at_ns=time_ns(data.get("deliver_at")),
        expires_at_ns=time_ns(data.get("expires_at")),
        key=data.get("key"),
        headers=data.get("headers") or NO_HEADERS,
        content_type=data.get("content_type"),
        max_attempts=data.get("max_attempts") or 0,
    )


def dead_letter_of(data: Json) -> DeadLetter:
    return DeadLetter(
        message=message_of(data),
        attempts=data["attempts"],
        reason=data["reason"],
        cause=data["cause"],
        first_failure_ns=time_ns(data["first_failure_at"]),
        last_failure_ns=time_ns(data["last_failure_at"]),
    )


def stats_of(data: Json) -> Stats:
    """Return a queue's counts; those that only a newer broker has are left out."""
    groups = {
        name: GroupStats(**{field: counts[field] for field in GroupStats._fields})
        for name, counts in data["groups"].items()
    }
    files = data.get("storage", data)  # a broker of 0.1 has no such group
    storage = StorageStats(**{field: files[field] for field in StorageStats._fields})
    data = {**data, "storage": storage, "groups": groups}
    return Stats(**{field: data[field] for field in Stats._fields})


def details_of(data: Json) -> QueueDetails:
    """Return a queue's details; settings that only a newer broker has are left out."""
    return QueueDetails(
        namespace=data["namespace"],
        name=data["name"],
        created_at=time_ns(data["created_at"]) / NS,
        settings=QueueSettings.of_stored(data["settings"]),
    )


def _payload(data: Json) -> bytes:
    encoded = data.get("payload_b64")
    if encoded is not None:
        return base64.b64decode(encoded)
    return json.dumps(data["payload"], ensure_ascii=False, separators=(",", ":")).encode()


# -- listings --------------------------------------------------------------------------------------


class Page(NamedTuple, Generic[T]):
    """Some rows of a listing, and the request for the next ones."""

    rows: list[T]
    next: "Asked[Page[T]] | None"


def first_page(
    path: str, name: str, read: Callable[[Any], T], query: dict[str, Any]
) -> "Request[Page[T]]":
    """Return the request for a listing's first page. `name` is the answer's field with the rows."""

    def page(cursor: str | None) -> "Request[Page[T]]":
        def read_page(reply: Reply) -> "Page[T]":
            following = reply.data.get("cursor")
            rows = [read(item) for item in reply.data[name]]
            return Page(rows, None if following is None else page(following))

        return get(path, read_page, {**query, "limit": ROWS, "cursor": cursor})

    return page(None)


async def all_rows(exchange: Exchanging, request: Asked[Page[T]]) -> AsyncIterator[T]:
    """Yield the rows of a listing, page by page."""
    following: Asked[Page[T]] | None = request
    while following is not None:
        page = await exchange.do(following)
        for row in page.rows:
            yield row
        following = page.next
