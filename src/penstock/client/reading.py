"""The broker's JSON as the model's own types."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from penstock.client.remote import QueueDetails
from penstock.model import (
    NO_HEADERS,
    NS,
    DeadLetter,
    GroupStats,
    LeasedMessage,
    Message,
    Published,
    Receipt,
    Settler,
    Stats,
    Ticket,
)
from penstock.operations.answers import time_ns
from penstock.queue.settings import QueueSettings

Json = Mapping[str, Any]


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
