"""Check new messages, and make drafts of them for the log."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from penstock.checking import Duration, check_seconds, check_time, check_whole, unix_ns
from penstock.codec import Draft
from penstock.codec.layout import MAX_PRIORITY
from penstock.errors import InvalidInput, PayloadTooLarge, TooLarge
from penstock.model import NS, NewMessage, Payload
from penstock.queue.after import check_after
from penstock.queue.attributes import (
    CONTENT_TYPE,
    MAX_ATTEMPTS,
    TENANT,
    UNIQUE,
)
from penstock.queue.compression import check_method, compress
from penstock.queue.dedup import dedup_attributes
from penstock.queue.gate import check_gate
from penstock.queue.settings import (
    MIN_DEDUP_WINDOW_S,
    MOST_ATTEMPTS,
    YEARS_S,
    QueueSettings,
)
from penstock.queue.unique import unique_attribute

MAX_HEADERS = 256
MAX_HEADERS_BYTES = 64 * 1024
MAX_KEY_BYTES = 1024
MAX_TENANT_BYTES = 1024
MAX_DEDUP_ID_BYTES = 1024
MAX_CONTENT_TYPE_BYTES = 256


def check_messages(messages: Sequence[NewMessage], settings: QueueSettings, now_ns: int) -> None:
    """Raise what publishing a batch to a queue with these settings would raise."""
    check_batch(messages, settings)
    for number, message in enumerate(messages):
        check(message, settings, now_ns, number)


def check_batch(messages: Sequence[NewMessage], settings: QueueSettings) -> None:
    most = settings.max_batch
    if not 0 < len(messages) <= most:
        raise InvalidInput(f"a batch has 1 to {most} messages, not {len(messages)}")


def check_message(message: object) -> None:
    if not isinstance(message, NewMessage):
        raise InvalidInput(
            f"publish takes NewMessage objects, not {type(message).__name__}: use enqueue_batch "
            f"for payloads"
        )


def draft_of(message: NewMessage, settings: QueueSettings, now_ns: int, number: int) -> Draft:
    """Check a message, and compress its payload. Return what is to be written."""
    draft = check(message, settings, now_ns, number)
    method = settings.compression if message.compression is None else message.compression
    if method == "none":
        return draft
    payload, compression = compress(
        draft.payload,
        method,
        level=settings.compression_level,
        min_bytes=settings.compression_min_bytes,
    )
    return draft._replace(payload=payload, compression=compression)


def check(message: NewMessage, settings: QueueSettings, now_ns: int, number: int = 0) -> Draft:
    """Check a message against a queue's settings. Return it as a draft, not compressed.

    Pure: no queue is needed. `number` is the message's index in its batch, for the error.
    """
    try:
        check_message(message)
        if message.after is not None or message.after_failed is not None:
            check_after(message.after, message.after_failed, number)
        deliver_at_ns = _deliver_at_ns(message, now_ns)
        ttl_s = settings.default_ttl_s if message.ttl is None else message.ttl
        expires_at_ns = 0
        if message.ttl is not None or ttl_s:
            expires_at_ns = max(now_ns, deliver_at_ns) + _duration_ns("ttl", ttl_s)
        headers = _headers(message.headers)
        check_gate(headers, message.after)
        draft = Draft(
            _payload(message.payload, settings.max_payload_bytes),
            priority=_priority(message.priority, settings.default_priority),
            expires_at_ns=expires_at_ns,
            deliver_at_ns=deliver_at_ns,
            key=_key(message.key),
            headers=headers,
            attributes=_attributes(message, headers, settings, now_ns),
        )
        method = settings.compression if message.compression is None else message.compression
        if method != "none":
            check_method(method, used=len(draft.payload) >= settings.compression_min_bytes)
        return draft
    except InvalidInput as error:
        if number == 0:
            raise
        raise type(error)(f"message {number} of the batch: {error}") from error


def _attributes(
    message: NewMessage,
    headers: Mapping[str, str] | None,
    settings: QueueSettings,
    now_ns: int,
) -> dict[int, bytes] | None:
    attributes: dict[int, bytes] = {}
    if message.dedup_id is not None:
        _text("dedup_id", message.dedup_id, MAX_DEDUP_ID_BYTES)
        window_s = message.dedup_window_s
        if window_s is None:
            window_s = settings.dedup_window_s
        window_s = check_seconds("dedup_window_s", window_s, MIN_DEDUP_WINDOW_S, YEARS_S)
        until_ns = now_ns + round(window_s * NS)
        is_delayed = message.delay is not None
        attributes.update(dedup_attributes(message.dedup_id, until_ns, is_delayed=is_delayed))
    if message.max_attempts is not None:
        attributes[MAX_ATTEMPTS] = _attempts(message.max_attempts)
    unique = unique_attribute(headers)
    if unique is not None:
        attributes[UNIQUE] = unique
    if message.content_type is not None:
        attributes[CONTENT_TYPE] = _text(
            "content_type", message.content_type, MAX_CONTENT_TYPE_BYTES
        )
    if message.tenant is not None:
        attributes[TENANT] = _text("tenant", message.tenant, MAX_TENANT_BYTES)
        if not message.tenant:
            raise InvalidInput("tenant is empty: give a name, or leave it out")
    return attributes or None


@lru_cache(maxsize=1024)
def content_type_attributes(content_type: str) -> Mapping[int, bytes]:
    """Return the attributes of a payload with a content type. Shared: do not change them."""
    return {CONTENT_TYPE: _text("content_type", content_type, MAX_CONTENT_TYPE_BYTES)}


# -- checking one value ----------------------------------------------------------------------------


def _payload(payload: Payload, max_bytes: int) -> bytes:
    if isinstance(payload, str):
        payload = _text("payload", payload, 4 * len(payload))
    elif not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidInput(
            f"a payload is bytes, str, dict or list, not {type(payload).__name__}: serialise it "
            f"first"
        )
    if len(payload) > max_bytes:
        raise PayloadTooLarge(
            f"the payload has {len(payload)} bytes; the maximum is {max_bytes} (max_payload_bytes)"
        )
    return bytes(payload)


def _priority(priority: int | None, default: int) -> int:
    if priority is None:
        return default
    return check_whole("priority", priority, 0, MAX_PRIORITY)


def _attempts(max_attempts: int) -> bytes:
    return check_whole("max_attempts", max_attempts, 1, MOST_ATTEMPTS).to_bytes(4, "little")


def _duration_ns(name: str, duration: Duration) -> int:
    return round(check_seconds(name, duration, 0, YEARS_S) * NS)


def _deliver_at_ns(message: NewMessage, now_ns: int) -> int:
    if message.delay is not None and message.deliver_at is not None:
        raise InvalidInput("give delay or deliver_at, not both")
    if message.delay is not None:
        delay_ns = _duration_ns("delay", message.delay)
        return now_ns + delay_ns if delay_ns else 0
    if message.deliver_at is not None:
        latest = now_ns / NS + YEARS_S
        return unix_ns(check_time("deliver_at", message.deliver_at, 0, latest))
    return 0


def _text(name: str, text: str, max_bytes: int) -> bytes:
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is text, not {type(text).__name__}")
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{name} is not valid text: {error.reason}") from None
    if len(data) > max_bytes:
        raise TooLarge(f"{name} has {len(data)} bytes; the maximum is {max_bytes}")
    return data


def _key(key: str | None) -> bytes | None:
    return None if key is None else _text("key", key, MAX_KEY_BYTES)


def _headers(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidInput(f"headers are a mapping of text to text, not {type(headers).__name__}")
    if len(headers) > MAX_HEADERS:
        raise TooLarge(f"{len(headers)} headers; the maximum is {MAX_HEADERS}")
    total = 0
    for name, value in headers.items():
        total += len(_text("a header name", name, MAX_HEADERS_BYTES))
        total += len(_text(f"header {name!r}", value, MAX_HEADERS_BYTES))
        if not name or any(bad in name for bad in "\r\n\0"):
            raise InvalidInput(f"header name {name!r} is empty or has a line break or NUL in it")
    if total > MAX_HEADERS_BYTES:
        raise TooLarge(f"the headers have {total} bytes; the maximum is {MAX_HEADERS_BYTES}")
    return dict(headers) or None
