"""One segment file, for reading: by seq, by time, and in order."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock

from penstock import codec
from penstock.codec import Entry, Skim
from penstock.errors import BadEntry, NewerVersion
from penstock.ledger.folder import Folder
from penstock.ledger.index import MAX_INDEX_BYTES, SparseIndex
from penstock.ledger.segment_file import SegmentFile
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader, index_name
from penstock.ledger.wrong_places import lowest_behind
from penstock.model import Message

# Called with (segment, offset, length, first lost seq, last lost seq, reason).
HoleListener = Callable[["Segment", int, int, int, int, str], None]
_NO_BYTE_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Placed:
    """A segment that others wrote and that has its place in the log now."""

    header: SegmentHeader
    end: int
    index: SparseIndex


class Segment(SegmentFile):
    """A segment, sealed or being written, as its readers see it."""

    def __init__(
        self,
        folder: Folder,
        header: SegmentHeader,
        *,
        end: int | None = None,
        index: SparseIndex | None = None,
        next_base_seq: Callable[[], int],
        on_hole: HoleListener,
        max_entry_bytes: int,
    ) -> None:
        super().__init__(folder, header, end=end)
        self.gone = False  # removed, or replaced by a rewritten one: do not open it again
        self._next_base_seq = next_base_seq
        self._on_hole = on_hole
        self._max_entry_bytes = max_entry_bytes
        self._index = index
        self._lock = RLock()  # of the index: readers extend it
        self._holes: dict[int, int] = {}  # offset of a damaged range -> where reading goes on

    def close(self) -> None:
        """Give back mapping and index; both come back when needed."""
        self.drop_view()
        self._index = None

    def offset_of(self, seq: int) -> int:
        """Where the first entry at or above `seq` starts; -1 if it lies behind this segment."""
        return self._seek(seq=seq)

    def offset_at_time(self, timestamp_ns: int) -> int:
        """Where the first entry at or after that time starts; -1 if it lies behind."""
        return self._seek(timestamp_ns=timestamp_ns)

    def entry_at(self, offset: int) -> Entry:
        """The entry at an offset; BadEntry if the bytes there are damaged."""
        end, view = self._readable()
        return codec.unpack(
            view,
            offset,
            end,
            seq_base=self.header.seq_base,
            max_entry_bytes=self._max_entry_bytes,
        )

    def read(
        self, offset: int, max_count: int, max_bytes: int = _NO_BYTE_LIMIT
    ) -> tuple[list[Entry], int]:
        """Entries from an offset on, and the offset after them; damaged ranges are passed over.

        At least one, but no more than `max_bytes` of them.

        An empty list means the end of the segment.
        """
        end, view = self._readable()
        while True:
            try:
                entries, after = codec.read_entries(
                    view,
                    offset,
                    end,
                    max_count=max_count,
                    max_bytes=max_bytes,
                    seq_base=self.header.seq_base,
                    max_entry_bytes=self._max_entry_bytes,
                )
            except NewerVersion:
                raise
            except BadEntry as error:
                offset = self._behind_hole(offset, error.reason)
                continue
            if entries or after == offset:
                if not entries and self._stops_early(offset):
                    offset = self._behind_hole(offset, "zeros where an entry should be")
                    continue
                return entries, after
            offset = after  # only checkpoints so far

    def read_messages(
        self, offset: int, max_count: int, identity: int, max_bytes: int
    ) -> tuple[list[Message], int]:
        """Messages without options from an offset on, and the offset after them: at least one,
        but no more than `max_bytes` of them.

        An empty list means that something else is there, or the end.
        """
        end, view = self._readable()
        return codec.read_messages(
            view,
            offset,
            end,
            max_count=max_count,
            identity=identity,
            max_bytes=max_bytes,
            seq_base=self.header.seq_base,
            max_entry_bytes=self._max_entry_bytes,
        )

    def skip_plain(self, offset: int, end_seq: int) -> tuple[int, int, int]:
        """The run of plain messages at an offset, [first, end), and the offset after it."""
        end, view = self._readable()
        return codec.skip_plain(
            view,
            offset,
            end,
            end_seq=end_seq,
            seq_base=self.header.seq_base,
            max_entry_bytes=self._max_entry_bytes,
        )

    def behind_jump(self, offset: int, expected_seq: int) -> int:
        """Where to go on when the entry at `offset` is not the one that comes next.

        At `offset` itself, if those before it are lost; behind it, if it stands in a wrong place
        and hides them, as after a write that went astray.
        """
        known = self._holes.get(offset)
        if known is not None:
            return known
        behind_a_hole = any(after <= offset for after in self._holes.values())
        if behind_a_hole and not self._skim_upto(offset).entries:
            return offset  # the first one behind it: the hole was reported
        after = self._lowest_behind(offset, expected_seq)
        self._holes[offset] = after
        last_lost = self.entry_at(after).seq - 1
        reason = "an entry that does not belong here" if after > offset else "entries are missing"
        self._on_hole(self, offset, after - offset, expected_seq, last_lost, reason)
        return after

    def check_end(self, next_seq: int, end_seq: int) -> None:
        """For who came to the end of a sealed one before `end_seq`, where the next begins."""
        end = self.end
        if next_seq >= end_seq or end in (*self._holes, *self._holes.values()):
            return
        first_lost = max(self._skim_upto(end).next_seq, self.base_seq)
        if first_lost < end_seq:
            self._holes[end] = end
            self._on_hole(self, end, 0, first_lost, end_seq - 1, "the rest is missing")

    def first_timestamp_ns(self) -> int | None:
        """Of its first entry; None if it has none."""
        entries, _ = self.read(HEADER_BYTES, 1)
        return entries[0].timestamp_ns if entries else None

    def packed_index(self) -> bytes:
        """The index up to where the segment may be read, as its file has it."""
        with self._lock:
            return self._indexed().pack()

    def save_index(self) -> None:
        """Write the index beside the segment."""
        with self._lock:
            self._folder.replace(index_name(self.base_seq), self.packed_index())

    # -- inside ------------------------------------------------------------------------------------

    def _indexed(self) -> SparseIndex:
        end, view = self._readable()
        index = self._index
        if index is None:
            index = self._index = self._load_index() or SparseIndex(covered=HEADER_BYTES)
        while index.covered < end:
            covered = index.covered
            try:
                index.extend(
                    view,
                    end,
                    seq_base=self.header.seq_base,
                    max_entry_bytes=self._max_entry_bytes,
                )
            except BaseException:  # an interrupt may leave it half extended
                self._index = None
                raise
            if index.covered < end:
                if not self._stops_early(index.covered):
                    break  # zeros up to the end
                index.pass_over(self._behind_hole(index.covered, None))
            if index.covered == covered:
                break
        return index

    def _load_index(self) -> SparseIndex | None:
        name = index_name(self.base_seq)
        try:
            data = self._folder.read(name, max_bytes=MAX_INDEX_BYTES)
        except (OSError, ValueError):
            return None
        return SparseIndex.unpack(data, covered=self.end)

    def _seek(self, *, seq: int = 0, timestamp_ns: int = 0) -> int:
        with self._lock:
            start = self._start_of_search(self._indexed(), seq, timestamp_ns)
            end, view = self._readable()
            while True:
                try:
                    found = codec.seek(
                        view,
                        start,
                        end,
                        seq=seq,
                        timestamp_ns=timestamp_ns,
                        seq_base=self.header.seq_base,
                        max_entry_bytes=self._max_entry_bytes,
                    )
                except BadEntry:
                    found = -1
                go_on = self._doubt(found, start, end)
                if go_on < 0:
                    return found
                start = go_on

    def _doubt(self, found: int, start: int, end: int) -> int:
        """Seeking trusts each length and each seq. Verify what it passed over and what it found:
        where to seek again, from behind what is bad; -1 if all is well."""
        passed = codec.skim(
            self._bytes(),
            start,
            end if found < 0 else found,
            whole_batches=False,
            seq_base=self.header.seq_base,
            max_entry_bytes=self._max_entry_bytes,
        )
        if passed.newer:
            raise NewerVersion(passed.stop, passed.problem or "")
        if passed.problem is not None:
            return self._behind_hole(passed.stop, passed.problem)
        if found < 0:
            early = self._stops_early(passed.stop)
            return self._behind_hole(passed.stop, None) if early else -1
        try:
            seq = self.entry_at(found).seq
        except NewerVersion:
            raise
        except BadEntry as error:
            return self._behind_hole(found, error.reason)
        expected = passed.next_seq if passed.entries else self.base_seq
        if seq > expected and (passed.entries or start == HEADER_BYTES):
            go_on = self.behind_jump(found, expected)
            return go_on if go_on != found else -1
        return -1

    def _start_of_search(self, index: SparseIndex, seq: int, timestamp_ns: int) -> int:
        point = index.before_time(timestamp_ns) if timestamp_ns else index.before_seq(seq)
        if point is None:
            return HEADER_BYTES
        try:
            entry = self.entry_at(point.offset)
            if (entry.seq, entry.timestamp_ns) == (point.seq, point.timestamp_ns):
                return point.offset
        except BadEntry:
            pass
        # A stale index, of before a rewrite or from a damaged disk: made anew from the segment.
        self._index = SparseIndex(covered=HEADER_BYTES)
        self._indexed()
        return HEADER_BYTES

    def _stops_early(self, offset: int) -> bool:
        """Zeros at `offset`: is something written behind them?"""
        return codec.first_nonzero(self._bytes(), offset, self.end) >= 0

    def _behind_hole(self, offset: int, reason: str | None) -> int:
        """Where reading goes on behind the bad entry at `offset`; reports it the first time."""
        known = self._holes.get(offset)
        if known is not None:
            return known
        view = self._bytes()
        if reason is None:
            reason = self._reason_at(offset)
        before = self._skim_upto(offset)
        first_stored = max(before.next_seq, self.base_seq) - self.header.seq_base
        last_stored = self._next_base_seq() - 1 - self.header.seq_base
        after = codec.resync(
            view,
            offset + 1,
            self.end,
            min_seq=first_stored,
            max_seq=max(first_stored, last_stored),
            min_timestamp_ns=self.header.oldest_ns,
            max_entry_bytes=self._max_entry_bytes,
        )
        if after >= 0:
            after = self._lowest_behind(after, first_stored + self.header.seq_base)
        first_lost = first_stored + self.header.seq_base
        if after < 0:
            after = self.end
            last_lost = self._next_base_seq() - 1
        else:
            last_lost = self.entry_at(after).seq - 1
        self._holes[offset] = after
        self._on_hole(self, offset, after - offset, first_lost, last_lost, reason)
        return after

    def _lowest_behind(self, offset: int, min_seq: int) -> int:
        return lowest_behind(
            self._bytes(),
            offset,
            self.end,
            min_stored_seq=min_seq - self.header.seq_base,
            max_entry_bytes=self._max_entry_bytes,
        )

    def _skim_upto(self, offset: int) -> Skim:
        """The entries between the last known damage before an offset and it."""
        go_on = (after for after in self._holes.values() if after <= offset)
        return codec.skim(
            self._bytes(),
            max(go_on, default=HEADER_BYTES),
            offset,
            whole_batches=False,
            seq_base=self.header.seq_base,
            max_entry_bytes=self._max_entry_bytes,
        )

    def _reason_at(self, offset: int) -> str:
        try:
            self.entry_at(offset)
        except NewerVersion:
            raise  # whole, only not for us: nothing to pass over
        except BadEntry as error:
            return error.reason
        return "bytes that are no entry"
