"""One segment file, for reading: by seq, by time, and in order.

The file is opened and mapped when its bytes are first needed. A damaged range is called a hole:
reading reports it once and continues behind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock import codec
from penstock.codec import Entry, Skim
from penstock.errors import BadEntry, EntryGone, LedgerError, NewerVersion
from penstock.ledger.folder import Folder
from penstock.ledger.index import MAX_INDEX_BYTES, SparseIndex
from penstock.ledger.recovery import lowest_seq_offset
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader, index_name, segment_name
from penstock.locks import Lock, RLock
from penstock.model import Message

# Called with (segment, offset, length, first lost seq, last lost seq, reason).
HoleListener = Callable[["Segment", int, int, int, int, str], None]
_NO_BYTE_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class AdoptedSegment:
    """A segment that was written elsewhere and is now part of the log."""

    header: SegmentHeader
    end: int
    index: SparseIndex


class Segment:
    """A segment, sealed or being written, as its readers see it. `end` is where reading stops."""

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
        self.header = header
        self.base_seq = header.base_seq
        self.name = segment_name(header.base_seq)
        self.gone = False  # removed, or replaced by a rewritten segment: do not open it again
        self._folder = folder
        self._end = end  # None: a sealed segment whose size is not known yet
        self._view: memoryview | None = None
        self._view_lock = Lock()  # guards _view and _held; the innermost lock
        self._held = False
        self._next_base_seq = next_base_seq
        self._on_hole = on_hole
        self._max_entry_bytes = max_entry_bytes
        self._index = index
        self._lock = RLock()  # guards the index, which readers extend
        self._holes: dict[int, int] = {}  # offset of a damaged range -> where reading continues

    # -- the file ----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._view is not None

    @property
    def end(self) -> int:
        if self._end is None:
            self._end = max(self.file_bytes(), HEADER_BYTES)
        return self._end

    def extend_to(self, end: int) -> None:
        """Let readers see more. A lower `end` has no effect: the caller may be late."""
        if self._end is None or end > self._end:
            self._end = max(end, HEADER_BYTES)

    def file_bytes(self) -> int:
        """Return the size of the file."""
        fd = self._open()
        try:
            return self._folder.files.size(fd)
        except OSError as error:
            raise self._unreadable(error) from error
        finally:
            self._folder.files.close(fd)

    def share_view(self, view: memoryview) -> None:
        """Read through the mapping that the writer has made."""
        with self._view_lock:
            self._view = view

    def hold(self) -> None:
        """Keep the bytes for current readers: another file is about to take this file's name."""
        self._bytes(hold=True)

    def close(self) -> None:
        """Release mapping and index. Both are made again when needed."""
        with self._view_lock:
            if not self._held:
                self._view = None
        self._index = None

    def damaged_bytes(self, offset: int, length: int) -> bytes:
        """Return a copy of a damaged range."""
        return bytes(self._bytes()[offset : offset + length])

    def _readable(self) -> tuple[int, memoryview]:
        """Return `end`, and at least that many bytes. In this order: `end` may grow.

        The file can be shorter than before: a writer in another process rewrote it.
        """
        end, view = self.end, self._bytes()
        return min(end, len(view)), view

    def _bytes(self, *, hold: bool = False) -> memoryview:
        view = self._view
        if view is not None and len(view) >= self.end and not hold:
            return view
        with self._view_lock:
            view = self._view
            if view is None or len(view) < self.end:
                view = self._view = self._map()
            self._held = self._held or hold
            return view

    def _map(self) -> memoryview:
        files = self._folder.files
        fd = self._open()
        try:
            while True:
                size = files.size(fd)
                end = size if self._end is None else min(self._end, size)
                self._end = max(end, HEADER_BYTES)
                if size < HEADER_BYTES:
                    return memoryview(bytes(HEADER_BYTES))  # no header, so no entry either
                try:
                    view = files.map(fd, size, writable=False).view
                except ValueError:
                    continue  # the writer truncated the file meanwhile
                self._check_not_rewritten(view)
                return view
        except OSError as error:
            raise self._unreadable(error) from error
        finally:
            files.close(fd)

    def _open(self) -> int:
        try:
            return self._folder.files.open(self._folder.file(self.name), "read")
        except FileNotFoundError:
            raise self._replaced() from None
        except OSError as error:
            raise self._unreadable(error) from error

    def _check_not_rewritten(self, view: memoryview) -> None:
        """Raise EntryGone if a writer in another process rewrote the file: offsets are void."""
        try:
            there = SegmentHeader.unpack(bytes(view[:HEADER_BYTES]))
        except BadEntry:
            return  # damaged; reported when the log was opened
        here = self.header
        if there.base_seq == here.base_seq and there.end_seq != here.end_seq:
            raise self._replaced()

    def _replaced(self) -> EntryGone:
        return EntryGone(
            f"{self._folder.file(self.name)} was removed or rewritten by compaction while it was "
            f"being read: open the queue again"
        )

    def _unreadable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"{self._folder.file(self.name)} cannot be read ({error}). Nothing was changed: fix "
            f"the cause (too many open files: ulimit -n) and read again."
        )

    # -- reading -----------------------------------------------------------------------------------

    def offset_of(self, seq: int) -> int:
        """Return the offset of the first entry at or above `seq`; -1 if there is none."""
        return self._seek(seq=seq)

    def offset_at_time(self, timestamp_ns: int) -> int:
        """Return the offset of the first entry at or after that time; -1 if there is none."""
        return self._seek(timestamp_ns=timestamp_ns)

    def entry_at(self, offset: int) -> Entry:
        """Return the entry at an offset; raise BadEntry if the bytes there are damaged."""
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
        """Return entries from an offset on and the offset after them, skipping damaged ranges.

        Return at least one entry, but not more than `max_bytes` of them. An empty list means the
        end of the segment.
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
                offset = self._skip_hole(offset, error.reason)
                continue
            if entries or after == offset:
                if not entries and self._stops_early(offset):
                    offset = self._skip_hole(offset, "zeros where an entry should be")
                    continue
                return entries, after
            offset = after  # only checkpoints so far

    def read_messages(
        self,
        offset: int,
        max_count: int,
        identity: int,
        max_bytes: int,
        wanted: Sequence[int] | None = None,
    ) -> tuple[list[Message], int]:
        """Return messages from an offset on, and the offset after them.

        With `wanted`, rising seqs, return only these.

        Return at least one message, but not more than `max_bytes` of them. An empty list means
        the end, or an entry that `codec.read_messages` does not read.
        """
        end, view = self._readable()
        return codec.read_messages(
            view,
            offset,
            end,
            max_count=max_count,
            identity=identity,
            max_bytes=max_bytes,
            wanted=wanted,
            seq_base=self.header.seq_base,
            max_entry_bytes=self._max_entry_bytes,
        )

    def skip_plain(self, offset: int, end_seq: int) -> tuple[int, int, int]:
        """Return the run of plain messages at an offset, [first, end), and the offset after it."""
        end, view = self._readable()
        return codec.skip_plain(
            view,
            offset,
            end,
            end_seq=end_seq,
            seq_base=self.header.seq_base,
            max_entry_bytes=self._max_entry_bytes,
        )

    def first_timestamp_ns(self) -> int | None:
        """Return the time of the first entry; None if the segment is empty."""
        entries, _ = self.read(HEADER_BYTES, 1)
        return entries[0].timestamp_ns if entries else None

    def _skim(self, start: int, end: int) -> Skim:
        return codec.skim(
            self._bytes(),
            start,
            end,
            whole_batches=False,
            seq_base=self.header.seq_base,
            max_entry_bytes=self._max_entry_bytes,
        )

    # -- the index, and seeking --------------------------------------------------------------------

    def packed_index(self) -> bytes:
        """Return the content of the index file, complete up to `end`."""
        with self._lock:
            return self._complete_index().pack()

    def save_index(self) -> None:
        """Write the index beside the segment."""
        with self._lock:
            must_sync = not self._folder.files.keeps_order
            name = index_name(self.base_seq)
            self._folder.replace(name, self.packed_index(), sync_name=must_sync)

    def _complete_index(self) -> SparseIndex:
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
                index.covered = self._skip_hole(index.covered, None)
            if index.covered == covered:
                break
        return index

    def _load_index(self) -> SparseIndex | None:
        try:
            data = self._folder.read(index_name(self.base_seq), max_bytes=MAX_INDEX_BYTES)
        except (OSError, ValueError):
            return None
        return SparseIndex.unpack(data, covered=self.end)

    def _seek(self, *, seq: int = 0, timestamp_ns: int = 0) -> int:
        with self._lock:
            start = self._start_of_search(self._complete_index(), seq, timestamp_ns)
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
                restart = self._verify_seek(found, start, end)
                if restart < 0:
                    return found
                start = restart

    def _verify_seek(self, found: int, start: int, end: int) -> int:
        """Verify the entries that a seek passed over and the one it found.

        Seeking trusts each length and each seq. Return the offset behind a bad entry, from which to
        seek again; -1 if everything is good.
        """
        passed = self._skim(start, end if found < 0 else found)
        if passed.newer:
            raise NewerVersion(passed.stop, passed.problem or "")
        if passed.problem is not None:
            return self._skip_hole(passed.stop, passed.problem)
        if found < 0:
            early = self._stops_early(passed.stop)
            return self._skip_hole(passed.stop, None) if early else -1
        try:
            seq = self.entry_at(found).seq
        except NewerVersion:
            raise
        except BadEntry as error:
            return self._skip_hole(found, error.reason)
        expected = passed.next_seq if passed.entries else self.base_seq
        if seq > expected and (passed.entries or start == HEADER_BYTES):
            after = self.skip_gap(found, expected)
            return after if after != found else -1
        return -1

    def _start_of_search(self, index: SparseIndex, seq: int, timestamp_ns: int) -> int:
        point = index.before_time(timestamp_ns) if timestamp_ns else index.before_seq(seq)
        if point is None:
            return HEADER_BYTES
        try:
            if HEADER_BYTES <= point.offset < index.covered:
                entry = self.entry_at(point.offset)
                if (entry.seq, entry.timestamp_ns) == (point.seq, point.timestamp_ns):
                    return point.offset
        except BadEntry:
            pass
        # The index is stale (from before a rewrite) or damaged: build it again from the segment.
        self._index = SparseIndex(covered=HEADER_BYTES)
        self._complete_index()
        return HEADER_BYTES

    # -- damage ------------------------------------------------------------------------------------

    def skip_gap(self, offset: int, expected_seq: int) -> int:
        """Return where to continue if the entry at `offset` has a higher seq than expected.

        That is `offset` itself if the expected entries are lost. It is a later offset if this
        entry is misplaced and the expected ones follow, as after a misdirected write.
        """
        known = self._holes.get(offset)
        if known is not None:
            return known
        behind_a_hole = any(after <= offset for after in self._holes.values())
        if behind_a_hole and not self._skim_before(offset).entries:
            return offset  # the first entry behind a hole that was reported
        after = self._lowest_seq_offset(offset, expected_seq - self.header.seq_base)
        self._holes[offset] = after
        last_lost = self.entry_at(after).seq - 1
        reason = "an entry that does not belong here" if after > offset else "entries are missing"
        self._on_hole(self, offset, after - offset, expected_seq, last_lost, reason)
        return after

    def check_end(self, next_seq: int, end_seq: int) -> None:
        """Report lost entries if a sealed segment ends before `end_seq`, where the next begins."""
        end = self.end
        if next_seq >= end_seq or end in (*self._holes, *self._holes.values()):
            return
        first_lost = max(self._skim_before(end).next_seq, self.base_seq)
        if first_lost < end_seq:
            self._holes[end] = end
            self._on_hole(self, end, 0, first_lost, end_seq - 1, "the rest is missing")

    def _stops_early(self, offset: int) -> bool:
        """Return whether anything is written behind the zeros at `offset`."""
        return codec.first_nonzero(self._bytes(), offset, self.end) >= 0

    def _skip_hole(self, offset: int, reason: str | None) -> int:
        """Return where reading continues behind the bad entry at `offset`; report it once."""
        known = self._holes.get(offset)
        if known is not None:
            return known
        if reason is None:
            reason = self._reason_at(offset)
        seq_base, end_seq = self.header.seq_base, self._next_base_seq()
        first_lost = max(self._skim_before(offset).next_seq, self.base_seq)
        first_stored, last_stored = first_lost - seq_base, end_seq - 1 - seq_base
        after = codec.resync(
            self._bytes(),
            offset + 1,
            self.end,
            min_seq=first_stored,
            max_seq=max(first_stored, last_stored),
            min_timestamp_ns=self.header.oldest_ns,
            max_entry_bytes=self._max_entry_bytes,
        )
        if after < 0:
            after, last_lost = self.end, end_seq - 1
        else:
            after = self._lowest_seq_offset(after, first_stored)
            last_lost = self.entry_at(after).seq - 1
        self._holes[offset] = after
        self._on_hole(self, offset, after - offset, first_lost, last_lost, reason)
        return after

    def _lowest_seq_offset(self, offset: int, min_stored_seq: int) -> int:
        return lowest_seq_offset(
            self._bytes(),
            offset,
            self.end,
            min_stored_seq=min_stored_seq,
            max_entry_bytes=self._max_entry_bytes,
        )

    def _skim_before(self, offset: int) -> Skim:
        """Skim the entries between the last known hole before an offset and that offset."""
        ends = (after for after in self._holes.values() if after <= offset)
        return self._skim(max(ends, default=HEADER_BYTES), offset)

    def _reason_at(self, offset: int) -> str:
        try:
            self.entry_at(offset)
        except NewerVersion:
            raise  # the entry is whole, but this version must not skip it
        except BadEntry as error:
            return error.reason
        return "bytes that are no entry"
