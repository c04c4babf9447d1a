"""Calls that publish. A publish that is sent twice is published once."""

import base64
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.checking import Time, check_seconds, check_time, check_whole
from penstock.client.call import JSON, Call, Reply, post
from penstock.client.reading import published_of
from penstock.codec.layout import MAX_PRIORITY
from penstock.errors import InvalidInput
from penstock.model import NewMessage, Payload, Published
from penstock.queue.drafting import check_message
from penstock.queue.settings import MOST_IN_BATCH, YEARS_S

_LARGE_BYTES = 32 << 10
_CONTENT_TYPE = re.compile(r"[!-~]+/[!-~]+(; ?[!-~]+)*", re.ASCII)
_TEXTS = frozenset(["deliver_at", "key", "dedup_id", "content_type", "compression"])
_YEAR_10000_S = 253_402_300_799.0  # what RFC 3339 has room for


class OwnKeys:
    """Dedup ids for messages that have none of their own.

    They make a retry safe. The broker needs to know one only as long as the call is retried.
    """

    def __init__(self, known_for_s: float) -> None:
        self._known_for_s = known_for_s

    def given_to(self, messages: Sequence[NewMessage]) -> list[dict[str, Any]]:
        """The options of messages, with keys of this call where they have none (and where a call
        is ever sent twice)."""
        own = f"client:{secrets.token_hex(16)}:"
        found = [_options(message) for message in messages]
        for index, (options, message) in enumerate(zip(found, messages, strict=True)):
            if message.dedup_id is None and self._known_for_s:
                options["dedup_id"] = f"{own}{index}"
                options["dedup_window_s"] = self._known_for_s
        return found


def publish(path: str, messages: Sequence[NewMessage], keys: OwnKeys) -> Call[list[Published]]:
    """Publish all or none. Those that the call gave a key of its own are no duplicates."""
    if not messages:
        raise InvalidInput("nothing to publish: give at least one message")
    if len(messages) > MOST_IN_BATCH:
        raise InvalidInput(f"a batch has at most {MOST_IN_BATCH} messages")
    for message in messages:
        check_message(message)
    options = keys.given_to(messages)
    if len(messages) == 1 and _goes_as_it_is(messages[0], options[0]):
        return _publish_as_it_is(path, messages[0], options[0])

    def read(reply: Reply) -> list[Published]:
        found = [published_of(item) for item in reply.data["messages"]]
        return [_seen(one, message) for one, message in zip(found, messages, strict=True)]

    bodies = [
        {"payload_b64": _base64(message), **option}
        for message, option in zip(messages, options, strict=True)
    ]
    return post(f"{path}/messages", read, bodies, repeatable=True)


def message_body(message: NewMessage) -> dict[str, Any]:
    """A message as it travels in JSON."""
    return {"payload_b64": _base64(message), **_options(message)}


def _options(message: NewMessage) -> dict[str, Any]:
    if message.priority is not None:
        check_whole("priority", message.priority, 0, MAX_PRIORITY)
    for name in ("delay", "ttl", "dedup_window_s"):
        if (seconds := getattr(message, name)) is not None:
            check_seconds(name, seconds, 0, YEARS_S)
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
    }
    return {name: value for name, value in options.items() if value is not None}


def _base64(message: NewMessage) -> str:
    return base64.b64encode(payload_bytes(message.payload)).decode()


def _seen(published: Published, message: NewMessage) -> Published:
    """As the user sees it: who gave no dedup id knows of no duplicates."""
    return published if message.dedup_id is not None else Published(published.id)


# -- large payloads --------------------------------------------------------------------------------


def _goes_as_it_is(message: NewMessage, options: dict[str, Any]) -> bool:
    """May the payload be the body itself, without base64? Its options are then in the URL, where
    all is text and short; headers would lose the case of their names."""
    if len(payload_bytes(message.payload)) < _LARGE_BYTES or message.headers:
        return False
    content_type = options.get("content_type", "")
    return (
        isinstance(content_type, str)
        and (not content_type or _CONTENT_TYPE.fullmatch(content_type) is not None)
        and not content_type.lower().startswith(JSON)
        and all(
            type(value) is str if name in _TEXTS else type(value) in (int, float)
            for name, value in options.items()  # in a URL the broker cannot tell 5 from "5"
        )
        and sum(len(str(value).encode(errors="replace")) for value in options.values()) < 2000
    )


def _publish_as_it_is(
    path: str, message: NewMessage, options: dict[str, Any]
) -> Call[list[Published]]:
    content_type = options.pop("content_type", None)
    return Call(
        method="POST",
        path=f"{path}/messages",
        read=lambda reply: [_seen(published_of(reply.data), message)],
        query={name: str(value) for name, value in options.items()},
        headers={} if content_type is None else {"content-type": content_type},
        body=payload_bytes(message.payload),
        repeatable=True,
    )


def payload_bytes(payload: Payload) -> bytes:
    """Text is its UTF-8."""
    if isinstance(payload, str):
        try:
            return payload.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"the payload is text that has no UTF-8: {error}") from None
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidInput(
            f"a payload is bytes, str, dict or list, not {type(payload).__name__}: serialise it "
            f"first"
        )
    return bytes(payload)


def time_text(name: str, time: Time | None) -> str | None:
    """A time of a request.

    >>> time_text("since", 1700000000.25)
    '2023-11-14T22:13:20.250000+00:00'
    """
    if time is None:
        return None
    unix_s = check_time(name, time, 0, _YEAR_10000_S)
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="microseconds")
