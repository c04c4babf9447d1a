"""Cutting a log into byte ranges that executors read by themselves.

A range starts and ends at an entry. Which entry starts where is asked of the sparse index beside a
sealed segment; where that is missing or does not fit, it is made anew from the segment.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from penstock import codec
from penstock.codec.layout import INDEX_POINT_BYTES
from penstock.ledger.files import Files, OsFiles
from penstock.ledger.folder import Folder, read_fully
from penstock.ledger.index import MAX_INDEX_BYTES
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader, index_name
from penstock.spark.http_files import fetched_index
from penstock.spark.places import QueueAt
from penstock.spark.segments import LogView, QueueFacts, Span

_INDEX_HEADER_BYTES = 12
NOTHING_CLAIMED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one segment, from one byte to another: all that have these seqs."""

    facts: QueueFacts
    log: str
    header: SegmentHeader
    start: int
    end: int
    first_seq: int
    end_seq: int
    wanted_from: int  # of its entries, only those with seqs [wanted_from, wanted_to)
    wanted_to: int
    sound: bool
    claimed_from: int = NOTHING_CLAIMED  # wanted seqs from here on must be there: else it is loss

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def index_points(data: bytes) -> memoryview | None:
    """The points in an index file, three numbers each; None where it is not one."""
    size = len(data) - _INDEX_HEADER_BYTES
    if size < 0 or size % INDEX_POINT_BYTES or data[:4] != b"PIDX":
        return None
    return memoryview(data)[_INDEX_HEADER_BYTES:].cast("Q")


class Points:
    """The index points of a span, the segment's start among them.

    An index has no checksum. It is not checked here: what a range says is checked by whoever reads
    it, and where it does not come out, the exact way is taken.
    """

    def __init__(self, view: LogView, span: Span, *, files: Files | None = None) -> None:
        self._view = view
        self._span = span
        self._files = files or OsFiles()
        self._folder = Folder(self._files, view.facts.queue.path).child(view.log)
        stored = self._stored()
        words = self._made() if stored is None else stored
        self.seqs: Sequence[int] = words[0::3]
        self.offsets: Sequence[int] = words[2::3]
        if not len(self.offsets) or self.offsets[0] != HEADER_BYTES:
            self.seqs = [span.header.base_seq, *self.seqs]
            self.offsets = [HEADER_BYTES, *self.offsets]

    def before_seq(self, seq: int) -> int:
        """The number of the last point at or before a seq."""
        return max(bisect_right(self.seqs, seq) - 1, 0)

    def after_seq(self, seq: int) -> int:
        """The number of the first point at or after a seq; one too many: the end."""
        return bisect_left(self.seqs, seq)

    def _stored(self) -> "memoryview | None":
        queue, base = self._view.facts.queue, self._span.header.base_seq
        if queue.url:
            return self._served(queue, base)
        if self._span.is_last:
            return None
        try:
            data = self._folder.read(index_name(base), max_bytes=MAX_INDEX_BYTES)
        except (OSError, ValueError):
            return None
        points = index_points(data)
        fits = points is not None and len(points) and points[-1] < self._span.end
        return points if fits else None

    def _served(self, queue: QueueAt, base: int) -> memoryview:
        """From a broker; of a segment that was removed since it was listed, none."""
        try:
            points = index_points(fetched_index(queue, self._view.log, base))
        except FileNotFoundError:
            points = None
        if points is None:
            return memoryview(b"").cast("Q")
        inside = bisect_left(points[2::3], self._span.end)  # it may have grown since
        return points[: 3 * inside]

    def _made(self) -> memoryview:
        fd = self._files.open(self._folder.file(self._span.name), "read")
        try:
            data = read_fully(self._files, fd, self._span.end, 0)
        finally:
            self._files.close(fd)
        found = codec.skim(
            data,
            min(HEADER_BYTES, len(data)),
            len(data),
            whole_batches=False,
            index_from=HEADER_BYTES,
            seq_base=self._span.header.seq_base,
            max_entry_bytes=self._view.facts.max_entry_bytes,
        )
        return memoryview(found.points).cast("Q")


def cut(view: LogView, first_seq: int, end_seq: int, *, max_bytes: int) -> Iterator[Range]:
    """The ranges that hold the entries [first_seq, end_seq), none larger than it must be."""
    for span in view.spans:
        low, high = span.header.base_seq, span.end_seq
        if high <= first_seq or low >= end_seq or low == high:
            continue
        # A segment of seqs without bytes was cut: the exact way says what is lost.
        if not span.sound or span.end <= HEADER_BYTES:
            wanted = (max(low, first_seq), min(high, end_seq))
            end = max(span.end, HEADER_BYTES)
            found = _range(view, span, HEADER_BYTES, end, low, high, wanted)
            yield replace(found, sound=False)
            continue
        whole = first_seq <= low and high <= end_seq
        if whole and span.end - HEADER_BYTES <= max_bytes:
            yield _range(view, span, HEADER_BYTES, span.end, low, high, (low, high))
            continue
        yield from _cut_span(view, span, first_seq, end_seq, max_bytes)


def _cut_span(
    view: LogView, span: Span, first_seq: int, end_seq: int, max_bytes: int
) -> Iterator[Range]:
    points = Points(view, span)
    count = len(points.offsets)
    at = points.before_seq(first_seq)
    stop = min(points.after_seq(end_seq), count)
    last_offset = points.offsets[stop] if stop < count else span.end
    pieces = -(-(last_offset - points.offsets[at]) // max_bytes)
    target = -(-(last_offset - points.offsets[at]) // max(pieces, 1))
    # As far as the ranges before have come: at the start of the span, or before what is wanted.
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
    if reached < upto_seq:  # the index lies: what is left of the span is read without it
        wanted = (max(reached, first_seq), upto_seq)
        left = _range(view, span, HEADER_BYTES, span.end, reached, span.end_seq, wanted)
        yield replace(left, sound=False)


def _range(
    view: LogView,
    span: Span,
    start: int,
    end: int,
    first_seq: int,
    end_seq: int,
    wanted: tuple[int, int],
) -> Range:
    return Range(
        view.facts,
        view.log,
        span.header,
        start,
        end,
        first_seq,
        end_seq,
        *wanted,
        sound=span.sound,
    )


def packed(ranges: Iterable[Range], *, max_bytes: int) -> list[list[Range]]:
    """Neighbouring ranges put together, up to a size: a task for each lot."""
    lots: list[list[Range]] = []
    size = 0
    for one in ranges:
        if not lots or size + one.size_bytes > max_bytes:
            lots.append([])
            size = 0
        lots[-1].append(one)
        size += one.size_bytes
    return lots
