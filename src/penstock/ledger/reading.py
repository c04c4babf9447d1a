"""Reading a log: one entry, a time, or in order."""

from bisect import bisect_left
from collections.abc import Sequence

from penstock.codec import Entry
from penstock.codec.layout import TOMBSTONE
from penstock.errors import BadEntry, EntryGone, InvalidInput, NewerVersion
from penstock.ledger.log import Log
from penstock.ledger.segment import Segment
from penstock.ledger.segment_header import HEADER_BYTES


def read_entry(log: Log, seq: int) -> Entry:
    """The entry with that seq; EntryGone if it is not there (any more, or yet)."""
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
                raise  # else compaction took it away under us: look where the entry is now


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
            segment.read(offset, 1)  # passes over the damage, and reports it
            raise EntryGone(
                f"{log.folder.path}: seq {seq} lies in a damaged range of {segment.name}"
            ) from None
    raise EntryGone(f"{log.folder.path}: seq {seq} was removed, or lies in a damaged range")


def seq_at_time(log: Log, timestamp_ns: int) -> int:
    """The seq of the first entry written at or after that time; `next_seq` if there is none."""
    log.check_readable()
    log.publish_tail()
    while True:
        segments = log.segments.all
        try:
            return _seq_at_time(log, segments, timestamp_ns)
        except EntryGone:
            if not any(segment.gone for segment in segments):
                raise


def _seq_at_time(log: Log, segments: Sequence[Segment], timestamp_ns: int) -> int:
    # The first segment that starts at or after the time; the entry may be at the end of the one
    # before it. `created_at` would not do: a rewritten segment keeps it, an adopted one has its own.
    at = bisect_left(segments, timestamp_ns, key=lambda segment: _starts_at(log, segment))
    for segment in segments[max(at - 1, 0) :]:
        offset = log.segments.used(segment).offset_at_time(timestamp_ns)
        if offset >= 0:
            return segment.entry_at(offset).seq
    return log.next_seq


def _starts_at(log: Log, segment: Segment) -> int:
    first = log.segments.used(segment).first_timestamp_ns()
    return log.last_timestamp_ns + 1 if first is None else first


def next_seq_after(entry: Entry) -> int:
    """The seq that must come behind an entry. A tombstone stands for a range of them."""
    if entry.type != TOMBSTONE:
        return entry.seq + 1
    return max(entry.seq, int.from_bytes(entry.payload, "little")) + 1


class Cursor:
    """Reads a log in order, from a seq on, and goes on where it stopped as the log grows."""

    def __init__(self, log: Log, seq: int, *, unsynced: bool = False) -> None:
        """With `unsynced`, also what is not durable yet where readers must not see that: for the
        owner of the log, who answers nobody before it is."""
        self._log = log
        self._unsynced = unsynced
        self.next_seq = max(seq, 1)  # the lowest seq that was not handed out yet
        self._segment: Segment | None = None
        self._offset = 0

    def read(self, max_count: int) -> list[Entry]:
        """The next entries, at most so many; none at the (present) end of the log."""
        if max_count < 1:
            raise InvalidInput(f"max_count is {max_count}; it must be at least 1")
        log = self._log
        end_seq = self._begin()
        while self.next_seq < end_seq:
            segment = self._place()
            if segment is None:
                return []
            following = log.segments.after(segment)  # if there is one now, this one is complete
            try:
                entries, after = segment.read(self._offset, max_count)
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
            fit, self._offset = self._fitting(entries, after, end_seq)
            if fit or self._offset != after:
                return fit
        return []

    def _fitting(
        self, entries: Sequence[Entry], after: int, end_seq: int
    ) -> tuple[list[Entry], int]:
        """Those of the entries that come next, and the offset behind them."""
        fit = []
        for entry in entries:
            if entry.seq >= end_seq:  # written, but not yet for readers
                return fit, entry.offset
            if entry.seq >= self.next_seq:  # else a copy that stands in a wrong place
                self.next_seq = next_seq_after(entry)
                if entry.type != TOMBSTONE:
                    fit.append(entry)
        return fit, after

    def skip_plain(self, end_seq: int) -> tuple[int, int]:
        """Pass over the plain messages that come next, as [first, end), up to a seq.

        (0, 0) where something else is next.
        """
        end_seq = min(end_seq, self._begin())
        segment = self._place() if self.next_seq < end_seq else None
        if segment is None:
            return 0, 0
        try:
            first, end, self._offset = segment.skip_plain(self._offset, end_seq)
        except EntryGone:
            if not segment.gone:
                raise
            return 0, 0
        first = max(first, self.next_seq)
        if first >= end:
            return 0, 0
        self.next_seq = end
        return first, end

    def _begin(self) -> int:
        log = self._log
        log.check_readable()
        log.publish_tail()
        return log.next_seq if self._unsynced else log.readable_next_seq

    def _place(self) -> Segment | None:
        """The segment to read from, and the offset in it; found anew where files have changed."""
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
                return self._place()
            if offset >= 0:
                self._segment, self._offset = segment, offset
                return segment
            if following is not None and not segment.gone:
                segment.check_end(self.next_seq, following.base_seq)
            segment = following
        return None
