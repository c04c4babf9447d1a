"""Decode one range of a segment into Arrow columns.

This is the fast path: a range is decoded as a whole, without a step per row. Every seq from the
first to the last must exist, or a tombstone must cover it. Otherwise the caller falls back to the
ledger's reader.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock import codec
from penstock.arrow.ranges import Range, range_bytes
from penstock.arrow.tables import BATCH_BYTES, BATCH_ROWS
from penstock.arrow.unpacking import slice_rows
from penstock.codec import Columns, Entry
from penstock.codec.entry import draft_of
from penstock.codec.layout import TOMBSTONE
from penstock.errors import BadEntry, NewerVersion
from penstock.ledger.reading import next_seq_after

_VARIABLE_SIZE = {"payload", "key", "headers", "attributes"}
_NO_LIMIT_BYTES = 1 << 30  # for fixed-width columns, which BATCH_ROWS limits
_RAMP = pa.array(range(BATCH_ROWS), pa.int64())


class TableColumns(Protocol):
    """Makes the Arrow columns of a table from decoded entries."""

    @property
    def needed(self) -> Sequence[str]:
        """Columns that the codec must decode."""

    def batches(self, found: Columns) -> Iterator[list[pa.Array]]:
        """Yield the columns in batches of bounded size, usually one."""


class FastPathFailed(Exception):
    """From this seq on, the range is not as planned: use the ledger's reader."""

    def __init__(self, from_seq: int) -> None:
        super().__init__(from_seq)
        self.from_seq = from_seq


class SegmentChanged(FastPathFailed):
    """The segment was removed or rewritten since the read was planned."""


OnGap = Callable[[int, int], None]  # called with removed seqs [first, end)


def decode(
    one: Range,
    table: TableColumns,
    on_gap: OnGap = lambda _first, _end: None,
    bytes_of: Callable[[Range], memoryview | None] = range_bytes,
) -> Iterator[tuple[list[pa.Array], int]]:
    """Yield columns and row counts of the wanted entries of a range. Raise FastPathFailed."""
    if not one.intact:
        raise FastPathFailed(one.wanted_from)
    view = bytes_of(one)
    if view is None:
        raise SegmentChanged(one.wanted_from)
    with_sizes = list(dict.fromkeys([*table.needed, "offset", "size"]))
    offset, expected = one.start, one.first_seq
    rows_from = offset  # of the last batch with rows
    while offset < one.end:
        try:
            found = _decode_columns(one, view, offset, table.needed)
        except NewerVersion:
            raise
        except BadEntry:
            raise FastPathFailed(max(expected, one.wanted_from)) from None
        if not found.rows:
            after = _seq_after_tombstones(one, view, offset, one.end, expected)
            if after > expected:
                on_gap(expected, after)
            expected = after
            if found.next_offset == offset:
                break
            offset = found.next_offset
            continue
        seqs = pa.Array.from_buffers(
            pa.int64(), found.rows, [None, pa.py_buffer(found.buffers["seq"])]
        )
        if not seqs.equals(pc.add(_RAMP.slice(0, len(seqs)), _int64(expected))):
            found = _decode_columns(one, view, offset, with_sizes)
            _check_gaps(one, view, found, seqs, offset, expected, on_gap)
        rows_from, offset, expected = offset, found.next_offset, seqs[-1].as_py() + 1
        yield from _wanted(one, table, found, seqs)
        if expected >= one.wanted_to:
            return  # the rest belongs to another range
    if expected < one.end_seq:
        # The last batch went on over tombstones behind its rows.
        after = _seq_after_tombstones(
            one, view, _end_of_rows(one, view, rows_from), offset, expected
        )
        if after > expected:
            on_gap(expected, after)
        if after < one.end_seq:
            raise FastPathFailed(max(after, one.wanted_from))


def _end_of_rows(one: Range, view: memoryview, offset: int) -> int:
    """Return the offset behind the last row of a batch; the batch's own if it has no rows."""
    found = _decode_columns(one, view, offset, ["offset", "size"])
    if not found.rows:
        return offset
    offsets = memoryview(found.buffers["offset"]).cast("q")
    return int(offsets[-1]) + memoryview(found.buffers["size"]).cast("i")[-1]


