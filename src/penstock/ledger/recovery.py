"""Find out what the last segment of a log holds after a crash.

A bad entry there is either a write that never finished (cut off) or damage to something that was
once promised durable (kept, reported, read around). A later checkpoint that promises more than the
bad entry's offset tells the two apart; so does the note of a clean close, after which no write can
be unfinished.
"""

from dataclasses import dataclass

from penstock import codec
from penstock.codec import Skim
from penstock.errors import BadEntry, NewerVersion
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader


def lowest_seq_offset(
    view: memoryview, offset: int, end: int, *, min_stored_seq: int, max_entry_bytes: int
) -> int:
    """Return the offset of the entry with the lowest wanted seq, at `offset` or behind it.

    A disk may write a block where another belongs. The checksums of such misplaced entries are
    right, so only their seqs tell. The seqs of a segment rise by one: if one is too high, either
    the entries before it are lost, or it is misplaced and the expected ones follow.
    """
    while True:
        try:
            stored = codec.unpack(view, offset, end, max_entry_bytes=max_entry_bytes).seq
        except NewerVersion:
            raise
        except BadEntry:  # its checksum is right, but this version cannot read it
            return offset
        if stored <= min_stored_seq:
            return offset
        lower = codec.resync(
            view,
            offset + 1,
            end,
            min_seq=min_stored_seq,
            max_seq=stored - 1,
            max_entry_bytes=max_entry_bytes,
        )
        if lower < 0:
            return offset
        offset = lower


@dataclass(frozen=True, slots=True)
class Hole:
    """A damaged range inside the last segment."""

    offset: int
    length: int
    first_lost_seq: int
    last_lost_seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class LastSegment:
    """How far the last segment is good, and its damage."""

    end: int  # everything before is kept
    next_seq: int
    last_timestamp_ns: int
    synced_upto: int  # everything before was on disk once, according to a checkpoint
    holes: tuple[Hole, ...]
    torn_bytes: int  # written behind `end` and to be cut off; zeros do not count
    torn_reason: str
    lacks_its_end: bool = False  # it was longer when it was closed: `torn_bytes` are damage


def examine(
    view: memoryview, header: SegmentHeader, *, max_entry_bytes: int, closed_at: int = 0
) -> LastSegment:
    """Read the last segment from its header to its end, and change nothing.

    `closed_at` is where its entries ended when the ledger was closed; 0 if it was not.
    """
    return Examination(view, header, max_entry_bytes, closed_at).run()


class Examination:
    """One pass over the last segment. `examine` runs it."""

    def __init__(
        self, view: memoryview, header: SegmentHeader, max_entry_bytes: int, closed_at: int
    ) -> None:
        self._closed_at = closed_at
        self._view = view
        self._seq_base = header.seq_base
        self._created_at_ns = header.created_at_ns
        self._oldest_ns = header.oldest_ns
        self._max_entry_bytes = max_entry_bytes
        self.next_seq = header.base_seq
        self._last_timestamp_ns = 0
        self._synced_upto = 0
        self._holes: list[Hole] = []

    def run(self) -> LastSegment:
        start = min(HEADER_BYTES, len(self._view))
        while True:
            skim = self.skim(start, whole_batches=True)
            if skim.newer:
                raise NewerVersion(skim.stop, skim.problem or "written by a newer version")
            bad = self._bad_offset(skim)
            if bad < 0:
                self._take(skim)
                return self._result(skim.end, torn_end=skim.end, reason="")
            reason = skim.problem or "zeros where an entry should be"
            before = self.skim(start, whole_batches=False, end=bad)
            after, promised = self.look_ahead(bad, max(self.next_seq, before.next_seq))
            if promised <= bad:
                self._take(skim)
                return self._result(skim.end, torn_end=self._last_byte(), reason=reason)
            self._take(before)  # damage: whole entries before it count, even of a cut batch
            if after < 0:
                return self._result(bad, torn_end=self._last_byte(), reason=reason)
            first_lost = self.next_seq
            entry = self._stored_seq(after) + self._seq_base
            self._holes.append(Hole(bad, after - bad, first_lost, entry - 1, reason))
            self.next_seq = max(self.next_seq, entry)  # the lost seqs were used
            start = after

    def skim(self, start: int, *, whole_batches: bool, end: int | None = None) -> Skim:
        return codec.skim(
            self._view,
            start,
            len(self._view) if end is None else end,
            whole_batches=whole_batches,
            seq_base=self._seq_base,
            max_entry_bytes=self._max_entry_bytes,
        )

    def _take(self, skim: Skim) -> None:
        self.next_seq = max(self.next_seq, skim.next_seq)
        self._last_timestamp_ns = max(self._last_timestamp_ns, skim.last_timestamp_ns)
        self._synced_upto = max(self._synced_upto, skim.synced_upto)

    def _bad_offset(self, skim: Skim) -> int:
        """Return the offset of the first bad byte; -1 if only zeros follow."""
        if skim.problem is not None:
            return skim.stop
        return skim.stop if self._nonzero(skim.stop) >= 0 else -1

    def _nonzero(self, start: int) -> int:
        return codec.first_nonzero(self._view, start, len(self._view))

    def look_ahead(self, bad: int, next_seq: int) -> tuple[int, int]:
        """Return the entry at which to continue behind a bad one, and the highest later promise."""
        first_after = -1
        promised = self._closed_at
        end = len(self._view)
        low = max(next_seq - self._seq_base, 0)
        at = bad
        while first_after < 0 or promised <= bad:
            at = codec.resync(
                self._view,
                min(at + 1, end),  # a batch may be cut off at the end of the file
                end,
                min_seq=low,
                max_seq=low + end // codec.ENTRY_OVERHEAD_BYTES,
                min_timestamp_ns=self._oldest_ns,
                max_entry_bytes=self._max_entry_bytes,
            )
            if at < 0:
                break
            if first_after < 0:
                first_after = at
            run = self.skim(at, whole_batches=False)
            promised = max(promised, run.synced_upto)
            at = max(run.stop - 1, at)
        if promised > bad and first_after >= 0:
            first_after = lowest_seq_offset(
                self._view,
                first_after,
                end,
                min_stored_seq=low,
                max_entry_bytes=self._max_entry_bytes,
            )
        return first_after, promised

    def _stored_seq(self, offset: int) -> int:
        try:
            return codec.unpack(
                self._view, offset, len(self._view), max_entry_bytes=self._max_entry_bytes
            ).seq
        except BadEntry:  # its checksum is right, but this version cannot read it
            return self.next_seq - self._seq_base

    def _last_byte(self) -> int:
        return len(bytes(self._view).rstrip(b"\0"))

    def _result(self, end: int, *, torn_end: int, reason: str) -> LastSegment:
        return LastSegment(
            end=end,
            next_seq=self.next_seq,
            # No entry was written before the segment was made: also true of one without entries.
            last_timestamp_ns=max(self._last_timestamp_ns, self._created_at_ns),
            synced_upto=self._synced_upto,
            holes=tuple(self._holes),
            torn_bytes=max(torn_end - end, 0),
            torn_reason=reason,
            lacks_its_end=end < self._closed_at,
        )
