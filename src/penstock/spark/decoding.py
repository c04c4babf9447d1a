"""One range of a segment as Arrow batches: decoded as a whole, checked, cut to what was wanted.

The usual range has every seq from its first to its last, and then nothing is done row by row. A gap
must be explained by tombstones; what is not explained is left to the exact way.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock import codec
from penstock.codec import Columns, Entry
from penstock.codec.entry import draft_of
from penstock.codec.layout import TOMBSTONE
from penstock.errors import BadEntry, NewerVersion
from penstock.ledger.reading import next_seq_after
from penstock.spark.range_bytes import range_bytes
from penstock.spark.ranges import Range

BATCH_ROWS = 65536
BATCH_BYTES = 4 << 20
_OF_ANY_LENGTH = {"payload", "key", "headers", "attributes"}
_NO_LIMIT_BYTES = 1 << 30  # of entries of which only numbers are kept
_RAMP = pa.array(range(BATCH_ROWS), pa.int64())


class Table(Protocol):
    """Makes Arrow columns of decoded entries."""

    @property
    def needed(self) -> Sequence[str]:
        """What the codec must decode for it."""

    def arrays(self, found: Columns) -> list[pa.Array]: ...


class Irregular(Exception):
    """The range is not as it was planned, from a seq on: the exact way must be taken."""

    def __init__(self, from_seq: int) -> None:
        super().__init__(from_seq)
        self.from_seq = from_seq


OnGap = Callable[[int, int], None]  # told of seqs [first, end) that were removed


def decode(
    one: Range, table: Table, on_gap: OnGap | None = None
) -> Iterator[tuple[list[pa.Array], int]]:
    """Columns and row counts of the wanted entries of a range; Irregular where it must stop."""
    if not one.sound:
        raise Irregular(one.wanted_from)
    view = range_bytes(one)
    if view is None:
        raise Irregular(one.wanted_from)
    yield from _decode(one, table, view, on_gap or _ignored)


def _ignored(first: int, end: int) -> None:
    """Pass over a gap."""


def _decode(
    one: Range, table: Table, view: memoryview, on_gap: OnGap
) -> Iterator[tuple[list[pa.Array], int]]:
    events = one.log == "events"
    names = [*table.needed, *(name for name in ("offset", "size") if name not in table.needed)]
    quick = list(table.needed)
    offset, expected = one.start, one.first_seq
    while offset < one.end:
        try:
            found = _columns(one, view, offset, quick, events)
        except NewerVersion:
            raise
        except BadEntry:
            raise Irregular(max(expected, one.wanted_from)) from None
        if not found.rows:
            behind = _behind_tombstones(one, view, offset, one.end, expected)
            if behind > expected:
                on_gap(expected, behind)
            expected = behind
            if found.next_offset == offset:
                break
            offset = found.next_offset
            continue
        seqs = _seqs(found)
        if not _is_run(seqs, expected):
            found = _columns(one, view, offset, names, events)
            _check_gaps(one, view, found, seqs, offset, expected, on_gap)
        offset, expected = found.next_offset, seqs[-1].as_py() + 1
        yield from _wanted(one, table, found, seqs)
        if expected >= one.wanted_to:
            return  # what follows is another's to check
    if expected < one.end_seq:
        raise Irregular(max(expected, one.wanted_from))


def _columns(
    one: Range, view: memoryview, offset: int, names: Sequence[str], events: bool
) -> Columns:
    return codec.decode_columns(
        view,
        offset,
        one.end,
        names,
        max_rows=BATCH_ROWS,
        max_bytes=_NO_LIMIT_BYTES if _OF_ANY_LENGTH.isdisjoint(names) else BATCH_BYTES,
        events=events,
        seq_base=one.header.seq_base,
        max_entry_bytes=one.facts.max_entry_bytes,
    )


def _seqs(found: Columns) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), found.rows, [None, pa.py_buffer(found.buffers["seq"])])


def _number(value: int) -> pa.Scalar:
    """For arithmetic. Of a number without a type pyarrow asks pandas first, each time: 0.3 ms."""
    return pa.scalar(value, pa.int64())


def _is_run(seqs: pa.Array, first: int) -> bool:
    return bool(seqs.equals(pc.add(_RAMP.slice(0, len(seqs)), _number(first))))


def _wanted(
    one: Range, table: Table, found: Columns, seqs: pa.Array
) -> Iterator[tuple[list[pa.Array], int]]:
    """The columns, cut to the seqs that are wanted."""
    first, last = seqs[0].as_py(), seqs[-1].as_py()
    if last < one.wanted_from or first >= one.wanted_to:
        return
    if one.wanted_from <= first and last < one.wanted_to:
        arrays = table.arrays(found)
        yield arrays, len(arrays[0]) if arrays else found.rows
        return
    at = pc.sum(pc.less(seqs, _number(one.wanted_from))).as_py()
    count = pc.sum(pc.less(seqs, _number(one.wanted_to))).as_py() - at
    if count:
        arrays = table.arrays(cut(found, at, count))
        yield arrays, len(arrays[0]) if arrays else count


def cut(found: Columns, at: int, count: int) -> Columns:
    """Some of the rows, by decoding no more than slicing buffers."""
    widths = {"seq": 8, "timestamp_ns": 8, "offset": 8, "expires_at_ns": 8, "deliver_at_ns": 8}
    widths |= {"type": 1, "priority": 1, "compression": 1, "size": 4}
    buffers: dict[str, bytearray] = {}
    for name, data in found.buffers.items():
        if name in widths:
            width = widths[name]
            buffers[name] = data[at * width : (at + count) * width]
        elif name.endswith(".validity"):
            buffers[name] = _cut_bits(data, at, count)
        elif name in ("payload.offsets", "key.offsets", "headers.offsets", "attributes.offsets"):
            buffers[name] = data[at * 4 : (at + count + 1) * 4]
        else:
            buffers[name] = data  # values, reached through offsets
    return Columns(count, found.next_offset, buffers)


def _cut_bits(data: bytearray, at: int, count: int) -> bytearray:
    bits = int.from_bytes(data, "little") >> at & (1 << count) - 1
    return bytearray(bits.to_bytes(-(-count // 8), "little"))


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
    """Every seq that is left out must be accounted for by a tombstone in its place."""
    offsets = memoryview(found.buffers["offset"]).cast("q")
    sizes = memoryview(found.buffers["size"]).cast("i")
    before = offset
    for seq, at, size in zip(seqs.to_pylist(), offsets, sizes, strict=True):
        if seq != expected:
            behind = _behind_tombstones(one, view, before, at, expected)
            if behind != seq:
                raise Irregular(max(expected, one.wanted_from))
            on_gap(expected, seq)
        before, expected = at + size, seq + 1


def _behind_tombstones(one: Range, view: memoryview, start: int, end: int, expected: int) -> int:
    """The seq that follows the tombstones between two offsets."""
    while start < end:
        try:
            entries, after = codec.read_entries(
                view,
                start,
                end,
                max_count=BATCH_ROWS,
                seq_base=one.header.seq_base,
                max_entry_bytes=one.facts.max_entry_bytes,
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


# -- the exact way ---------------------------------------------------------------------------------


def columns_of(entries: Sequence[Entry], names: Sequence[str], *, events: bool) -> Columns:
    """Entries that were read one by one, as the codec gives columns."""
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
        max_entry_bytes=1 << 30,
    )
    assert found.rows == len(entries)
    if "offset" in found.buffers:
        offsets = b"".join(entry.offset.to_bytes(8, "little") for entry in entries)
        found.buffers["offset"][:] = offsets
    if "size" in found.buffers:
        found.buffers["size"][:] = b"".join(e.size.to_bytes(4, "little") for e in entries)
    return found
