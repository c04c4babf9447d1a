"""The broker's JSON as the model's own types."""

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from penstock.model import (
    NO_HEADERS,
    NS,
    DeadLetter,
    GroupStats,
    HistoryEvent,
    LeasedMessage,
    Message,
    Published,
    Receipt,
    RetryInfo,
    Settler,
    Stats,
    Ticket,
    Why,
)

Json = Mapping[str, Any]


def time_ns(text: str | None) -> int:
    """A time of an answer; 0 where there is none.

    >>> time_ns("2023-11-14T22:13:20.250001Z")
    1700000000250001000
    """
    if text is None:
        return 0
    time = datetime.fromisoformat(text)
    return int(time.replace(microsecond=0).timestamp()) * NS + time.microsecond * 1000


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


def leased_of(data: Json, group: str, settler: Settler) -> LeasedMessage:
    receipt = Receipt.unpack(data["receipt"])
    ticket = Ticket(
        identity=receipt.identity,
        group=receipt.group,
        group_name=group,
        attempt=receipt.attempt,
        nonce=receipt.nonce,
        deadline_ns=time_ns(data["deadline"]),
        settler=settler,
    )
    return LeasedMessage(message_of(data), ticket)


def dead_letter_of(data: Json) -> DeadLetter:
    return DeadLetter(
        message=message_of(data),
        attempts=data["attempts"],
        reason=data["reason"],
        cause=data["cause"],
        first_failure_ns=time_ns(data["first_failure_at"]),
        last_failure_ns=time_ns(data["last_failure_at"]),
    )


def published_of(data: Json) -> Published:
    return Published(data["id"], data.get("duplicate", False))


def stats_of(data: Json) -> Stats:
    """Counts that a newer broker has beyond ours are left out."""
    groups = {
        name: GroupStats(**{field: counts[field] for field in GroupStats._fields})
        for name, counts in data["groups"].items()
    }
    return Stats(**{**{field: data[field] for field in Stats._fields}, "groups": groups})


def why_of(data: Json) -> Why:
    return Why(**data)


def retry_info_of(data: Json) -> RetryInfo:
    return RetryInfo(
        id=data["id"],
        group=data["group"],
        state=data["state"],
        attempts=data["attempts"],
        max_attempts=data["max_attempts"],
        next_attempt_ns=time_ns(data.get("next_attempt_at")),
        reason=data["reason"],
        first_failure_ns=time_ns(data.get("first_failure_at")),
        last_failure_ns=time_ns(data.get("last_failure_at")),
    )


def event_of(data: Json) -> HistoryEvent:
    return HistoryEvent(
        event=data["event"],
        at_ns=time_ns(data["at"]),
        group=data.get("group"),
        attempt=data.get("attempt") or 0,
        reason=data.get("reason") or "",
        holder=data.get("holder") or "",
        retry_at_ns=time_ns(data.get("retry_at")),
        event_seq=data.get("event_seq") or 0,
    )


def _payload(data: Json) -> bytes:
    encoded = data.get("payload_b64")
    if encoded is not None:
        return base64.b64decode(encoded)
    return json.dumps(data["payload"], ensure_ascii=False, separators=(",", ":")).encode()
