"""Bytes to entries: every length is checked before it is used, and before anything is built."""

import struct
from typing import NamedTuple

from penstock.codec.buffer_py import Buffer, check_limits, crc32c, view_of
from penstock.codec.entry import Entry
from penstock.codec.layout import (
    CHECKPOINT,
    CRC_BYTES,
    DATA,
    DEFAULT_MAX_ENTRY_BYTES,
    DEFAULT_PRIORITY,
    FIRST_EVENT,
    FIXED_BYTES,
    HAS_ATTRIBUTES,
    HAS_DELIVER_AT,
    HAS_EXPIRES_AT,
    HAS_HEADERS,
    HAS_KEY,
    HAS_PRIORITY,
    IS_COMPRESSED,
    LENGTH_BYTES,
    MAX_PRIORITY,
    MAX_SEQ,
    MAX_TIMESTAMP_NS,
    MIN_LENGTH,
    RESERVED_FLAG,
    TOMBSTONE,
)
from penstock.errors import BadEntry, NewerVersion

FIXED = struct.Struct("<IBBQQ")  # length, type, flags, seq, timestamp
_U32 = struct.Struct("<I")


class Head(NamedTuple):
    """The fixed part of an entry whose checksum is right."""

    offset: int
    size: int
    type: int
    flags: int
    seq: int  # seq_base added
    timestamp_ns: int


class Fields(NamedTuple):
    """The other fields of an entry, with headers that are not decoded yet."""

    expires_at_ns: int
    headers: list[tuple[bytes, bytes]] | None
    compression: int
    priority: int
    deliver_at_ns: int
    key: bytes | None
    attributes: list[tuple[int, bytes]] | None
    payload: bytes


def read_frame(view: memoryview, offset: int, end: int, max_entry_bytes: int) -> int:
    """Return the size of the entry at `offset`, its checksum verified; 0 at zeros."""
    if end - offset < LENGTH_BYTES:
        if any(view[offset:end]):
            raise BadEntry(offset, "cut off inside the length")
        return 0
    length: int = _U32.unpack_from(view, offset)[0]
    if length == 0:
        return 0
    size = LENGTH_BYTES + length
    if length < MIN_LENGTH:
        raise BadEntry(offset, f"length {length} is less than {MIN_LENGTH}")
    if size > max_entry_bytes:
        raise BadEntry(offset, f"length {length} is beyond the limit of {max_entry_bytes} bytes")
    if size > end - offset:
        raise BadEntry(offset, f"length {length} reaches beyond the end")
    crc_at = offset + size - CRC_BYTES
    if crc32c(view[offset:crc_at]) != _U32.unpack_from(view, crc_at)[0]:
        raise BadEntry(offset, "checksum does not match")
    return size


def read_head(
    view: memoryview, offset: int, end: int, seq_base: int, max_entry_bytes: int
) -> Head | None:
    """Return the head of the verified entry at `offset`; None at zeros."""
    size = read_frame(view, offset, end, max_entry_bytes)
    if size == 0:
        return None
    _, type_, flags, seq, timestamp_ns = FIXED.unpack_from(view, offset)
    if flags & RESERVED_FLAG:
        raise NewerVersion(offset, "a reserved flag is set: written by a newer version")
    if type_ not in (DATA, TOMBSTONE, CHECKPOINT) and type_ < FIRST_EVENT:
        raise NewerVersion(offset, f"unknown entry type {type_}: written by a newer version")
    if seq_base + seq > MAX_SEQ:
        raise BadEntry(offset, "a seq beyond 2^63 - 1")
    if timestamp_ns > MAX_TIMESTAMP_NS:
        raise BadEntry(offset, "a timestamp beyond the year 2262")
    return Head(offset, size, type_, flags, seq_base + seq, timestamp_ns)


