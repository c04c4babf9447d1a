"""Calls that publish. A publish that is sent twice is published once."""

import base64
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.checking import check_number
from penstock.client.call import Call, Reply, post
from penstock.client.reading import published_of
from penstock.errors import InvalidInput
from penstock.model import NewMessage, Payload, Published

_YEAR_10000_S = 253_402_300_799.0  # what RFC 3339 has room for


class OwnKeys:
    """Dedup ids for messages that have none of their own.

    They make a retry safe. The broker needs to know one only as long as the call is retried.
    """

    def __init__(self, known_for_s: float, *, token: Callable[[], str] | None = None) -> None:
        self.known_for_s = known_for_s
        self._token = token or (lambda: secrets.token_hex(16))

    def of_call(self) -> str:
        """What the keys of one call begin with."""
        return f"client:{self._token()}:"


def publish(path: str, messages: Sequence[NewMessage], keys: OwnKeys) -> Call[list[Published]]:
    """Publish all or none. Those that the call gave a key of its own are no duplicates."""
    own = keys.of_call()
    bodies = []
    for index, message in enumerate(messages):
        body = message_body(message)
        if message.dedup_id is None:
            body["dedup_id"] = f"{own}{index}"
            body["dedup_window_s"] = keys.known_for_s
        bodies.append(body)
    if not bodies:
        raise InvalidInput("nothing to publish: give at least one message")

    def read(reply: Reply) -> list[Published]:
        found = [published_of(item) for item in reply.data["messages"]]
        return [
            one if message.dedup_id is not None else Published(one.id)
            for one, message in zip(found, messages, strict=True)
        ]

    return post(f"{path}/messages", read, bodies, repeatable=True)


def message_body(message: NewMessage) -> dict[str, Any]:
    """A message as it travels."""
    body = {
        "payload_b64": base64.b64encode(payload_bytes(message.payload)).decode(),
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
    return {name: value for name, value in body.items() if value is not None}


def payload_bytes(payload: Payload) -> bytes:
    """Text is its UTF-8."""
    if isinstance(payload, str):
        try:
            return payload.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"the payload is text that has no UTF-8: {error}") from None
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidInput(f"a payload is bytes or text, not {type(payload).__name__}")
    return bytes(payload)


def time_text(name: str, unix_s: float | None) -> str | None:
    """A time of a request.

    >>> time_text("since", 1700000000.25)
    '2023-11-14T22:13:20.250000+00:00'
    """
    if unix_s is None:
        return None
    check_number(name, unix_s, 0, _YEAR_10000_S)
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="microseconds")
