"""One entry to bytes, and many payloads at once; refuses what the format cannot hold."""

import struct
from collections.abc import Mapping

from penstock.codec.buffer_py import (
    Buffer,
    check_limits,
    check_seq,
    check_timestamp,
    crc32c,
    flat,
)
from penstock.codec.entry import Draft
from penstock.codec.layout import (
    CRC_BYTES,
    DATA,
    DEFAULT_MAX_ENTRY_BYTES,
    DEFAULT_PRIORITY,
    ENTRY_OVERHEAD_BYTES,
    FIRST_EVENT,
    FIXED_BYTES,
    HAS_ATTRIBUTES,
    HAS_DELIVER_AT,
    HAS_EXPIRES_AT,
    HAS_HEADERS,
    HAS_KEY,
    HAS_PRIORITY,
    IS_COMPRESSED,
    LAST_EVENT,
    LENGTH_BYTES,
    MAX_ATTRIBUTES,
    MAX_BATCH_BYTES,
    MAX_FIELD_BYTES,
    MAX_HEADERS,
    MAX_PRIORITY,
    MAX_SEQ,
    MAX_TIMESTAMP_NS,
    TOMBSTONE,
)
from penstock.errors import InvalidInput, TooLarge

_FIXED = struct.Struct("<IBBQQ")  # length, type, flags, seq, timestamp
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_TWO_OFFSETS = struct.Struct("<ii")


def pack(seq: int, timestamp_ns: int, draft: Draft) -> bytes:
    """Return the bytes of one entry.

    >>> pack(1, 0, Draft(b"hello")).hex(" ", -4)[:26]
    '1b000000 01000100 00000000'
    """
    check_seq(seq)
    check_timestamp(timestamp_ns)
    flags, body = body_of(draft)
    check_batch_bytes(FIXED_BYTES + len(body) + CRC_BYTES)
    return seal(seq, timestamp_ns, draft.type, flags, body)


def check_batch_bytes(size: int) -> None:
    if size > MAX_BATCH_BYTES:
        raise TooLarge(f"a batch of {size} bytes; the maximum is {MAX_BATCH_BYTES}")


def seal(seq: int, timestamp_ns: int, type_: int, flags: int, body: bytes) -> bytes:
    """Return the whole entry around its body, checksum last."""
    length = FIXED_BYTES - LENGTH_BYTES + len(body) + CRC_BYTES
    head = _FIXED.pack(length, type_, flags, seq, timestamp_ns) + body
    return head + _U32.pack(crc32c(head))


def body_of(draft: Draft) -> tuple[int, bytes]:
    """Return the flags, and the optional fields followed by the payload."""
    if draft.type not in (DATA, TOMBSTONE) and not FIRST_EVENT <= draft.type <= LAST_EVENT:
        raise InvalidInput(f"entry type {draft.type} cannot be written by a caller")
    flags = 0
    parts = []
    if draft.expires_at_ns:
        flags |= HAS_EXPIRES_AT
        parts.append(_time_field("expires_at", draft.expires_at_ns))
    if draft.headers:
        flags |= HAS_HEADERS
        parts.append(_headers_field(draft.headers))
    if draft.compression:
        if not 0 < draft.compression <= 0xFF:
            raise InvalidInput(f"compression {draft.compression} is not a codec number (1 to 255)")
        flags |= IS_COMPRESSED
        parts.append(bytes([draft.compression]))
    if draft.priority != DEFAULT_PRIORITY:
        if not 0 <= draft.priority <= MAX_PRIORITY:
            raise InvalidInput(f"priority {draft.priority} is not between 0 and 9")
        flags |= HAS_PRIORITY
        parts.append(bytes([draft.priority]))
    if draft.deliver_at_ns:
        flags |= HAS_DELIVER_AT
        parts.append(_time_field("deliver_at", draft.deliver_at_ns))
    if draft.key is not None:
        flags |= HAS_KEY
        parts.append(_sized("key", _bytes_of(draft.key)))
    if draft.attributes:
        flags |= HAS_ATTRIBUTES
        parts.append(_attributes_field(draft.attributes))
    parts.append(_bytes_of(draft.payload))
    return flags, b"".join(parts)


