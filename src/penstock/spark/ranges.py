"""Cutting a log into byte ranges that executors read by themselves.

A range starts and ends at an entry. Which entry starts where is asked of the sparse index beside a
sealed segment; where that is missing or does not fit, it is made anew from the segment.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock import codec
from penstock.errors import BadEntry
from penstock.ledger.files import Files, OsFiles
from penstock.ledger.folder import Folder, read_fully
from penstock.ledger.index import MAX_INDEX_BYTES, SparseIndex
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader, index_name
from penstock.spark.segments import LogView, QueueFacts, Span

_POINT_WORDS = 3  # seq, timestamp, offset


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

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class Points:
    """The index points of a span, the segment's start and end among them."""

    def __init__(self, view: LogView, span: Span, *, files: Files | None = None) -> None:
        self._view = view
        self._span = span
        self._files = files or OsFiles()
        self._folder = Folder(self._files, view.facts.queue.path).child(view.log)
        words = self._stored()
        if words is None:
            words = self._made()
        at_start = not len(words) or words[2] != HEADER_BYTES
        self.seqs = [*([span.header.base_seq] if at_start else []), *words[0::3]]
        self.offsets = [*([HEADER_BYTES] if at_start else []), *words[2::3]]

    def before_seq(self, seq: int) -> int:
        """The number of the last point at or before a seq."""
        return max(bisect_right(self.seqs, seq) - 1, 0)

    def after_seq(self, seq: int) -> int:
        """The number of the first point at or after a seq; one too many: the end."""
        return bisect_left(self.seqs, seq)

    def _stored(self) -> Sequence[int] | None:
        if self._span.is_last:
            return None
        try:
            data = self._folder.read(
                index_name(self._span.header.base_seq), max_bytes=MAX_INDEX_BYTES
            )
        except (OSError, ValueError):
            return None
        index = SparseIndex.unpack(data, covered=self._span.end)
        if index is None:
            return None
        words = index.pack()[12:]
        return self._checked(memoryview(words).cast("Q").tolist())

    def _checked(self, words: list[int]) -> list[int] | None:
        """An index has no checksum: believed if its last point is the entry that is there."""
        if not words:
            return words
        seq, timestamp_ns, offset = words[-_POINT_WORDS:]
        fd = self._files.open(self._folder.file(self._span.name), "read")
        try:
            # From the entry to the end: at most an index step, and one entry.
            data = read_fully(self._files, fd, self._span.end - offset, offset)
            entry = codec.unpack(
                data,
                0,
                len(data),
                seq_base=self._span.header.seq_base,
                max_entry_bytes=self._view.facts.max_entry_bytes,
            )
        except BadEntry:
            return None
        finally:
            self._files.close(fd)
        return words if (entry.seq, entry.timestamp_ns) == (seq, timestamp_ns) else None

    def _made(self) -> list[int]:
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
        return memoryview(found.points).cast("Q").tolist()


def cut(view: LogView, first_seq: int, end_seq: int, *, max_bytes: int) -> Iterator[Range]:
    """The ranges that hold the entries [first_seq, end_seq), none larger than it must be."""
    for span in view.spans:
        low, high = span.header.base_seq, span.end_seq
        if high <= first_seq or low >= end_seq or span.end <= HEADER_BYTES:
            continue
        if not span.sound:
            wanted = (max(low, first_seq), min(high, end_seq))
            yield _range(view, span, HEADER_BYTES, span.end, low, high, wanted)
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
    while at < stop:
        # The last point that keeps the piece within the target; at least one step.
        upto = bisect_right(points.offsets, points.offsets[at] + target) - 1
        following = min(max(upto, at + 1), stop)
        if last_offset - points.offsets[at] <= target:
            following = stop
        start, low = points.offsets[at], points.seqs[at]
        end = points.offsets[following] if following < count else span.end
        high = points.seqs[following] if following < count else span.end_seq
        wanted = (max(low, first_seq), min(high, end_seq))
        if wanted[0] < wanted[1]:
            yield _range(view, span, start, end, low, high, wanted)
        at = following


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
    size = max_bytes
    for one in ranges:
        if size + one.size_bytes > max_bytes:
            lots.append([])
            size = 0
        lots[-1].append(one)
        size += one.size_bytes
    return lots
