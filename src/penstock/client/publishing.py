"""Requests that publish. Dedup ids make retries safe: a message is published once."""

import base64
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from penstock.checking import Time, check_time
from penstock.client.request import JSON, Reply, Request, post
from penstock.model import NewMessage, Payload, Published
from penstock.queue.dedup import CLIENT_PREFIX
from penstock.queue.drafting import check, check_batch
from penstock.queue.settings import MOST_PAYLOAD_BYTES, QueueSettings
from penstock.queue.unique import HEADER

_LARGE_BYTES = 32 << 10
_CONTENT_TYPE = re.compile(r"[!-~]+/[!-~]+(; ?[!-~]+)*", re.ASCII)
_TEXTS = frozenset(["deliver_at", "key", "dedup_id", "content_type", "compression"])
_YEAR_10000_S = 253_402_300_799.0  # the last time that RFC 3339 can express

# The widest limits: the broker knows those of the queue, and compresses.
_ANY_QUEUE = QueueSettings(max_payload_bytes=MOST_PAYLOAD_BYTES, compression_min_bytes=1 << 30)


class DedupIds:
    """Generates dedup ids for messages that have none, so that a publish can be retried.

    The broker remembers them for `window_s`; 0: generate none.
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s

    def options_of(self, messages: Sequence[NewMessage]) -> list[dict[str, Any]]:
        """Return the options of messages, with generated dedup ids where they have none."""
        found = [_options(message) for message in messages]
        for options, id_ in zip(found, self.generate(messages), strict=True):
            if id_:
                options["dedup_id"] = id_
                options["dedup_window_s"] = self.window_s
        return found

    def generate(self, messages: Sequence[NewMessage]) -> list[str]:
        """Return a new dedup id for each message that has none; "" for the others."""
        own = f"{CLIENT_PREFIX}{secrets.token_hex(16)}:"
        return [
            f"{own}{index}" if message.dedup_id is None and self.window_s else ""
            for index, message in enumerate(messages)
        ]


def check_all(messages: Sequence[NewMessage], now_ns: int) -> None:
    """Raise what an embedded queue would raise for one of these messages."""
    for number, message in enumerate(messages):
        check(message, _ANY_QUEUE, now_ns, number)


def check_published(messages: Sequence[NewMessage], now_ns: int) -> None:
    """Raise what an embedded queue would raise for this batch."""
    check_batch(messages, _ANY_QUEUE)
    check_all(messages, now_ns)


def publish(
    path: str, messages: Sequence[NewMessage], ids: DedupIds, now_ns: int
) -> Request[list[Published]]:
    """Publish all or none. A message with a generated dedup id is never reported as duplicate."""
    check_published(messages, now_ns)
    options = ids.options_of(messages)
    if len(messages) == 1 and _fits_raw_body(messages[0], options[0]):
        return _publish_raw_body(path, messages[0], options[0])

    def read(reply: Reply) -> list[Published]:
        found = [_published_of(item) for item in reply.data["messages"]]
        return [seen(one, message) for one, message in zip(found, messages, strict=True)]

    bodies = [
        {"payload_b64": _base64(message), **option}
        for message, option in zip(messages, options, strict=True)
    ]
    return post(f"{path}/messages", read, bodies, idempotent=True)


def message_body(message: NewMessage) -> dict[str, Any]:
    """Return a checked message as JSON."""
    return {"payload_b64": _base64(message), **_options(message)}


def _options(message: NewMessage) -> dict[str, Any]:
    options = {
        "priority": message.priority,
        "delay_s": message.delay,
        "deliver_at": time_text("deliver_at", message.deliver_at),
        "ttl_s": message.ttl,
        "headers": None if message.headers is None else dict(message.headers),
        "key": message.key,
        "dedup_id": message.dedup_id,
        "dedup_window_s": message.dedup_window_s,
        "max_attempts": message.max_attempts,
        "content_type": message.content_type,
        "compression": message.compression,
        "after": None if message.after is None else list(message.after),
        "after_failed": message.after_failed,
        "tenant": message.tenant,
    }
    return {name: value for name, value in options.items() if value is not None}


def _base64(message: NewMessage) -> str:
    return base64.b64encode(payload_bytes(message.payload)).decode()


def _published_of(data: Mapping[str, Any]) -> Published:
    return Published(data["id"], data.get("duplicate", False))


def seen(published: Published, message: NewMessage) -> Published:
    """Return what the user sees: without a dedup id of their own there are no duplicates, unless
    another message stands for a unique one."""
    is_own = message.dedup_id is not None or HEADER in (message.headers or {})
    return published if is_own else Published(published.id)


# -- large payloads --------------------------------------------------------------------------------


def _fits_raw_body(message: NewMessage, options: dict[str, Any]) -> bool:
    """Can the payload be the body itself, without base64?

    Its options are then in the URL, where all is text and short. Message headers would lose the
    case of their names.
    """
    if len(payload_bytes(message.payload)) < _LARGE_BYTES or message.headers:
        return False
    content_type = options.get("content_type", "")
    return (
        isinstance(content_type, str)
        and (not content_type or _CONTENT_TYPE.fullmatch(content_type) is not None)
        and not content_type.lower().startswith(JSON)
        and all(
            type(value) is str if name in _TEXTS else type(value) in (int, float)
            for name, value in options.items()  # a URL does not tell 5 from "5"
        )
        and sum(len(str(value).encode(errors="replace")) for value in options.values()) < 2000
    )


def _publish_raw_body(
    path: str, message: NewMessage, options: dict[str, Any]
) -> Request[list[Published]]:
    content_type = options.pop("content_type", None)
    return Request(
        method="POST",
        path=f"{path}/messages",
        read=lambda reply: [seen(_published_of(reply.data), message)],
        query={name: str(value) for name, value in options.items()},
        headers={} if content_type is None else {"content-type": content_type},
        body=payload_bytes(message.payload),
        idempotent=True,
    )


def payload_bytes(payload: Payload) -> bytes:
    """Return a checked payload as bytes; text as UTF-8."""
    return payload.encode() if isinstance(payload, str) else bytes(cast(bytes, payload))


def time_text(name: str, time: Time | None) -> str | None:
    """Return a time as RFC 3339 text.

    >>> time_text("since", 1700000000.25)
    '2023-11-14T22:13:20.250000+00:00'
    """
    if time is None:
        return None
    unix_s = check_time(name, time, 0, _YEAR_10000_S)
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="microseconds")