def _decode_columns(one: Range, view: memoryview, offset: int, names: Sequence[str]) -> Columns:
    return codec.decode_columns(
        view,
        offset,
        one.end,
        names,
        max_rows=BATCH_ROWS,
        max_bytes=_NO_LIMIT_BYTES if _VARIABLE_SIZE.isdisjoint(names) else BATCH_BYTES,
        events=one.log == "events",
        seq_base=one.header.seq_base,
        max_entry_bytes=one.info.max_entry_bytes,
    )


def _int64(value: int) -> pa.Scalar:
    """Return a typed number: for an untyped one pyarrow tries to import pandas, 0.3 ms each."""
    return pa.scalar(value, pa.int64())


def _wanted(
    one: Range, table: TableColumns, found: Columns, seqs: pa.Array
) -> Iterator[tuple[list[pa.Array], int]]:
    """Yield the rows with wanted seqs."""
    first, last = seqs[0].as_py(), seqs[-1].as_py()
    if last < one.wanted_from or first >= one.wanted_to:
        return
    if first < one.wanted_from or last >= one.wanted_to:
        at = pc.sum(pc.less(seqs, _int64(one.wanted_from))).as_py()
        found = slice_rows(found, at, pc.sum(pc.less(seqs, _int64(one.wanted_to))).as_py() - at)
    if found.rows:
        for arrays in table.batches(found):
            yield arrays, len(arrays[0]) if arrays else found.rows


# -- gaps ------------------------------------------------------------------------------------------


def _check_gaps(
    one: Range,
    view: memoryview,
    found: Columns,
    seqs: pa.Array,
    offset: int,
    expected: int,
    on_gap: OnGap,
) -> None:
    """Raise FastPathFailed unless tombstones in the right places cover every missing seq."""
    offsets = memoryview(found.buffers["offset"]).cast("q")
    sizes = memoryview(found.buffers["size"]).cast("i")
    before = offset
    for seq, at, size in zip(seqs.to_pylist(), offsets, sizes, strict=True):
        if seq != expected:
            if _seq_after_tombstones(one, view, before, at, expected) != seq:
                raise FastPathFailed(max(expected, one.wanted_from))
            on_gap(expected, seq)
        before, expected = at + size, seq + 1


def _seq_after_tombstones(one: Range, view: memoryview, start: int, end: int, expected: int) -> int:
    """Return the seq after the tombstones between two offsets."""
    while start < end:
        try:
            entries, after = codec.read_entries(
                view,
                start,
                end,
                max_count=BATCH_ROWS,
                seq_base=one.header.seq_base,
                max_entry_bytes=one.info.max_entry_bytes,
            )
        except NewerVersion:
            raise
        except BadEntry:
            return expected
        for entry in entries:
            if entry.type != TOMBSTONE or entry.seq > expected:
                return expected
            expected = max(expected, next_seq_after(entry))
        if after == start:
            return expected
        start = after
    return expected


# -- entries of the ledger's reader ----------------------------------------------------------------


def columns_of(entries: Sequence[Entry], names: Sequence[str], *, events: bool) -> Columns:
    """Return entries as the codec decodes columns."""
    packed = b"".join(
        codec.pack(entry.seq, entry.timestamp_ns, draft_of(entry)) for entry in entries
    )
    found = codec.decode_columns(
        packed,
        0,
        len(packed),
        names,
        max_rows=len(entries),
        max_bytes=len(packed),
        events=events,
        max_entry_bytes=_NO_LIMIT_BYTES,
    )
    assert found.rows == len(entries)
    for name, values in (
        ("offset", [entry.offset for entry in entries]),
        ("size", [entry.size for entry in entries]),
    ):
        if data := found.buffers.get(name):
            width = len(data) // found.rows
            data[:] = b"".join(value.to_bytes(width, "little") for value in values)
    return found
