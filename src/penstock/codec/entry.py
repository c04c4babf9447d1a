"""The types that the codec reads (Draft) and returns (Entry, Skim, Columns).

Both codecs use these same types, so their results can be compared with `==`. They are named
tuples because the compiled codec builds and reads tuples without a Python call.
"""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.codec.layout import DATA, DEFAULT_PRIORITY


class Draft(NamedTuple):
    """An entry to be written. It gets its seq and timestamp when it is written."""

    payload: bytes
    type: int = DATA
    priority: int = DEFAULT_PRIORITY
    expires_at_ns: int = 0  # 0: never
    deliver_at_ns: int = 0  # 0: at once
    key: bytes | None = None
    headers: Mapping[str, str] | None = None
    attributes: Mapping[int, bytes] | None = None
    compression: int = 0  # 0: the payload is as it was given; else layout.GZIP, layout.ZSTD


class Entry(NamedTuple):
    """An entry as it stands in a segment, checksum verified."""

    seq: int
    timestamp_ns: int
    type: int
    payload: bytes
    priority: int
    expires_at_ns: int
    deliver_at_ns: int
    key: bytes | None
    headers: dict[str, str] | None
    attributes: dict[int, bytes] | None
    compression: int
    offset: int  # where it starts in the buffer that was read
    size: int  # all its bytes, length field and checksum included


class Skim(NamedTuple):
    """The result of a pass over a run of entries that does not build them."""

    end: int  # after the last whole batch
    stop: int  # where reading stopped: the bad entry, the zeros, or the end of the buffer
    entries: int  # before `end`, checkpoints not counted
    next_seq: int  # one above the highest seq before `end`, 0 if there was none
    last_timestamp_ns: int  # of the last entry before `end`
    synced_upto: int  # the highest promise of durability before `end`
    problem: str | None  # why reading stopped, None for zeros or the end of the buffer
    newer: bool  # the problem is an entry that a newer version wrote
    points: bytes  # sparse index points (layout.INDEX_POINT_BYTES each), if they were asked for


class Columns(NamedTuple):
    """A run of entries as Arrow-ready buffers.

    Fixed-width columns are one buffer under their name. Variable ones have `<name>.offsets`
    (int32, rows + 1) beside it, nullable ones `<name>.validity` (bitmap, least bit first).
    """

    rows: int
    next_offset: int
    buffers: dict[str, bytearray]


COLUMN_NAMES = (
    "seq",
    "timestamp_ns",
    "type",
    "payload",
    "priority",
    "expires_at_ns",
    "deliver_at_ns",
    "key",
    "headers",
    "attributes",
    "compression",
    "offset",
    "size",
)


def draft_of(entry: Entry) -> Draft:
    """Return the draft that would be written to get the entry again."""
    return Draft(
        entry.payload,
        entry.type,
        entry.priority,
        entry.expires_at_ns,
        entry.deliver_at_ns,
        entry.key,
        entry.headers,
        entry.attributes,
        entry.compression,
    )