class _Cursor:
    """Steps over the optional fields of one entry and never leaves it."""

    def __init__(self, view: memoryview, head: Head) -> None:
        self._view = view
        self._entry = head.offset
        self._at = head.offset + FIXED_BYTES
        self._end = head.offset + head.size - CRC_BYTES

    def take(self, count: int) -> bytes:
        start = self._at
        if count > self._end - start:
            raise BadEntry(self._entry, "fields reach beyond the entry")
        self._at = start + count
        return bytes(self._view[start : start + count])

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def time(self, name: str) -> int:
        value_ns = self.number(8)
        if value_ns > MAX_TIMESTAMP_NS:
            raise BadEntry(self._entry, f"{name} is beyond the year 2262")
        return value_ns

    def priority(self) -> int:
        priority = self.number(1)
        if priority > MAX_PRIORITY:
            raise BadEntry(self._entry, f"priority {priority} is not between 0 and {MAX_PRIORITY}")
        return priority

    def sized(self) -> bytes:
        return self.take(self.number(2))

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(self.sized(), self.sized()) for _ in range(self.number(2))]

    def attributes(self) -> list[tuple[int, bytes]]:
        return [(self.number(1), self.sized()) for _ in range(self.number(1))]

    def rest(self) -> bytes:
        return self.take(self._end - self._at)


def read_fields(view: memoryview, head: Head) -> Fields:
    """Return the optional fields and the payload, in the order in which they are stored."""
    cursor = _Cursor(view, head)
    flags = head.flags
    return Fields(
        expires_at_ns=cursor.time("expires_at") if flags & HAS_EXPIRES_AT else 0,
        headers=cursor.headers() if flags & HAS_HEADERS else None,
        compression=cursor.number(1) if flags & IS_COMPRESSED else 0,
        priority=cursor.priority() if flags & HAS_PRIORITY else DEFAULT_PRIORITY,
        deliver_at_ns=cursor.time("deliver_at") if flags & HAS_DELIVER_AT else 0,
        key=cursor.sized() if flags & HAS_KEY else None,
        attributes=cursor.attributes() if flags & HAS_ATTRIBUTES else None,
        payload=cursor.rest(),
    )


def header_texts(head: Head, headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    try:
        return {name.decode(): value.decode() for name, value in headers}
    except UnicodeDecodeError:
        raise BadEntry(head.offset, "a header is not UTF-8") from None


def entry_of(view: memoryview, head: Head) -> Entry:
    fields = read_fields(view, head)
    return Entry(
        seq=head.seq,
        timestamp_ns=head.timestamp_ns,
        type=head.type,
        payload=fields.payload,
        priority=fields.priority,
        expires_at_ns=fields.expires_at_ns,
        deliver_at_ns=fields.deliver_at_ns,
        key=fields.key,
        headers=None if fields.headers is None else header_texts(head, fields.headers),
        attributes=None if fields.attributes is None else dict(fields.attributes),
        compression=fields.compression,
        offset=head.offset,
        size=head.size,
    )


def unpack(
    buffer: Buffer,
    offset: int,
    end: int,
    *,
    seq_base: int = 0,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> Entry:
    """Return the entry at `offset`; raise BadEntry if there is none."""
    check_limits(seq_base, max_entry_bytes)
    with view_of(buffer, offset, end) as view:
        head = read_head(view, offset, end, seq_base, max_entry_bytes)
        if head is None:
            raise BadEntry(offset, "nothing written here")
        return entry_of(view, head)


def read_entries(
    buffer: Buffer,
    start: int,
    end: int,
    *,
    max_count: int,
    max_bytes: int = 1 << 62,
    seq_base: int = 0,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> tuple[list[Entry], int]:
    """Return entries from `start` on, without checkpoints, and the offset to continue from.

    Stop at `max_count`, at the end, at zeros, before `max_bytes` (but not before the first entry),
    and before a bad entry. Raise BadEntry only if the first entry is bad.
    """
    check_limits(seq_base, max_entry_bytes)
    entries: list[Entry] = []
    offset = start
    with view_of(buffer, start, end) as view:
        while len(entries) < max_count and offset < end:
            try:
                head = read_head(view, offset, end, seq_base, max_entry_bytes)
                if head is None:
                    break
                entry = entry_of(view, head)
            except BadEntry:
                if offset == start:
                    raise
                break
            if entries and offset + entry.size - start > max_bytes:
                break
            offset += entry.size
            if entry.type != CHECKPOINT:
                entries.append(entry)
    return entries, offset
