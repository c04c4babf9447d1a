"""A run of entries as Arrow-ready buffers, column by column."""

import struct
from collections.abc import Collection

from penstock.codec.buffer_py import Buffer, check_limits, view_of
from penstock.codec.entry import COLUMN_NAMES, Columns
from penstock.codec.layout import (
    DATA,
    DEFAULT_MAX_ENTRY_BYTES,
    FIRST_EVENT,
    MAX_BATCH_BYTES,
)
from penstock.codec.unpack_py import Fields, Head, header_texts, read_fields, read_head
from penstock.errors import BadEntry, InvalidInput

_INT32 = struct.Struct("<i")


class _Builder:
    """The buffers of the wanted columns, growing row by row."""

    def __init__(self, names: Collection[str]) -> None:
        for name in names:
            if name not in COLUMN_NAMES:
                raise InvalidInput(f"there is no column {name!r}; there are {COLUMN_NAMES}")
        self.names = frozenset(names)
        self.rows = 0
        self.buffers: dict[str, bytearray] = {}
        for name in COLUMN_NAMES:
            if name in self.names:
                self._begin(name)

    def _begin(self, name: str) -> None:
        match name:
            case "payload":
                self._begin_variable("payload")
            case "key":
                self._begin_variable("key")
                self.buffers["key.validity"] = bytearray()
            case "headers":
                self.buffers["headers.offsets"] = bytearray(_INT32.size)
                self._begin_variable("headers.keys")
                self._begin_variable("headers.values")
            case "attributes":
                self.buffers["attributes.offsets"] = bytearray(_INT32.size)
                self.buffers["attributes.tags"] = bytearray()
                self._begin_variable("attributes.values")
            case "expires_at_ns" | "deliver_at_ns":
                self.buffers[name] = bytearray()
                self.buffers[f"{name}.validity"] = bytearray()
            case _:
                self.buffers[name] = bytearray()

    def _begin_variable(self, name: str) -> None:
        self.buffers[f"{name}.offsets"] = bytearray(_INT32.size)
        self.buffers[name] = bytearray()

    def add(self, head: Head, fields: Fields) -> None:
        """Append one row to every wanted column."""
        names = self.names
        for name, width, value in (
            ("seq", 8, head.seq),
            ("timestamp_ns", 8, head.timestamp_ns),
            ("type", 1, head.type),
            ("priority", 1, fields.priority),
            ("expires_at_ns", 8, fields.expires_at_ns),
            ("deliver_at_ns", 8, fields.deliver_at_ns),
            ("compression", 1, fields.compression),
            ("offset", 8, head.offset),
            ("size", 4, head.size),
        ):
            if name in names:
                self.buffers[name] += value.to_bytes(width, "little")
        for name, present in (
            ("expires_at_ns", fields.expires_at_ns != 0),
            ("deliver_at_ns", fields.deliver_at_ns != 0),
            ("key", fields.key is not None),
        ):
            if name in names:
                self._add_validity(name, present=present)
        if "payload" in names:
            self._add_variable("payload", fields.payload)
        if "key" in names:
            self._add_variable("key", fields.key or b"")
        if "headers" in names:
            self._add_headers(fields.headers or [])
        if "attributes" in names:
            self._add_attributes(fields.attributes or [])
        self.rows += 1

    def _add_validity(self, name: str, *, present: bool) -> None:
        bitmap = self.buffers[f"{name}.validity"]
        if self.rows % 8 == 0:
            bitmap.append(0)
        bitmap[-1] |= present << (self.rows % 8)

    def _add_variable(self, name: str, value: bytes) -> None:
        data = self.buffers[name]
        data += value
        self.buffers[f"{name}.offsets"] += _INT32.pack(len(data))

    def _add_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        for name, value in headers:
            self._add_variable("headers.keys", name)
            self._add_variable("headers.values", value)
        count = len(self.buffers["headers.keys.offsets"]) // _INT32.size - 1
        self.buffers["headers.offsets"] += _INT32.pack(count)

    def _add_attributes(self, attributes: list[tuple[int, bytes]]) -> None:
        for tag, value in attributes:
            self.buffers["attributes.tags"].append(tag)
            self._add_variable("attributes.values", value)
        count = len(self.buffers["attributes.tags"])
        self.buffers["attributes.offsets"] += _INT32.pack(count)


def decode_columns(
    buffer: Buffer,
    start: int,
    end: int,
    names: Collection[str],
    *,
    max_rows: int = 65536,
    max_bytes: int = 8 << 20,
    events: bool = False,
    seq_base: int = 0,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> Columns:
    """Return the named columns of the data entries from `start` on, or of the events.

    Other entries are verified and skipped. Stop at `max_rows`, before the row that takes the sum of
    the rows' sizes over `max_bytes` (but not before the first), at the end, at zeros, and before a
    bad entry. Raise BadEntry only if the first entry is bad. Headers are checked to be UTF-8 only
    if they are asked for.
    """
    check_limits(seq_base, max_entry_bytes)
    max_bytes = min(max_bytes, MAX_BATCH_BYTES)  # so that 32-bit offsets always reach
    builder = _Builder(names)
    offset = start
    total_bytes = 0
    with view_of(buffer, start, end) as view:
        while builder.rows < max_rows and offset < end:
            try:
                head = read_head(view, offset, end, seq_base, max_entry_bytes)
                if head is None:
                    break
                fields = read_fields(view, head)
                if head.type >= FIRST_EVENT if events else head.type == DATA:
                    if builder.rows and total_bytes + head.size > max_bytes:
                        break
                    if fields.headers and "headers" in builder.names:
                        header_texts(head, fields.headers)
                    builder.add(head, fields)
                    total_bytes += head.size
            except BadEntry:
                if offset == start:
                    raise
                break
            offset += head.size
    return Columns(builder.rows, offset, builder.buffers)
