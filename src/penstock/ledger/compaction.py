"""Free disk space: remove segments that are not needed, rewrite those that are mostly dead.

Beside traffic, in small steps: only sealed segments are touched, each step is one segment or one
run of neighbours, and the log's lock is held only to put the result in place.

Nothing that is live in any group is ever removed, whatever the retention says: retention only
decides how long entries that are done with stay for replay.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock import codec
from penstock.clock import Clock
from penstock.codec import Draft, Entry
from penstock.codec.entry import draft_of
from penstock.codec.layout import TOMBSTONE
from penstock.errors import InvalidInput
from penstock.ledger.files import as_ledger_error
from penstock.ledger.folder import write_fully
from penstock.ledger.json_files import Marks
from penstock.ledger.ledger import Ledger
from penstock.ledger.log import Log
from penstock.ledger.reading import next_seq_after
from penstock.ledger.segment import Segment
from penstock.ledger.segment_header import (
    COMPACTED,
    HEADER_BYTES,
    SegmentHeader,
    index_name,
)

_CHUNK_ENTRIES = 1000
_TEMPORARY_NAME = "rewrite.tmp"
_TOMBSTONE_BYTES = codec.ENTRY_OVERHEAD_BYTES + 8


class LiveSeqs(Protocol):
    """What the layer above still needs. Asked for ranges of one sealed segment, which may have been
    sealed after this was made: what it knows nothing of is needed."""

    def count(self, first_seq: int, end_seq: int) -> int:
        """Return the number of needed entries in the range; cheap."""

    def seqs(self, first_seq: int, end_seq: int) -> Iterable[int]:
        """Return their seqs, rising."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long entries that are done with stay. None: no such reason to remove them.

    With no limit at all they need not stay: what is done with goes at the next compaction.
    """

    max_age_s: float | None = None
    max_bytes: int | None = None
    max_segments: int | None = None
    min_segments: int = 0
    upto_seq: int | None = None  # segments that reach beyond it stay, whatever the rest says
    rewrite_below: float = 0.5  # rewrite a segment when less than this part of it is live

    def __post_init__(self) -> None:
        for name in ("max_age_s", "max_bytes", "max_segments", "min_segments"):
            value = getattr(self, name)
            if value is not None and not value >= 0:  # so said, NaN is refused as well
                raise InvalidInput(f"{name} is {value}; it cannot be negative")
        if not 0 <= self.rewrite_below <= 1:
            raise InvalidInput(f"rewrite_below is {self.rewrite_below}; it is a part, 0 to 1")

    def removes_all_below(self, seq: int) -> bool:
        """Return whether all that is done with, of the seqs below this one, goes at once."""
        limits = (self.max_age_s, self.max_bytes, self.max_segments)
        return (
            all(limit is None for limit in limits)
            and not self.min_segments
            and (self.upto_seq is None or seq <= self.upto_seq)
        )


@dataclass(slots=True)
class CompactionResult:
    """The result of one run."""

    segments_removed: int = 0
    segments_rewritten: int = 0
    bytes_freed: int = 0
    removed_below_seq: int = 0
    steps: int = field(default=0)


class Compactor:
    """Compacts one log of a ledger. One at a time per log; the caller sees to that."""

    def __init__(
        self, ledger: Ledger, log: Log, live: LiveSeqs, retention: Retention, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._log = log
        self._live = live
        self._retention = retention
        self._clock = clock
        self.result = CompactionResult()

    def run(self) -> CompactionResult:
        """Do all steps and return the result."""
        for _ in self.steps():
            pass
        return self.result

    def steps(self) -> Iterator[None]:
        """Do one small step at each `next`."""
        self._ledger.check_writable()
        try:
            yield from self._remove_prefix()
            yield from self._rewrite()
        except OSError as error:
            raise as_ledger_error(self._log.folder.path, "compacting", error) from error

    # -- removing ----------------------------------------------------------------------------------

    def _remove_prefix(self) -> Iterator[None]:
        past = self._past_retention()
        prefix: list[Segment] = []
        for segment, end_seq in past:
            if segment is not self._log.segments.all[len(prefix)]:
                break
            if self._live.count(segment.base_seq, end_seq):
                break
            prefix.append(segment)
            yield
        if prefix:
            remove_before(self._ledger, self._log, past[len(prefix) - 1][1], self.result)
            yield

    def _past_retention(self) -> list[tuple[Segment, int]]:
        """Return the sealed segments past retention, oldest first, with their end seqs."""
        upto_seq = self._retention.upto_seq
        past = self._past_limits()
        return past if upto_seq is None else [one for one in past if one[1] <= upto_seq]

    def _past_limits(self) -> list[tuple[Segment, int]]:
        rule, sealed = self._retention, self._log.sealed_segments()
        count = max(len(sealed) + 1 - rule.min_segments, 0)  # the one being written counts too
        if rule.max_age_s is None and rule.max_bytes is None and rule.max_segments is None:
            return sealed[:count]
        sizes = [segment.end for segment, _ in sealed]
        total = sum(sizes)
        past = []
        for number, (segment, end_seq) in enumerate(sealed[:count]):
            too_many = (
                rule.max_segments is not None and len(sealed) + 1 - number > rule.max_segments
            )
            too_large = rule.max_bytes is not None and total > rule.max_bytes
            if not (too_many or too_large or self._too_old(segment)):
                break
            past.append((segment, end_seq))
            total -= sizes[number]
        return past

    def _too_old(self, segment: Segment) -> bool:
        if self._retention.max_age_s is None:
            return False
        following = self._log.segments.after(segment)
        newest_ns = following.header.created_at_ns if following else self._clock.now_ns()
        return self._clock.now_ns() - newest_ns > self._retention.max_age_s * 1e9

    # -- rewriting ---------------------------------------------------------------------------------

    def _rewrite(self) -> Iterator[None]:
        """Put each run of neighbouring, mostly dead segments into one small segment."""
        run: list[Segment] = []
        size = 0
        for segment, end_seq in self._past_retention():
            entries = end_seq - segment.base_seq
            live = self._live.count(segment.base_seq, end_seq)
            mostly_dead = live < entries * self._retention.rewrite_below
            kept_bytes = (segment.end // max(entries, 1) + _TOMBSTONE_BYTES) * live
            if segment.header.flags & COMPACTED:
                kept_bytes = segment.end  # most of what it stands for is not in it any more
            if not mostly_dead or size + kept_bytes > self._log.settings.segment_bytes:
                yield from self._rewrite_run(run)
                run, size = [], 0
            if mostly_dead:
                run.append(segment)
                size += kept_bytes
            yield
        yield from self._rewrite_run(run)

    def _rewrite_run(self, run: Sequence[Segment]) -> Iterator[None]:
        if not run or (len(run) == 1 and self._is_as_small_as_it_gets(run[0])):
            return
        log, folder = self._log, self._log.folder
        after_run = log.segments.after(run[-1])
        assert after_run is not None  # the segment being written is never in a run
        first, end_seq = run[0], after_run.base_seq
        header = SegmentHeader(
            log.kind,
            self._ledger.identity,
            first.base_seq,
            first.header.created_at_ns,
            COMPACTED,
            end_seq,
        )
        size = yield from self._write_run(run, header, end_seq)
        old_bytes = sum(segment.end for segment in run)
        # The new file replaces the first of the run in one atomic step, and its header says that
        # it stands for the others too: recovery removes those that are still there.
        first.hold()
        if folder.has(index_name(first.base_seq)):
            folder.remove(index_name(first.base_seq))
        try:
            folder.files.rename(folder.file(_TEMPORARY_NAME), folder.file(first.name))
            folder.sync()
            new = log.replace_run(run, header, size)
        except BaseException:
            if not folder.has(_TEMPORARY_NAME):  # renamed: readers must see what is on disk
                log.replace_run(run, header, size)
            raise
        for segment in run[1:]:
            folder.remove(segment.name)
            if folder.has(index_name(segment.base_seq)):
                folder.remove(index_name(segment.base_seq))
        folder.sync()
        new.save_index()
        new.close()
        self.result.segments_rewritten += len(run)
        self.result.bytes_freed += old_bytes - size
        yield

    def _is_as_small_as_it_gets(self, segment: Segment) -> bool:
        """Return whether it was rewritten before, and no entry has become dead since."""
        if not segment.header.flags & COMPACTED:
            return False
        entries = sum(1 for entry in _entries(self._log, segment) if entry.type != TOMBSTONE)
        return entries <= self._live.count(segment.base_seq, segment.header.end_seq)

    def _write_run(
        self, run: Sequence[Segment], header: SegmentHeader, end_seq: int
    ) -> Generator[None, None, int]:
        """Write the live entries, and tombstones for the rest, to a temporary file."""
        files, path = self._log.folder.files, self._log.folder.file(_TEMPORARY_NAME)
        if files.exists(path):
            files.unlink(path)
        fd = files.open(path, "create")
        offset = 0
        try:
            for data in self._rewritten(run, header, end_seq):
                write_fully(files, fd, data, offset)
                offset += len(data)
                yield
            files.fdatasync(fd)
        finally:
            files.close(fd)
        return offset

    def _rewritten(
        self, run: Sequence[Segment], header: SegmentHeader, end_seq: int
    ) -> Iterator[bytes]:
        yield header.pack()
        next_seq = header.base_seq  # the lowest seq not accounted for
        last_timestamp_ns = header.created_at_ns
        live = iter(self._live.seqs(header.base_seq, end_seq))
        wanted = next(live, None)
        parts: list[bytes] = []
        for segment in run:
            for entry in _entries(self._log, segment):
                last_timestamp_ns = entry.timestamp_ns
                while wanted is not None and wanted < entry.seq:
                    wanted = next(live, None)
                if entry.seq != wanted or entry.type == TOMBSTONE:
                    continue
                if entry.seq > next_seq:
                    parts.append(_tombstone(next_seq, entry.seq - 1, entry.timestamp_ns))
                parts.append(_repack(entry))
                next_seq = entry.seq + 1
                if len(parts) >= _CHUNK_ENTRIES:
                    yield b"".join(parts)
                    parts.clear()
        if next_seq < end_seq:
            parts.append(_tombstone(next_seq, end_seq - 1, last_timestamp_ns))
        yield b"".join(parts)


def remove_before(
    ledger: Ledger, log: Log, seq: int, result: CompactionResult | None = None
) -> CompactionResult:
    """Remove every sealed segment that lies wholly below `seq`."""
    result = result or CompactionResult()
    gone = [(segment, end) for segment, end in log.sealed_segments() if end <= seq]
    if not gone:
        return result
    low = gone[-1][1]
    # First the mark, durably: unlinks may reach the disk in any order, and a segment that comes
    # back would bring its messages back. The next seq is saved with it, so that it is never used
    # twice, even if segments are lost.
    ledger.sync()
    removed = [segment for segment, _ in gone]
    try:
        ledger.save_marks(log, Marks(low=low, next=log.next_seq))
        log.drop(removed)
    except BaseException:
        if ledger.marks(log).low >= low:  # marked: the next opening removes them
            log.drop(removed)
        raise
    try:
        for segment, _ in gone:
            result.bytes_freed += segment.end
            log.folder.remove(segment.name)
            if log.folder.has(index_name(segment.base_seq)):
                log.folder.remove(index_name(segment.base_seq))
        log.folder.sync()
    except OSError as error:
        raise as_ledger_error(log.folder.path, "removing segments", error) from error
    result.segments_removed += len(gone)
    result.removed_below_seq = low
    return result


def _entries(log: Log, segment: Segment) -> Iterator[Entry]:
    """Yield the entries in the order of their seqs, even if some are misplaced."""
    offset, expected = HEADER_BYTES, segment.base_seq
    while True:
        entries, offset = log.segments.used(segment).read(offset, _CHUNK_ENTRIES)
        if not entries:
            return
        for entry in entries:
            if entry.seq > expected:
                go_on = segment.skip_gap(entry.offset, expected)
                if go_on != entry.offset:
                    offset = go_on
                    break
            if entry.seq >= expected:
                expected = next_seq_after(entry)
                yield entry


def _repack(entry: Entry) -> bytes:
    """Return the bytes of an entry with its absolute seq."""
    return codec.pack(entry.seq, entry.timestamp_ns, draft_of(entry))


def _tombstone(first_seq: int, last_seq: int, timestamp_ns: int) -> bytes:
    draft = Draft(last_seq.to_bytes(8, "little"), type=TOMBSTONE)
    return codec.pack(first_seq, timestamp_ns, draft)
