"""The sparse index of a segment: about each 4 KB, which entry starts where.

A cache: it is checked against the segment when used, and built again if it does not fit.
"""

import struct
from array import array
from bisect import bisect_right
from typing import NamedTuple

from penstock import codec
from penstock.codec.layout import INDEX_POINT_BYTES, INDEX_STEP_BYTES
from penstock.ledger.segment_header import HEADER_BYTES

_MAGIC = 0x58444950  # "PIDX"
_VERSION = 1
_HEADER = struct.Struct("<III")

MAX_INDEX_BYTES = 64 << 20


class Point(NamedTuple):
    """An entry of the segment."""

    seq: int
    timestamp_ns: int
    offset: int


def points_in(data: bytes) -> memoryview | None:
    """Return the points in an index file, as bytes; None if it is not a whole index file."""
    if len(data) < _HEADER.size:
        return None
    magic, version, count = _HEADER.unpack_from(data)
    points = memoryview(data)[_HEADER.size :]
    if (magic, version) != (_MAGIC, _VERSION) or len(points) != count * INDEX_POINT_BYTES:
        return None
    return points


class SparseIndex:
    """Points (seq, timestamp, offset) in rising order, extended as the segment grows.

    Points of a damaged file may be wrong or out of order: compare a found one with its entry.
    """

    def __init__(self, points: bytes = b"", *, covered: int) -> None:
        self._points = bytearray(points)
        self.covered = covered  # the segment is indexed up to this offset
        self._cast()

    def __len__(self) -> int:
        return len(self._points) // INDEX_POINT_BYTES

    def extend(self, view: memoryview, end: int, *, seq_base: int, max_entry_bytes: int) -> None:
        """Index what was written since; stop at damaged bytes."""
        if end <= self.covered:
            return
        found = codec.skim(
            view,
            self.covered,
            end,
            whole_batches=False,
            index_from=self._next_point_offset(),
            seq_base=seq_base,
            max_entry_bytes=max_entry_bytes,
        )
        if found.points:
            for view in (self._seqs, self._times, self._words):
                view.release()
            self._points += found.points
            self._cast()
        self.covered = found.end

    def before_seq(self, seq: int) -> Point | None:
        """Return the last point at or before a seq: where to start looking for it."""
        return self._point(bisect_right(self._seqs, seq))

    def before_time(self, timestamp_ns: int) -> Point | None:
        """Return the last point before a time. Entries of that time may precede its points."""
        return self._point(bisect_right(self._times, timestamp_ns - 1))

    def pack(self) -> bytes:
        return _HEADER.pack(_MAGIC, _VERSION, len(self)) + bytes(self._points)

    @classmethod
    def unpack(cls, data: bytes, *, covered: int) -> "SparseIndex | None":
        """Return the index of a file; None if it is not whole, or not of this segment.

        The order of its points is not checked, which would take longer than most searches. A
        search in points out of order still returns one that is not beyond what is searched.
        """
        points = points_in(data)
        if points is None:
            return None
        index = cls(bytes(points), covered=covered)
        if len(index) and not (HEADER_BYTES <= index._words[2] <= index._words[-1] < covered):
            return None
        return index

    @classmethod
    def of_staged(
        cls, points: bytes, *, base_seq: int, timestamp_ns: int | None, covered: int
    ) -> "SparseIndex":
        """Return the index of an adopted segment, from its points with relative seqs."""
        words = array("Q", points)
        words[0::3] = array("Q", [base_seq + seq for seq in words[0::3]])
        if timestamp_ns is not None:
            words[1::3] = array("Q", [timestamp_ns]) * (len(words) // 3)
        return cls(words.tobytes(), covered=covered)

    def _cast(self) -> None:
        self._words = memoryview(self._points).cast("Q")
        # By themselves, so that a search is one call and no Python code for each step.
        self._seqs, self._times = self._words[0::3], self._words[1::3]

    def _next_point_offset(self) -> int:
        if not len(self._words):
            return 0
        return self._words[len(self._words) - 1] + INDEX_STEP_BYTES

    def _point(self, count: int) -> Point | None:
        """Return the last of the first `count` points."""
        return Point(*self._words[3 * count - 3 : 3 * count]) if count else None
