# cython: annotation_typing=False
"""Messages of a listing as JSON, without an object for each.

`message_out.listed` makes a struct, which takes 4 µs to make and to encode. Written like this, a
usual message takes 0.5 µs, which includes the check that its payload is JSON. If all messages of a
page are usual ones, a compiled function writes them in 0.3 µs each.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.model import Message
from penstock.operations import Row
from penstock.operations.answers import rfc3339, text_of_second
from penstock.server import strict_json
from penstock.server.call import encode
from penstock.server.off_loop import to_base64
from penstock.server.replies import JSON

if TYPE_CHECKING:
    _write: Callable[[Sequence[Row], str, Any, bytes, bytes, int, int], bytes | None] | None
else:
    try:
        from penstock.server._deliveries import rows_json as _write
    except ImportError:  # there was no compiler
        _write = None

_is_strict, _is_surely_strict = strict_json.is_strict, strict_json.is_surely_strict
_SCANNED_BYTES = -1 if _is_surely_strict is None else strict_json.SCANNED_BYTES
_JSON_PAYLOAD = f',"content_type":"{JSON}","payload":'.encode()
_NO_LIMIT = 1 << 62


def rows_json(
    rows: Sequence[Row], b64: bool, start: bytes, end: bytes, max_payload_bytes: int = _NO_LIMIT
) -> bytes:
    """Return what `message_out.listed` says of each row, with commas, between start and end.

    Return nothing if the payloads are larger than `max_payload_bytes`.
    """
    if _write is not None and not b64:
        made = _write(rows, JSON, _is_surely_strict, start, end, max_payload_bytes, _SCANNED_BYTES)
        if made is not None:
            return made
    return plain_rows_json(rows, b64, start, end, max_payload_bytes)


def plain_rows_json(
    rows: Sequence[Row], b64: bool, start: bytes, end: bytes, max_payload_bytes: int = _NO_LIMIT
) -> bytes:
    """Do as `rows_json`, for messages of any kind."""
    parts: list[bytes] = [start]
    comma, text, text_second = "", "", -1
    tail, tail_state, tail_attempts = b"", "", -1
    total = 0
    # Unpacked: compiled code takes ten times as long for one field of a named tuple by its index.
    for message, state, attempts in rows:
        id_, seq, payload, priority, published_ns, due, expires, key, headers, kind, most = message
        total += len(payload)
        if total > max_payload_bytes:
            return b""
        micros = (published_ns + 500) // 1000
        second = micros // 1_000_000
        micros -= second * 1_000_000
        if second != text_second:  # neighbours share it
            text, text_second = text_of_second(second), second
        head = (
            f'{comma}{{"id":"{id_}","seq":{seq},"priority":{priority}'
            f',"published_at":"{text}.{micros:06d}Z"'
        )
        comma = ","
        parts.append(head.encode())
        if (
            b64
            or kind != JSON
            or (due or expires or headers or most)
            or key is not None
            or not _is_json(payload)
        ):
            _add_options(parts, message, b64)
        else:
            parts.append(_JSON_PAYLOAD)
            parts.append(payload)
        if attempts != tail_attempts or state != tail_state:
            tail = f',"state":"{state}","attempts":{attempts}}}'.encode()
            tail_state, tail_attempts = state, attempts
        parts.append(tail)
    parts.append(end)
    return b"".join(parts)


def _is_json(payload: bytes) -> bool:
    if len(payload) <= _SCANNED_BYTES and _is_surely_strict(payload):  # type: ignore[misc]
        return True
    return _is_strict(payload)


def _add_options(parts: list[bytes], message: Message, b64: bool) -> None:
    """Add the fields that few messages have, and the payload."""
    _, _, payload, _, _, deliver_at_ns, expires_at_ns, key, headers, content_type, most = message
    if deliver_at_ns:
        parts.append(f',"deliver_at":"{rfc3339(deliver_at_ns)}"'.encode())
    if expires_at_ns:
        parts.append(f',"expires_at":"{rfc3339(expires_at_ns)}"'.encode())
    if key is not None:
        parts += b',"key":', encode(key)
    if headers:
        parts += b',"headers":', encode(dict(headers))
    if content_type is not None:
        parts += b',"content_type":', encode(content_type)
    if most:
        parts.append(b',"max_attempts":%d' % most)
    is_json = not b64 and content_type is not None and content_type.startswith(JSON)
    if is_json and _is_json(payload):
        parts += b',"payload":', payload
    else:
        parts += b',"payload_b64":', to_base64(payload, quote=b'"')
