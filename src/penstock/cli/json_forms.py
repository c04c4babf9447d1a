"""The JSON forms that several commands print.

Keys may be added, never renamed or removed. A test compares them with docs/cli.md.
"""

import base64
from typing import Any

from penstock.model import NS, DeadLetter, HistoryEvent, LeasedMessage, Message, Stats

Json = dict[str, Any]


def message_json(message: Message) -> Json:
    """Return a message. Times are Unix seconds, or null."""
    try:
        payload, encoding = message.payload.decode(), "utf-8"
    except UnicodeDecodeError:
        payload, encoding = base64.b64encode(message.payload).decode(), "base64"
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


def leased_json(job: LeasedMessage) -> Json:
    """Return a leased message with its receipt."""
    return {
        **message_json(job.message),
        "receipt": job.receipt,
        "attempt": job.attempt,
        "deadline": job.deadline,
        "group": job.group,
    }


def dead_letter_json(letter: DeadLetter) -> Json:
    """Return a message with the reason why it is a dead letter."""
    return {
        **message_json(letter.message),
        "attempts": letter.attempts,
        "reason": letter.reason,
        "cause": letter.cause,
        "first_failure_at": letter.first_failure_ns / NS,
        "last_failure_at": letter.last_failure_ns / NS,
    }


def event_json(event: HistoryEvent) -> Json:
    """Return one event of a message's history."""
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


def stats_json(stats: Stats) -> Json:
    """Return the counts that are stored; not `damaged`, which counts what this process found."""
    document = {**stats._asdict(), **stats.storage._asdict()}
    del document["storage"], document["damaged"], document["groups"]
    document["groups"] = {name: group._asdict() for name, group in stats.groups.items()}
    return document
