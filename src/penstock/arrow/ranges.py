"""Split a log into byte ranges that tasks read independently.

A range starts and ends at an entry. Offsets of entries come from the sparse index beside a sealed
segment. If the index is missing or does not fit, it is computed from the segment.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from penstock import codec
from penstock.arrow.broker_files import fetch, fetch_index
from penstock.arrow.segments import LogView, QueueInfo, Span, zeroed
from penstock.errors import BadEntry
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder, read_fully
from penstock.ledger.index import MAX_INDEX_BYTES, Point, points_in
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader, index_name, segment_name

_POINT_FIELDS = len(Point._fields)
_SEQ, _OFFSET = Point._fields.index("seq"), Point._fields.index("offset")
NOTHING_REQUIRED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Range:
    """The entries of one segment between two bytes, with seqs [first_seq, end_seq)."""

    info: QueueInfo
    log: str
    header: SegmentHeader
    start: int
    end: int
    first_seq: int
    end_seq: int
    wanted_from: int  # only entries with seqs [wanted_from, wanted_to) are wanted
    wanted_to: int
    intact: bool
    required_from: int = NOTHING_REQUIRED  # a wanted seq from here on that was removed is data loss

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    @property
    def file(self) -> str:
        """The segment's path in the queue's directory."""
        return f"{self.log}/{segment_name(self.header.base_seq)}"


class IndexPoints:
    """The index points of a span, including the segment's start.

    An index has no checksum and is not checked here. The task that reads a range checks it, and
    falls back to the ledger's reader if the range is not as planned.
    """

    def __init__(self, view: LogView, span: Span) -> None:
        self._view = view
        self._span = span
        points = self._fetch() if view.info.queue.url else self._read()
        numbers = (self._compute() if points is None else points).cast("Q")
        if view.info.queue.url:  # the segment may have grown since it was listed
            inside = bisect_left(numbers[_OFFSET::_POINT_FIELDS], span.end)
            numbers = numbers[: _POINT_FIELDS * inside]
        self.seqs: Sequence[int] = numbers[_SEQ::_POINT_FIELDS]
        self.offsets: Sequence[int] = numbers[_OFFSET::_POINT_FIELDS]
        if not len(self.offsets) or self.offsets[0] != HEADER_BYTES:
            self.seqs = [span.header.base_seq, *self.seqs]
            self.offsets = [HEADER_BYTES, *self.offsets]

    def before_seq(self, seq: int) -> int:
        """Return the number of the last point at or before a seq."""
        return max(bisect_right(self.seqs, seq) - 1, 0)

    def after_seq(self, seq: int) -> int:
        """Return the number of the first point at or after a seq; the point count if none."""
        return bisect_left(self.seqs, seq)

    def _fetch(self) -> memoryview:
        """Return the points from the broker; none if the segment was removed since the listing."""
        base = self._span.header.base_seq
        try:
            points = points_in(fetch_index(self._view.info.queue, self._view.log, base))
        except FileNotFoundError:
            points = None
        return memoryview(b"") if points is None else points

    def _read(self) -> memoryview | None:
        if self._span.is_last:
            return None
        folder = Folder(OsFiles(), self._view.info.queue.path).child(self._view.log)
        try:
            name = index_name(self._span.header.base_seq)
            points = points_in(folder.read(name, max_bytes=MAX_INDEX_BYTES))
        except (OSError, ValueError):
            return None
        return points if self._fits(points) else None

    def _fits(self, points: memoryview | None) -> bool:
        """Return whether the index can be of this segment: others have other seqs."""
        if points is None or not len(points):
            return False
        numbers, base = points.cast("Q"), self._span.header.base_seq
        seqs = numbers[_SEQ], numbers[_SEQ - _POINT_FIELDS]
        return base <= seqs[0] and seqs[1] < self._span.end_seq and numbers[-1] < self._span.end

    def _compute(self) -> memoryview:
        """Return the points of the segment; none if it was removed since the view was made."""
        files = OsFiles()
        folder = Folder(files, self._view.info.queue.path).child(self._view.log)
        try:
            fd = files.open(folder.file(self._span.name), "read")
        except FileNotFoundError:
            return memoryview(b"")  # the task that reads the range plans it again
        try:
            data = read_fully(files, fd, self._span.end, 0)
        finally:
            files.close(fd)
        found = codec.skim(
            data,
            min(HEADER_BYTES, len(data)),
            len(data),
            whole_batches=False,
            index_from=HEADER_BYTES,
            seq_base=self._span.header.seq_base,
            max_entry_bytes=self._view.info.max_entry_bytes,
        )
        return memoryview(found.points)


# -- splitting -------------------------------------------------------------------------------------


def split(view: LogView, first_seq: int, end_seq: int, *, max_bytes: int) -> Iterator[Range]:
    """Yield the ranges of the entries [first_seq, end_seq), of at most about `max_bytes` each."""
    for span in view.spans:
        low, high = span.header.base_seq, span.end_seq
        if high <= first_seq or low >= end_seq or low == high:
            continue
        wanted = (max(low, first_seq), min(high, end_seq))
        # A segment with seqs and without bytes was truncated: the ledger's reader reports the loss.
        if not span.intact or span.end <= HEADER_BYTES:
            end = max(span.end, HEADER_BYTES)
            yield replace(_range(view, span, HEADER_BYTES, end, low, high, wanted), intact=False)
        elif wanted == (low, high) and span.end - HEADER_BYTES <= max_bytes:
            yield _range(view, span, HEADER_BYTES, span.end, low, high, wanted)
        else:
            yield from _split_span(view, span, first_seq, end_seq, max_bytes)


def _split_span(
    view: LogView, span: Span, first_seq: int, end_seq: int, max_bytes: int
) -> Iterator[Range]:
    points = IndexPoints(view, span)
    first_seq = max(first_seq, span.header.base_seq)
    count = len(points.offsets)
    at = points.before_seq(first_seq)
    stop = min(points.after_seq(end_seq), count)
    last_offset = points.offsets[stop] if stop < count else span.end
    pieces = -(-(last_offset - points.offsets[at]) // max_bytes)
    target = -(-(last_offset - points.offsets[at]) // max(pieces, 1))
    # The first seq that no range covers yet: the start of the span, or of the first piece.
    reached = points.seqs[at] if at and points.seqs[at] <= first_seq else span.header.base_seq
    while at < stop:
        # The last point that keeps the piece within the target; at least one step.
        upto = bisect_right(points.offsets, points.offsets[at] + target) - 1
        following = min(max(upto, at + 1), stop)
        if last_offset - points.offsets[at] <= target:
            following = stop
        start, low = points.offsets[at], points.seqs[at]
        end = points.offsets[following] if following < count else span.end
        high = points.seqs[following] if following < count else span.end_seq
        if not (reached == low < high <= span.end_seq and start < end <= span.end):
            break
        reached = high
        wanted = (max(low, first_seq), min(high, end_seq))
        if wanted[0] < wanted[1]:
            yield _range(view, span, start, end, low, high, wanted)
        at = following
    upto_seq = min(span.end_seq, end_seq)
    if reached < upto_seq:  # the index is wrong: read the rest of the span without it
        wanted = (max(reached, first_seq), upto_seq)
        rest = _range(view, span, HEADER_BYTES, span.end, reached, span.end_seq, wanted)
        yield replace(rest, intact=False)


def _range(
    view: LogView, span: Span, start: int, end: int, low: int, high: int, wanted: tuple[int, int]
) -> Range:
    return Range(
        view.info, view.log, span.header, start, end, low, high, *wanted, intact=span.intact
    )


def pack(ranges: Iterable[Range], *, max_bytes: int) -> list[list[Range]]:
    """Group neighbouring ranges up to a size, for one task each."""
    groups: list[list[Range]] = []
    size = 0
    for one in ranges:
        if not groups or size + one.size_bytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += one.size_bytes
    return groups


# -- reading ---------------------------------------------------------------------------------------


def range_bytes(one: Range) -> memoryview | None:
    """Return the bytes of a range, at their offsets in the segment.

    Return None if the segment was removed or rewritten since it was planned.
    """
    try:
        return _fetch_range(one) if one.info.queue.url else _map_range(one)
    except FileNotFoundError:
        return None


def _map_range(one: Range) -> memoryview | None:
    files = OsFiles()
    folder = Folder(files, one.info.queue.path).child(one.log)
    fd = files.open(folder.file(segment_name(one.header.base_seq)), "read")
    try:
        try:
            header = SegmentHeader.unpack(read_fully(files, fd, HEADER_BYTES, 0))
        except BadEntry:
            return None
        if header != one.header or files.size(fd) < one.end:
            return None
        return files.map(fd, one.end, writable=False).view
    finally:
        files.close(fd)


def _fetch_range(one: Range) -> memoryview:
    whole = zeroed(one.end)
    base, header = one.header.base_seq, one.header.pack()
    for at, data in fetch(one.info.queue, one.log, base, header, one.start, one.end):
        whole[at : at + len(data)] = data
    return whole.toreadonly()
