"""The end of a log: the segment being written, and the steps from one segment to the next.

`LogWriter` takes no locks: its caller holds the ledger's lock. Steps that end a segment need the
log's sync lock too, and raise `MustRotate` without it.

An interrupt may come between any two steps, so each can be repeated: see `finish_interrupted`.
"""

from collections.abc import Callable, Sequence

from penstock import codec
from penstock.codec import Draft, Notes, Packer
from penstock.codec.layout import CHECKPOINT_BYTES, MAX_ENTRY_BYTES
from penstock.errors import DiskFull, LedgerError, LedgerStopped
from penstock.ledger.files import FULL_ERRORS
from penstock.ledger.folder import Folder
from penstock.ledger.segment import Segment
from penstock.ledger.segment_header import RELATIVE, SegmentHeader, segment_name
from penstock.ledger.segment_list import SegmentList
from penstock.ledger.settings import LedgerSettings
from penstock.ledger.tail import StagedTail, Tail, TailMaker, discard_segment

Item = bytes | Draft


class MustRotate(Exception):
    """The next entry belongs into a new segment. To make one, the sync lock must be held too."""


class LogWriter:
    """Appends to the last segment of a log, and creates, seals and closes segments."""

    def __init__(
        self,
        folder: Folder,
        segments: SegmentList,
        tails: TailMaker,
        settings: LedgerSettings,
        *,
        next_seq: int,
        last_timestamp_ns: int,
        now_ns: Callable[[], int],
        segment_of: Callable[[SegmentHeader, int], Segment],
        on_packer: Callable[[Packer], None],
        on_dirty: Callable[[], None],
        stop: Callable[[OSError, str], LedgerStopped],
    ) -> None:
        """`on_packer` gets the packer of the fast path whenever it changes. `on_dirty` is called
        when there is something to sync. `stop` ends all writing and returns the error to raise.
        """
        self._folder = folder
        self._keeps_order = folder.files.keeps_order
        self._segments = segments
        self._tails = tails
        self._settings = settings
        self._now_ns = now_ns
        self._segment_of = segment_of
        self._on_packer = on_packer
        self._on_dirty = on_dirty
        self._stop = stop
        self._write_through = False
        self._is_dirty = False
        self._new_seq = 0  # the base seq of a segment that is being created; 0: none is
        self.durable_next_seq = next_seq  # every entry below it is known to be on disk
        self.tail: Tail | None = None  # None: the last segment is complete on disk and closed
        self.packer = _closed_packer(next_seq, last_timestamp_ns)
        self._notes: Notes | None = None

    def keep_notes(self, notes: Notes) -> None:
        """Note messages with options. Before others can use the log."""
        self._notes = self.packer.notes = notes

    @property
    def created_segments(self) -> tuple[Segment, ...]:
        """The segments, without one whose creation has not finished."""
        segments = self._segments.all
        return segments[:-1] if self._new_seq else segments

    @property
    def needs_sync(self) -> bool:
        """Whether anything was appended that is not on disk."""
        tail = self.tail
        if tail is None:
            return False
        is_behind = self.durable_next_seq < self.packer.next_seq  # also after a new segment
        return is_behind or tail.end + tail.staged_bytes > tail.synced_upto

    # -- appending ---------------------------------------------------------------------------------

    def append(self, items: Sequence[Item], *, may_rotate: bool) -> tuple[int, int]:
        """Append a batch, and open the fast path. Return the first seq and the timestamp (ns)."""
        self.finish_interrupted(may_rotate=may_rotate)
        if self.tail is None:
            self._open_tail(items)
        needed = -1
        while True:
            self._open_packer(len(items))
            stamped = self.packer.append_batch_stamped(items, self._now_ns())
            if stamped is not None:
                break
            if needed < 0:
                needed = _needed_bytes(items)
            self._make_room(needed, len(items), may_rotate=may_rotate)
        if self._write_through:
            self.flush()
            self.packer.limit = 0
        return stamped

    def is_batch_full(self, count: int) -> bool:
        """Return whether `sync="batch"` requires a sync before `count` more entries."""
        if self._settings.sync != "batch":
            return False
        unsynced = self.packer.next_seq - self.durable_next_seq
        return unsynced > 0 and unsynced + count > self._settings.sync_batch

    def _open_packer(self, count: int) -> None:
        """Open the fast path, for `count` entries at least."""
        tail = self.tail
        assert tail is not None
        if not self._is_dirty:
            self._on_dirty()  # first: an interrupt must not leave the packer open, untold
            self._is_dirty = True
        self._tails.limit_packer(tail, count, self._now_ns(), self.durable_next_seq)
        self.packer.limit = tail.open_limit

    def _make_room(self, needed: int, count: int, *, may_rotate: bool) -> None:
        """After the packer refused: flush the staged bytes, start a new segment, or grow."""
        tail = self.tail
        assert tail is not None
        self.packer.limit = 0
        if tail.staged_bytes:
            self.flush()
        elif self._tails.is_full(tail, needed, count, self._now_ns()):
            if not may_rotate:
                raise MustRotate
            self._rotate(needed)
        else:
            if isinstance(tail, StagedTail):
                tail.stage_at_least(needed)
            if tail.end + needed > tail.size:
                self._tails.grow(tail, needed)
            self._use_tail(tail)
            tail.write_behind()

    # -- from one segment to the next --------------------------------------------------------------

    def finish_interrupted(self, *, may_rotate: bool) -> None:
        """Finish what an interrupt left half done.

        A segment that was created and has no tail is removed: its seqs go to the one before. A tail
        whose packer is not in use is put into use. A tail that was to be closed is closed.
        """
        tail, new_seq = self.tail, self._new_seq
        if new_seq and (tail is None or tail.header.base_seq != new_seq):
            stray = self._segments.last
            if stray is not None and stray.base_seq == new_seq:
                self._segments.drop([stray])
            if self._folder.has(segment_name(new_seq)):
                discard_segment(self._folder, new_seq)
        self._new_seq = 0
        if tail is None:
            return
        if tail.packer is not self.packer:
            self._use_tail(tail)
        if tail.is_closing:
            if not may_rotate:
                raise MustRotate
            self.close_tail(tail)

    def seal(self, *, only_if_old: bool) -> None:
        """Seal the last segment, unless it is empty. Needs the sync lock."""
        last = self._segments.last
        if last is None or last.base_seq == self.packer.next_seq:
            return
        self.finish_interrupted(may_rotate=True)
        if self.tail is None:
            self._open_tail(())
        tail = self.tail
        assert tail is not None
        self.packer.limit = 0
        if tail.staged_bytes:
            self.flush()
        if not only_if_old or self._tails.is_full(tail, 0, 0, self._now_ns()):
            self._rotate(CHECKPOINT_BYTES)

    def _rotate(self, needed: int) -> None:
        """Seal the tail and continue in a new segment. The packer is closed."""
        old = self.tail
        assert old is not None
        if not self._keeps_order:
            self.fdatasync(old)
            old.synced_upto = old.end
            self.durable_next_seq = self.packer.next_seq
        sealed = self._segments.last
        assert sealed is not None
        # Before readers can see the next segment: they then take this one for complete.
        sealed.extend_to(old.end)
        try:
            old.trim()
        except OSError:
            pass  # zeros behind the end are harmless
        new = self._create_tail(needed)
        save_index(sealed)
        self._use_tail(new)
        self._new_seq = 0
        old.close()

    def _create_tail(self, needed: int) -> Tail:
        packer, old = self.packer, self.tail
        self._new_seq = packer.next_seq
        tail = self._tails.create(
            needed,
            next_seq=packer.next_seq,
            now_ns=max(self._now_ns(), packer.last_timestamp_ns),
            old_bytes=old.size if old else 0,
        )
        self._segments.add(self._segment_of(tail.header, tail.end))
        return tail

    def _open_tail(self, items: Sequence[Item]) -> None:
        """Open the last segment for writing, or create one."""
        segment = self._segments.last
        if segment is None or segment.header.flags & RELATIVE:
            # There is none, or it was written elsewhere and its seqs are relative.
            self._use_tail(self._create_tail(_needed_bytes(items)))
            self._new_seq = 0
            return
        packer = self.packer
        tail = self._tails.reopen(  # recovery, or the last `rest`, synced all of it
            segment.header,
            end=segment.end,
            next_seq=packer.next_seq,
            last_timestamp_ns=packer.last_timestamp_ns,
        )
        self._use_tail(tail)

    def _use_tail(self, tail: Tail) -> None:
        """Let appends go to this tail."""
        self.tail = tail
        self._write_through = isinstance(tail, StagedTail) and self._settings.sync != "always"
        segment = self._segments.last
        assert segment is not None
        if tail.view is not None:
            segment.share_view(tail.view)
        if self.packer is not tail.packer:
            self.packer.limit = 0
        tail.packer.notes = self._notes
        # With write-through there is no fast path: while one thread has the packer open, another
        # would be answered with its bytes still in memory.
        self._on_packer(_closed_packer(0, 0) if self._write_through else tail.packer)
        self.packer = tail.packer  # last: `finish_interrupted` looks at it

    def close_tail(self, tail: Tail) -> None:
        """Complete the segment on disk, and close it. Needs the sync lock; the packer is closed."""
        try:
            end = tail.close_off()
        except OSError as error:
            raise self._stop(error, "closing") from error
        self.fdatasync(tail)
        segment = self._segments.last
        assert segment is not None
        segment.extend_to(end)
        segment.close()
        self.drop_tail()

    def drop_tail(self) -> None:
        """Close the file being written, if there is one, without writing anything."""
        if (tail := self.tail) is not None:
            self.continue_at(self.packer.next_seq, self.packer.last_timestamp_ns)
            self.tail = None
            tail.close()

    def continue_at(self, next_seq: int, last_timestamp_ns: int) -> None:
        """Replace the packer by a closed one that continues there."""
        packer = _closed_packer(next_seq, last_timestamp_ns)
        packer.notes = self._notes
        self.packer = packer
        self._on_packer(packer)

    def forked(self) -> None:
        """Replace the packer in a forked child: a thread of the parent may hold its lock."""
        self.packer = _closed_packer(self.packer.next_seq, self.packer.last_timestamp_ns)
        self._on_packer(self.packer)

    # -- durability --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write staged bytes to the file."""
        assert self.tail is not None
        try:
            self.tail.flush()
        except OSError as error:
            raise self._stop(error, "writing") from error

    def fdatasync(self, tail: Tail) -> None:
        """Make what is in the file durable. The ledger's lock need not be held."""
        try:
            if self._keeps_order:
                self._folder.sync()  # covers every file; this one may be closed meanwhile
            else:
                tail.sync()
        except OSError as error:
            raise self.sync_failed(error) from error

    def sync_failed(self, error: OSError) -> LedgerError:
        """Stop, because what was flushed did not become durable. Return the error of its calls."""
        stopped = self._stop(error, "syncing")
        if self._keeps_order and error.errno in FULL_ERRORS:  # nothing of it was written
            return DiskFull(f"{error.strerror}; nothing was written: free space, and try again")
        return stopped

    def begin_sync(self) -> tuple[Tail, int, int] | None:
        """Flush. Return what a sync covers: the tail, its end, the seq behind; None: nothing."""
        tail = self.tail
        if tail is None:
            self._is_dirty = False
            return None
        next_seq = self.packer.next_seq  # before `end`, which then covers it
        self.flush()
        return tail, tail.end, next_seq

    def end_sync(self, tail: Tail, end: int, next_seq: int, *, may_open: bool) -> None:
        """Note what is durable now. The next append records it in a checkpoint."""
        self.durable_next_seq = max(self.durable_next_seq, next_seq)
        # Close the packer before looking at it: an append then waits for the lock.
        self.packer.limit = 0
        if end > tail.synced_upto:
            tail.synced_upto = end
            tail.packer.promise(end)
        if tail.end + tail.staged_bytes == end:
            self._is_dirty = False
        else:
            self._on_dirty()
        if self._settings.sync == "always" and may_open:
            self.packer.limit = tail.open_limit


def save_index(segment: Segment) -> None:
    """Save the sparse index of a sealed segment if possible: it is a cache. Close the segment."""
    try:
        segment.save_index()
    except (OSError, LedgerError):
        pass
    segment.close()


def _needed_bytes(items: Sequence[Item]) -> int:
    """Return the bytes of a call that appends these, with its checkpoint."""
    drafts = (item if isinstance(item, Draft) else Draft(item) for item in items)
    return CHECKPOINT_BYTES + sum(len(codec.pack(0, 0, draft)) for draft in drafts)


def _closed_packer(next_seq: int, last_timestamp_ns: int) -> Packer:
    """Return a packer that refuses everything and remembers where to continue."""
    return Packer(
        bytearray(0),
        position=0,
        limit=0,
        next_seq=next_seq,
        last_timestamp_ns=last_timestamp_ns,
        max_entry_bytes=MAX_ENTRY_BYTES,  # the next tail checks the real limit
    )
