"""Reading a log: one entry, a time, or in order."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import itemgetter

from penstock.codec import Entry
from penstock.codec.layout import TOMBSTONE
from penstock.errors import BadEntry, EntryGone, InvalidInput, NewerVersion
from penstock.ledger.log import Log
from penstock.ledger.segment import Segment
from penstock.ledger.segment_header import COMPACTED, HEADER_BYTES

_seq_of = itemgetter(Entry._fields.index("seq"))
_MOST_BYTES = 8 << 20  # of one read
_LATEST_NS = 1 << 64  # later than any entry
_type_of = itemgetter(Entry._fields.index("type"))


def read_entry(log: Log, seq: int) -> Entry:
    """Return the entry with that seq; raise EntryGone if it was removed or not written yet."""
    log.check_readable()
    if seq >= log.next_seq or seq < 1:
        raise EntryGone(f"{log.folder.path}: seq {seq} was not written; the next is {log.next_seq}")
    log.publish_tail()
    while True:
        segment = log.segments.holding(seq)
        if segment is None:
            raise EntryGone(
                f"{log.folder.path}: seq {seq} was removed; the first is {log.first_seq}"
            )
        try:
            return _read_from(log, segment, seq)
        except EntryGone:
            if not segment.gone:
                raise  # else compaction removed the segment: look again


def _read_from(log: Log, segment: Segment, seq: int) -> Entry:
    following = log.segments.after(segment)
    offset = segment.offset_of(seq)
    if offset < 0 and following is not None and not segment.gone:
        segment.check_end(seq, following.base_seq)
    if offset >= 0:
        try:
            entry = segment.entry_at(offset)
            if entry.seq == seq and entry.type != TOMBSTONE:
                return entry
        except NewerVersion:
            raise
        except BadEntry:
            segment.read(offset, 1)  # skips the damage, and reports it
            raise EntryGone(
                f"{log.folder.path}: seq {seq} lies in a damaged range of {segment.name}"
            ) from None
    raise EntryGone(f"{log.folder.path}: seq {seq} was removed, or lies in a damaged range")


def seq_at_time(log: Log, timestamp_ns: int) -> int:
    """Return the seq of the first entry at or after that time; `next_seq` if there is none."""
    log.check_readable()
    log.publish_tail()
    while True:
        segments = log.segments.all
        try:
            found = seq_at_time_in(segments, timestamp_ns, log.segments.used)
            return log.next_seq if found is None else found
        except EntryGone:
            if not any(segment.gone for segment in segments):
                raise


def seq_at_time_in(
    segments: Sequence[Segment], timestamp_ns: int, used: Callable[[Segment], Segment] | None = None
) -> int | None:
    """Return the seq of the first entry at or after that time; None if there is none.

    `used` is called with each segment that is read.
    """

    def starts_at(segment: Segment) -> int:
        first = (used(segment) if used else segment).first_timestamp_ns()
        return _LATEST_NS if first is None else first

    # The first segment that starts at or after the time; the entry may be at the end of the one
    # before it. `created_at` would not do: a rewritten segment keeps it, an adopted has its own.
    at = bisect_left(segments, timestamp_ns, key=starts_at)
    for segment in segments[max(at - 1, 0) :]:
        offset = (used(segment) if used else segment).offset_at_time(timestamp_ns)
        if offset >= 0:
            return segment.entry_at(offset).seq
    return None


def next_seq_after(entry: Entry) -> int:
    """Return the seq that must follow an entry. A tombstone stands for a range of seqs."""
    if entry.type != TOMBSTONE:
        return entry.seq + 1
    return max(entry.seq, int.from_bytes(entry.payload, "little")) + 1


def _is_a_run(entries: Sequence[Entry]) -> bool:
    """Return whether nothing is missing, repeated or removed, without a Python step per entry."""
    seqs = list(map(_seq_of, entries))
    whole = list(range(seqs[0], seqs[0] + len(seqs)))
    return seqs == whole and TOMBSTONE not in map(_type_of, entries)


class Cursor:
    """Reads a log in order, from a seq on, and goes on where it stopped as the log grows."""

    def __init__(self, log: Log, seq: int, *, unsynced: bool = False) -> None:
        """Start at `seq`. `unsynced` also reads entries that are not durable yet.

        Only the owner of the log may pass it, if it answers no caller before they are durable.
        """
        self._log = log
        self._unsynced = unsynced
        self.next_seq = max(seq, 1)  # the lowest seq that was not handed out yet
        self.lost: list[range] = []  # seqs that were read as skipped by recovery, not by compaction
        self._segment: Segment | None = None
        self._offset = 0

    def read(self, max_count: int) -> list[Entry]:
        """Return the next entries, up to `max_count` of them; [] at the present end of the log.

        Large entries are returned in smaller lists.
        """
        if max_count < 1:
            raise InvalidInput(f"max_count is {max_count}; it must be at least 1")
        log = self._log
        end_seq = self._begin()
        while self.next_seq < end_seq:
            segment = self._locate()
            if segment is None:
                return []
            following = log.segments.after(segment)  # if there is one now, this one is complete
            try:
                entries, after = segment.read(self._offset, max_count, _MOST_BYTES)
            except EntryGone:
                if not segment.gone:
                    raise
                continue
            if not entries:
                if following is None:
                    return []
                if not segment.gone:
                    segment.check_end(self.next_seq, following.base_seq)
                self._segment, self._offset = following, HEADER_BYTES
                continue
            fit, self._offset, at_end = self._fitting(segment, entries, after, end_seq)
            if fit or at_end:
                return fit
        return []

    def _fitting(
        self, segment: Segment, entries: list[Entry], after: int, end_seq: int
    ) -> tuple[list[Entry], int, bool]:
        """Return the entries that come next, the offset behind them, and whether it is the end."""
        expected = max(self.next_seq, segment.base_seq)
        if entries[0].seq == expected and entries[-1].seq < end_seq and _is_a_run(entries):
            self.next_seq = entries[-1].seq + 1
            return entries, after, False
        fit: list[Entry] = []
        for entry in entries:
            if entry.seq >= end_seq:  # written, but not yet for readers
                return fit, entry.offset, True
            if entry.seq < self.next_seq:
                continue  # a misplaced copy
            expected = max(self.next_seq, segment.base_seq)
            if entry.seq > expected and not segment.gone:
                go_on = segment.skip_gap(entry.offset, expected)
                if go_on != entry.offset:
                    return fit, go_on, False
            self.next_seq = next_seq_after(entry)
            if entry.type != TOMBSTONE:
                fit.append(entry)
            elif not segment.header.flags & COMPACTED:
                self.lost.append(range(entry.seq, self.next_seq))
        return fit, after, False

    def skip_plain(self, end_seq: int) -> tuple[int, int]:
        """Skip the plain messages that come next, up to a seq; return them as [first, end).

        Return (0, 0) if another kind of entry is next.
        """
        end_seq = min(end_seq, self._begin())
        segment = self._locate() if self.next_seq < end_seq else None
        if segment is None:
            return 0, 0
        try:
            first, end, after = segment.skip_plain(self._offset, end_seq)
        except EntryGone:
            if not segment.gone:
                raise
            return 0, 0
        if first == end or first != max(self.next_seq, segment.base_seq):
            return 0, 0  # a jump is for `read`, which asks why
        self._offset, self.next_seq = after, end
        return first, end

    def _begin(self) -> int:
        log = self._log
        log.check_readable()
        log.publish_tail()
        return log.next_seq if self._unsynced else log.readable_next_seq

    def _locate(self) -> Segment | None:
        """Return the segment to read from, and set the offset. Search again if files changed."""
        segment = self._segment
        if segment is not None and not segment.gone:
            return self._log.segments.used(segment)
        segments = self._log.segments
        segment = segments.holding(self.next_seq) or (segments.all[0] if segments.all else None)
        while segment is not None:
            following = segments.after(segment)
            try:
                offset = segment.offset_of(self.next_seq)
            except EntryGone:
                if not segment.gone:
                    raise
                return self._locate()
            if offset >= 0:
                # What lies between was removed, and a tombstone before the offset says so.
                self.next_seq = max(self.next_seq, segment.entry_at(offset).seq)
                self._segment, self._offset = segment, offset
                return segment
            if following is not None and not segment.gone:
                segment.check_end(self.next_seq, following.base_seq)
            segment = following
        return None
