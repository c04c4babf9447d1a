"""The JSON forms. Keys are only ever added; a test compares them with the page that lists them."""

import base64
from typing import Any

from penstock.model import NS, DeadLetter, HistoryEvent, Message

Json = dict[str, Any]


def message_json(message: Message) -> Json:
    """A message. Times are Unix seconds, null where there is none."""
    payload, encoding = _payload(message.payload)
    return {
        "id": message.id,
        "seq": message.seq,
        "payload": payload,
        "payload_encoding": encoding,
        "priority": message.priority,
        "published_at": message.published_at,
        "deliver_at": message.deliver_at,
        "expires_at": message.expires_at,
        "key": message.key,
        "headers": dict(message.headers),
        "content_type": message.content_type,
        "max_attempts": message.max_attempts or None,
    }


def dead_letter_json(letter: DeadLetter) -> Json:
    """A message, and how it died."""
    return {
        **message_json(letter.message),
        "attempts": letter.attempts,
        "reason": letter.reason,
        "cause": letter.cause,
        "first_failure_at": letter.first_failure_ns / NS,
        "last_failure_at": letter.last_failure_ns / NS,
    }


def event_json(event: HistoryEvent) -> Json:
    """One line of a message's history."""
    return {
        "event": event.event,
        "at": event.at,
        "group": event.group,
        "attempt": event.attempt or None,
        "reason": event.reason or None,
        "holder": event.holder or None,
        "retry_at": event.retry_at_ns / NS if event.retry_at_ns else None,
        "event_seq": event.event_seq or None,
    }


def _payload(payload: bytes) -> tuple[str, str]:
    """The payload as text, and how: as it is, or in base64."""
    try:
        return payload.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), "base64"