def _bytes_of(value: Buffer) -> bytes:
    """Return a bytes-like object as bytes. `bytes(value)` alone would accept a number as a size."""
    return value if isinstance(value, bytes) else bytes(flat(value))


def _time_field(name: str, value_ns: int) -> bytes:
    if not 0 <= value_ns <= MAX_TIMESTAMP_NS:
        raise InvalidInput(f"{name} {value_ns} ns is not between 1970 and 2262")
    return _U64.pack(value_ns)


def _sized(name: str, value: bytes) -> bytes:
    if len(value) > MAX_FIELD_BYTES:
        raise TooLarge(f"{name} has {len(value)} bytes; the maximum is {MAX_FIELD_BYTES}")
    return _U16.pack(len(value)) + value


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{name} is not valid text: {error}") from None


def _headers_field(headers: Mapping[str, str]) -> bytes:
    pairs = dict(headers.items())  # counted and written from one copy: a mapping may change
    if len(pairs) > MAX_HEADERS:
        raise TooLarge(f"{len(pairs)} headers; the maximum is {MAX_HEADERS}")
    parts = [_U16.pack(len(pairs))]
    for name, value in pairs.items():
        parts.append(_sized("header name", _utf8("header name", name)))
        parts.append(_sized("header value", _utf8("header value", value)))
    return b"".join(parts)


def _attributes_field(attributes: Mapping[int, bytes]) -> bytes:
    pairs = dict(attributes.items())
    if len(pairs) > MAX_ATTRIBUTES:
        raise TooLarge(f"{len(pairs)} attributes; the maximum is {MAX_ATTRIBUTES}")
    parts = [bytes([len(pairs)])]
    for tag, value in pairs.items():
        if not 0 <= tag <= 0xFF:
            raise InvalidInput(f"attribute tag {tag} is not between 0 and 255")
        parts.append(bytes([tag]) + _sized("attribute", _bytes_of(value)))
    return b"".join(parts)


def pack_payloads(
    into: bytearray | memoryview,
    offsets: Buffer,
    data: Buffer,
    row: int,
    *,
    seq: int,
    timestamp_ns: int,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> tuple[int, int]:
    """Write plain messages from the start of a buffer on, as many as fit.

    The payloads lie side by side, as in Arrow: payload n is between the n-th and the next of the
    offsets (32 bits each). Begin with payload `row`, which gets `seq`. Return the number of the
    first payload that did not fit (or the number of payloads), and the bytes written. The buffer
    must not be read during the call. After an error its content is undefined.

    >>> pack_payloads(bytearray(60), bytes([0, 0, 0, 0, 2, 0, 0, 0]), b"hi", 0, seq=0,
    ...               timestamp_ns=0)
    (1, 28)
    """
    bounds, payloads, target = flat(offsets), flat(data), flat(into)
    rows, used = max(len(bounds) // 4 - 1, 0), 0
    check_seq(seq)
    check_timestamp(timestamp_ns)
    check_limits(seq, max_entry_bytes)
    if not 0 <= row <= rows:
        raise ValueError(f"there is no row {row} among {rows}")
    if target.readonly:
        raise BufferError("entries need a buffer that can be written")
    while row < rows:
        start, stop = _TWO_OFFSETS.unpack_from(bounds, 4 * row)
        if not 0 <= start <= stop <= len(payloads):
            raise InvalidInput(f"the offsets of payload {row} are not inside the data")
        size = ENTRY_OVERHEAD_BYTES + stop - start
        if size > max_entry_bytes:
            raise TooLarge(f"payload {row} makes an entry of more than {max_entry_bytes} bytes")
        if seq > MAX_SEQ:
            raise InvalidInput("no seq is left: the highest is 2^63 - 1")
        if size > len(target) - used:
            break
        entry = seal(seq, timestamp_ns, DATA, 0, bytes(payloads[start:stop]))
        target[used : used + size] = entry
        row, used, seq = row + 1, used + size, seq + 1
    return row, used
