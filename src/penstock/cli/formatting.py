"""How values are printed: as text for people, and as JSON for programs."""

import base64
from datetime import datetime
from typing import Any

from penstock.model import NS, DeadLetter, HistoryEvent, LeasedMessage, Message, Stats

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PREVIEW_BYTES = 400

Json = dict[str, Any]


# -- text ------------------------------------------------------------------------------------------


def number(value: int, noun: str = "", nouns: str = "") -> str:
    """Return a number with thousands separators, and its noun in singular or plural.

    >>> number(1234567), number(1, "segment"), number(0, "segment"), number(2, "reply", "replies")
    ('1,234,567', '1 segment', '0 segments', '2 replies')
    """
    if not noun:
        return f"{value:,}"
    return f"{value:,} {noun if value == 1 else nouns or f'{noun}s'}"


def size(count: float) -> str:
    """Return a number of bytes in the largest unit that leaves at least 1.

    >>> [size(count) for count in (0, 999, 16384, 64 << 20, 3 << 40)]
    ['0 B', '999 B', '16.0 KiB', '64.0 MiB', '3.0 TiB']
    """
    if count < 1024:
        return f"{count} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def duration(seconds: float) -> str:
    """Return a duration in one or two units.

    >>> [duration(seconds) for seconds in (0, 0.0123, 4.25, 95, 7300, 200_000, 4e7)]
    ['0 s', '12 ms', '4.2 s', '1 m 35 s', '2 h 1 m', '2 d 7 h', '462 d 23 h']
    """
    if seconds < 0.001:
        return "<1 ms" if seconds else "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    large, small = "d", "h"
    if whole < _UNITS_S["d"]:
        large, small = ("h", "m") if whole >= _UNITS_S["h"] else ("m", "s")
    return (
        f"{whole // _UNITS_S[large]} {large} {whole % _UNITS_S[large] // _UNITS_S[small]} {small}"
    )


def local_time(unix_s: float) -> str:
    """Return a date and time in the reader's time zone."""
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def time_of_day(unix_s: float) -> str:
    """Return a time in the reader's time zone, without its date."""
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%H:%M:%S")


def printable(text: str) -> str:
    r"""Return text on one line, with control characters escaped so that a terminal is safe.

    >>> printable("two\nlines, \x1b[31mred")
    'two\\nlines, \\x1b[31mred'
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def preview(payload: bytes) -> str:
    r"""Return the beginning of a payload: as text if it is UTF-8, else in hexadecimal.

    >>> preview(b"hello"), preview(b"\xff\x00"), preview(b"")
    ('hello', '2 bytes: ff 00', '')
    """
    start = payload[:_PREVIEW_BYTES]
    try:
        # The cut may go through a character: that does not make the payload binary.
        text = start.decode(errors="ignore" if len(payload) > _PREVIEW_BYTES else "strict")
    except UnicodeDecodeError:
        return f"{len(payload)} bytes: {start[:64].hex(' ')}"
    return printable(text)


# -- JSON: keys may be added, never renamed or removed. A test compares them with docs/cli.md. -----


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
