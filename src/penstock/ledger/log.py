"""One log: appending to its segments, rotating and syncing them.

An append has a fast path: one call into a packer, which is atomic and takes no lock. Closing the
packer (`packer.limit = 0`) makes it refuse, and the caller takes the slow path, where locks are
held. So the fast path pays nothing for the rare cases: no room, the first write after a sync, a
reader that waits for entries, and a log that is closed, stopped or forked.

Locks, in the order in which they may be taken: `_sync_lock` (one fdatasync at a time; held across
it; the tail does not change while it is held), then `_lock` (everything else, shared by the logs
of a ledger).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import Condition, Lock, RLock

from penstock import codec
from penstock.clock import Clock
from penstock.codec import Draft, Packer
from penstock.codec.layout import CHECKPOINT_BYTES, MAX_ENTRY_BYTES, MAX_SEQ, TOMBSTONE
from penstock.errors import (
    EntryGone,
    InvalidInput,
    LedgerError,
    LedgerStopped,
    PenstockError,
    again,
)
from penstock.ledger.files import as_final_error, as_passing_error
from penstock.ledger.folder import Folder
from penstock.ledger.index import SparseIndex
from penstock.ledger.json_files import LogEnd
from penstock.ledger.segment import AdoptedSegment, HoleListener, Segment
from penstock.ledger.segment_header import RELATIVE, SegmentHeader, segment_name
from penstock.ledger.segment_list import SegmentList
from penstock.ledger.settings import LedgerSettings
from penstock.ledger.space import Space
from penstock.ledger.tail import StagedTail, Tail, TailMaker, discard_segment

Item = bytes | Draft


class _MustRotate(Exception):
    """The next entry belongs into a new segment. To make one, `_sync_lock` must be held too."""


class Log:
    """A segmented, append-only log. Made by `opening.LogOpener`, which recovers it first."""

    def __init__(
        self,
        folder: Folder,
        *,
        kind: int,
        identity: int,
        settings: LedgerSettings,
        clock: Clock,
        space: Space,
        headers: Sequence[SegmentHeader],
        end: int,
        next_seq: int,
        last_timestamp_ns: int,
        lock: "RLock",
        on_hole: HoleListener,
        on_dirty: Callable[[], None],
        on_stop: Callable[[PenstockError], None],
    ) -> None:
        self.folder = folder
        self.kind = kind
        self.settings = settings
        self.now_ns = clock.now_ns
        self._tails = TailMaker(folder, settings, space, kind=kind, identity=identity)
        self._on_hole = on_hole
        self._on_dirty = on_dirty
        self._on_stop = on_stop
        self._refusal: PenstockError | None = None  # why nothing can be written
        self._unreadable: PenstockError | None = None  # why nothing can be read either
        self._sync_lock = Lock()
        self._lock = lock  # shared by the logs of a ledger: they stop together
        self._arrived = Condition(lock)
        self._waiting = 0
        self._tail: Tail | None = None  # None: the last segment is complete on disk and closed
        self._packer = _closed_packer(next_seq, last_timestamp_ns)
        self.fast_packer = self._packer  # an append tries it first, without a lock
        self._write_through = False
        self._dirty = False
        self._new_seq = 0  # the base seq of a segment that is being created; 0: none is
        self.closed_cleanly = False  # closed, with everything on disk and nothing behind it
        self._durable_next_seq = next_seq
        segments = [self._segment(header) for header in headers]
        if segments:
            segments[-1].extend_to(end)
        self.segments = SegmentList(segments, max_open=settings.max_open_segments)

    # -- state -------------------------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        """The seq that the next entry gets."""
        return self._packer.next_seq

    @property
    def first_seq(self) -> int:
        """The lowest seq that belongs to a segment; `next_seq` if there is no segment."""
        segments = self.segments.all
        return segments[0].base_seq if segments else self.next_seq

    @property
    def last_timestamp_ns(self) -> int:
        return self._packer.last_timestamp_ns

    @property
    def durable_next_seq(self) -> int:
        """Every entry below it is known to be on disk."""
        return self._durable_next_seq

    @property
    def readable_next_seq(self) -> int:
        """Readers see entries below it. With sync="always" those are the durable ones."""
        if self.settings.sync == "always":
            return self._durable_next_seq
        return self._packer.next_seq

    @property
    def end(self) -> LogEnd:
        """Where the log ends; of a log that was closed cleanly."""
        last = self.segments.last
        if last is None:
            return LogEnd(next=self.next_seq)
        return LogEnd(last.base_seq, last.end, self.next_seq)

    def size_bytes(self) -> int:
        """Return the bytes of the log, without looking at every segment."""
        self.publish_tail()
        return self.segments.size_bytes()

    def sealed_segments(self) -> list[tuple[Segment, int]]:
        """Return the sealed segments, oldest first, each with the seq where it ends.

        The segment before one that is being created is not among them: if the creation fails, it is
        written to again.
        """
        with self._lock:
            segments = self.segments.all
            if self._new_seq:
                segments = segments[:-1]
        return [(segment, following.base_seq) for segment, following in pairwise(segments)]

    # -- appending ---------------------------------------------------------------------------------
    # Each takes the clock into a local: calling an attribute that holds a callable is slower.

    def append(self, payload: bytes) -> int:
        """Append a message without options; return its seq."""
        now_ns = self.now_ns
        seq = self.fast_packer.append(payload, now_ns())
        return seq if seq >= 0 else self._append_slowly([payload])[0]

    def append_draft(self, draft: Draft) -> int:
        """Append one entry with options; return its seq."""
        return self.append_batch([draft])

    def append_batch(self, items: Sequence[Item]) -> int:
        """Append entries of which a crash leaves all or none; return the first seq."""
        now_ns = self.now_ns
        seq = self.fast_packer.append_batch(items, now_ns())
        return seq if seq >= 0 else self._append_slowly(items)[0]

    def append_batch_stamped(self, items: Sequence[Item]) -> tuple[int, int]:
        """Append a batch; return the first seq and the timestamp (ns) under which it is stored."""
        now_ns = self.now_ns
        stamped = self.fast_packer.append_batch_stamped(items, now_ns())
        return self._append_slowly(items) if stamped is None else stamped

    def append_event(self, type_: int, body: bytes) -> int:
        """Append one event; return its seq."""
        now_ns = self.now_ns
        seq = self.fast_packer.append_event(type_, body, now_ns())
        return seq if seq >= 0 else self._append_slowly([Draft(body, type_)])[0]

    def skip_to(self, seq: int) -> None:
        """Skip the seqs below `seq` and record them as a tombstone.

        For the opener of a ledger, before others can use the log.
        """
        first = self.next_seq
        if seq <= first:
            return
        if seq > MAX_SEQ:
            raise InvalidInput(f"seq {seq} is not between 0 and 2^63 - 1")
        self.append_draft(Draft((seq - 1).to_bytes(8, "little"), type=TOMBSTONE))
        self._packer.next_seq = seq

    def _append_slowly(self, items: Sequence[Item]) -> tuple[int, int]:
        """Find out why the fast path refused, fix that, and append."""
        while True:
            with self._lock:
                self._check_writable()
                full = self._batch_is_full(len(items))
                if not full:
                    try:
                        return self._append_or_stop(items)
                    except _MustRotate:
                        pass
            if full:
                self.sync()
                continue
            # Not beside another sync of the same file: the system reports a failure only once. If
            # the other one failed, ours would succeed.
            with self._sync_lock, self._lock:
                self._check_writable()
                return self._append_or_stop(items, may_rotate=True)

    def _append_or_stop(
        self, items: Sequence[Item], *, may_rotate: bool = False
    ) -> tuple[int, int]:
        try:
            return self._append_locked(items, may_rotate=may_rotate)
        except OSError as error:
            passing = as_passing_error(self.folder.path, error)
            raise passing or self._stop(error, "making room") from error

    def _append_locked(self, items: Sequence[Item], *, may_rotate: bool) -> tuple[int, int]:
        self._finish_interrupted(may_rotate=may_rotate)
        if self._tail is None:
            self._open_tail(items)
        needed = -1
        while True:
            self._open_packer(len(items))
            stamped = self._packer.append_batch_stamped(items, self.now_ns())
            if stamped is not None:
                break
            if needed < 0:
                needed = _needed_bytes(items)
            self._make_room(needed, len(items), may_rotate=may_rotate)
        if self._write_through:
            self._flush()
        if self._write_through or self._waiting:
            self._packer.limit = 0
        if self._waiting and self.settings.sync != "always":
            self._arrived.notify_all()
        return stamped

    def _batch_is_full(self, count: int) -> bool:
        if self.settings.sync != "batch":
            return False
        unsynced = self.next_seq - self._durable_next_seq
        return unsynced > 0 and unsynced + count > self.settings.sync_batch

    def _open_packer(self, count: int) -> None:
        """Open the fast path, for `count` entries at least."""
        tail = self._tail
        assert tail is not None
        if not self._dirty:
            self._on_dirty()  # first: an interrupt must not leave the packer open, untold
            self._dirty = True
        self._tails.limit_packer(tail, count, self.now_ns(), self._durable_next_seq)
        self._packer.limit = tail.open_limit

    # -- room --------------------------------------------------------------------------------------

    def _finish_interrupted(self, *, may_rotate: bool) -> None:
        """Finish what an interrupt left half done. Caller holds the lock.

        A segment that was created and has no tail is removed: its seqs go to the one before. A tail
        whose packer is not in use is put into use. A tail that was to be closed is closed.
        """
        tail, new_seq = self._tail, self._new_seq
        if new_seq and (tail is None or tail.header.base_seq != new_seq):
            stray = self.segments.last
            if stray is not None and stray.base_seq == new_seq:
                self.segments.drop([stray])
            if self.folder.has(segment_name(new_seq)):
                discard_segment(self.folder, new_seq)
        self._new_seq = 0
        if tail is None:
            return
        if tail.packer is not self._packer:
            self._use_tail(tail)
        if tail.is_closing:
            if not may_rotate:
                raise _MustRotate
            self._close_tail(tail)

    def _make_room(self, needed: int, count: int, *, may_rotate: bool) -> None:
        """After the packer refused: flush the staged bytes, start a new segment, or grow."""
        tail = self._tail
        assert tail is not None
        self._packer.limit = 0
        if tail.staged_bytes:
            self._flush()
        elif self._tails.is_full(tail, needed, count, self.now_ns()):
            if not may_rotate:
                raise _MustRotate
            self._rotate(needed)
        else:
            if isinstance(tail, StagedTail):
                tail.stage_at_least(needed)
            if tail.end + needed > tail.size:
                self._tails.grow(tail, needed)
            self._use_tail(tail)
            tail.write_behind()

    def seal_if_old(self) -> None:
        """Seal the last segment if it is older than `segment_age_s`.

        An append does so as well, but there may be none.
        """
        if self.settings.segment_age_s:
            self._seal_last(only_if_old=True)

    def seal(self) -> None:
        """Seal the last segment, unless it is empty."""
        self._seal_last(only_if_old=False)

    def _seal_last(self, *, only_if_old: bool) -> None:
        with self._sync_lock, self._lock:
            self._check_writable()
            if self.segments.last is None or self.segments.last.base_seq == self.next_seq:
                return
            try:
                self._seal_tail(only_if_old=only_if_old)
            except OSError as error:
                passing = as_passing_error(self.folder.path, error)
                raise passing or self._stop(error, "sealing a segment") from error

    def _seal_tail(self, *, only_if_old: bool) -> None:
        self._finish_interrupted(may_rotate=True)
        if self._tail is None:
            self._open_tail(())
        tail = self._tail
        assert tail is not None
        self._packer.limit = 0
        if tail.staged_bytes:
            self._flush()
        if not only_if_old or self._tails.is_full(tail, 0, 0, self.now_ns()):
            self._rotate(CHECKPOINT_BYTES)

    def _rotate(self, needed: int) -> None:
        """Seal the tail and continue in a new segment. The packer is closed.

        Every step may be repeated, for an interrupt may come between any two of them: see
        `_finish_interrupted`.
        """
        old = self._tail
        assert old is not None
        self._fdatasync(old)
        old.synced_upto = old.end
        self._durable_next_seq = self._packer.next_seq
        sealed = self.segments.last
        assert sealed is not None
        # Before readers can see the next segment: they then take this one for complete.
        sealed.extend_to(old.end)
        try:
            old.trim()
        except OSError:
            pass  # zeros behind the end are harmless
        new = self._create_tail(needed)
        self._save_index(sealed)
        self._use_tail(new)
        self._new_seq = 0
        old.close()

    def _save_index(self, segment: Segment) -> None:
        try:
            segment.save_index()
        except (OSError, LedgerError):
            pass  # a cache
        segment.close()

    def _create_tail(self, needed: int) -> Tail:
        packer, old = self._packer, self._tail
        self._new_seq = packer.next_seq
        tail = self._tails.create(
            needed,
            next_seq=packer.next_seq,
            now_ns=max(self.now_ns(), packer.last_timestamp_ns),
            old_bytes=old.size if old else 0,
        )
        self.segments.add(self._segment(tail.header, tail.end))
        return tail

    def _segment(
        self, header: SegmentHeader, end: int | None = None, index: SparseIndex | None = None
    ) -> Segment:
        return Segment(
            self.folder,
            header,
            end=end,
            index=index,
            next_base_seq=lambda: self.segments.next_base_seq(header.base_seq) or self.next_seq,
            on_hole=self._on_hole,
            max_entry_bytes=self.settings.max_entry_bytes,
        )

    def _open_tail(self, items: Sequence[Item]) -> None:
        """Open the last segment for writing, or create one."""
        segment = self.segments.last
        if segment is None or segment.header.flags & RELATIVE:
            # There is none, or it was written elsewhere and its seqs are relative.
            self._use_tail(self._create_tail(_needed_bytes(items)))
            self._new_seq = 0
            return
        packer = self._packer
        tail = self._tails.reopen(  # recovery, or the last `rest`, synced all of it
            segment.header,
            end=segment.end,
            next_seq=packer.next_seq,
            last_timestamp_ns=packer.last_timestamp_ns,
        )
        self._use_tail(tail)

    def _use_tail(self, tail: Tail) -> None:
        """Let appends go to this tail."""
        self._tail = tail
        self._write_through = isinstance(tail, StagedTail) and self.settings.sync != "always"
        segment = self.segments.last
        assert segment is not None
        if tail.view is not None:
            segment.share_view(tail.view)
        if self._packer is not tail.packer:
            self._packer.limit = 0
        # With write-through there is no fast path: while one thread has the packer open, another
        # would be answered with its bytes still in memory.
        self.fast_packer = _closed_packer(0, 0) if self._write_through else tail.packer
        self._packer = tail.packer  # last: `_finish_interrupted` looks at it

    # -- durability --------------------------------------------------------------------------------

    @property
    def needs_sync(self) -> bool:
        """Whether anything was appended that is not on disk."""
        with self._lock:
            tail = self._tail
            return tail is not None and tail.end + tail.staged_bytes > tail.synced_upto

    def sync(self) -> None:
        """Return when every entry appended before the call is on disk."""
        with self._lock:
            self._check_writable()
        self._sync()

    def _sync(self) -> None:
        with self._sync_lock:
            with self._lock:
                self._finish_or_stop()
                tail = self._tail
                if tail is None:
                    self._dirty = False
                    return
                next_seq = self._packer.next_seq  # before `end`, which then covers it
                self._flush()
                end = tail.end
            if end > tail.synced_upto:
                self._fdatasync(tail)
            with self._lock:
                self._synced(tail, end, next_seq)

    def _finish_or_stop(self) -> None:
        """Caller holds both locks."""
        try:
            self._finish_interrupted(may_rotate=True)
        except OSError as error:
            raise self._stop(error, "writing") from error

    def _synced(self, tail: Tail, end: int, next_seq: int) -> None:
        self._durable_next_seq = max(self._durable_next_seq, next_seq)
        # Close the packer before looking at it: an append then waits for the lock.
        self._packer.limit = 0
        if end > tail.synced_upto:
            tail.synced_upto = end
            tail.packer.promise(end)
        if tail.end + tail.staged_bytes == end:
            self._dirty = False
        else:
            self._on_dirty()
        if self.settings.sync == "always" and self._refusal is None:
            self._packer.limit = tail.open_limit
        if self._waiting:
            self._arrived.notify_all()

    def _flush(self) -> None:
        assert self._tail is not None
        try:
            self._tail.flush()
        except OSError as error:
            raise self._stop(error, "writing") from error

    def _fdatasync(self, tail: Tail) -> None:
        try:
            tail.sync()
        except OSError as error:
            raise self._stop(error, "syncing") from error

    def rest(self) -> None:
        """Sync, record that everything is synced, and keep no file open until the next append."""
        with self._lock:
            self._check_writable()
        self._rest()
        self.segments.close()

    def _rest(self) -> None:
        self._sync()
        with self._sync_lock, self._lock:
            self._finish_or_stop()
            self._packer.limit = 0  # no append from here on, so it can be seen if there was one
            tail = self._tail
            if tail is None or tail.end + tail.staged_bytes > tail.synced_upto:
                return  # another thread has appended
            tail.is_closing = True
            self._close_tail(tail)

    def _close_tail(self, tail: Tail) -> None:
        """Caller holds both locks; the packer is closed. May be repeated after an interrupt."""
        try:
            end = tail.close_off()
        except OSError as error:
            raise self._stop(error, "closing") from error
        self._fdatasync(tail)
        segment = self.segments.last
        assert segment is not None
        segment.extend_to(end)
        segment.close()
        self._drop_tail(tail)

    def _drop_tail(self, tail: Tail) -> None:
        packer = self._packer
        self._packer = self.fast_packer = _closed_packer(packer.next_seq, packer.last_timestamp_ns)
        self._tail = None
        tail.close()

    # -- refusing ----------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        if self._refusal is not None:
            raise again(self._refusal)

    def check_readable(self) -> None:
        """Raise if the log cannot be read any more: closed or forked."""
        if self._unreadable is not None:
            raise again(self._unreadable)

    def refuse(self, reason: PenstockError) -> None:
        """Refuse writes from now on; each caller gets a copy of `reason`."""
        with self._lock:
            if self._refusal is None:
                self._refusal = reason
            self._packer.limit = 0
            self._arrived.notify_all()

    def _stop(self, error: OSError, doing: str) -> LedgerStopped:
        stopped = as_final_error(self.folder.path, doing, error)
        self._on_stop(stopped)
        return stopped

    def forked(self, lock: "RLock", reason: PenstockError) -> None:
        """Disable this handle in a forked child. A thread of the parent may hold the old locks."""
        self._lock, self._sync_lock = lock, Lock()
        self._arrived = Condition(lock)
        self._unreadable = self._refusal = reason
        # A new packer: the lock of the pure-Python packer may be held by a parent's thread as well.
        packer = self._packer
        self._packer = self.fast_packer = _closed_packer(packer.next_seq, packer.last_timestamp_ns)

    def close(self, closed: PenstockError) -> None:
        """Sync, close the files, and refuse everything from now on with that reason."""
        with self._lock:
            well = self._refusal is None
            self.refuse(closed)
            self._unreadable = closed
        try:
            if well:
                self._rest()
                self.closed_cleanly = self._tail is None
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files without syncing them."""
        with self._sync_lock, self._lock:
            if self._tail is not None:
                self._drop_tail(self._tail)
            self.segments.close()

    # -- for compaction and adoption ---------------------------------------------------------------

    def drop(self, segments: Sequence[Segment]) -> None:
        """Remove segments from the list, before their files are removed."""
        with self._lock:
            self._check_writable()
            self.segments.drop(segments)

    def replace_run(self, run: Sequence[Segment], header: SegmentHeader, end: int) -> Segment:
        """Let readers see one rewritten segment in place of a run of neighbours; return it."""
        with self._lock:
            new = self._segment(header, end)
            self.segments.merge(run, new)
            return new

    def adopt(
        self,
        count: int,
        move: Callable[[int, int], tuple[Sequence[AdoptedSegment], int]],
    ) -> int:
        """Let `move` put segments with `count` entries behind the last one; return the first seq.

        `move` is called while no append can happen, with that seq and the time of the last entry.
        It returns the segments and the new time of the last entry. If the system fails it half-way,
        the log stops: opening it again finds out which files are there.
        """
        while True:
            self.rest()  # the last segment must be complete before another follows it
            with self._sync_lock, self._lock:
                self._check_writable()
                self._packer.limit = 0
                if self._tail is not None:
                    continue  # another thread has appended
                first_seq, last_ns = self._packer.next_seq, self._packer.last_timestamp_ns
                try:
                    moved, last_ns = move(first_seq, last_ns)
                    new = [self._segment(one.header, one.end, one.index) for one in moved]
                    self.segments.add(*new)
                    self._packer = self.fast_packer = _closed_packer(first_seq + count, last_ns)
                except OSError as error:
                    raise self._stop(error, "adopting segments") from error
                except PenstockError:
                    raise
                except BaseException:  # an interrupt: it is unknown which files are in place
                    self._on_stop(
                        LedgerStopped(
                            f"{self.folder.path}: adopting segments was interrupted, so writing "
                            f"stopped. Open the queue again: it finds out what is in place."
                        )
                    )
                    raise
                self._durable_next_seq = first_seq + count
                self._arrived.notify_all()
            for segment in new:
                self._save_index(segment)
            return first_seq

    # -- for readers -------------------------------------------------------------------------------

    def durable_segments(self) -> tuple[list[tuple[Segment, int]], int]:
        """Return the segments, each with its bytes known to be on disk, and the seq behind them.

        All of one moment. More may be on disk than is known to be.
        """
        while True:
            with self._lock:
                segments, tail = self.segments.all, self._tail
                synced_upto = tail.synced_upto if tail is not None else None
                next_seq = self._durable_next_seq
            try:
                found = [(segment, segment.end) for segment in segments]
            except EntryGone:
                if not any(segment.gone for segment in segments):
                    raise
                continue  # compaction removed one meanwhile
            if synced_upto is not None and found:
                found[-1] = (segments[-1], synced_upto)
            return found, next_seq

    def publish_tail(self) -> None:
        """Let readers of the last segment see everything that was appended."""
        while (tail := self._tail) is not None:
            if isinstance(tail, StagedTail):
                with self._lock:  # a writer may have taken its bytes and not written them yet
                    if self._tail is tail and self._refusal is None:
                        self._flush()
            segment = self.segments.last
            if segment is not None and segment.base_seq == tail.header.base_seq:
                segment.extend_to(tail.end)
            if self._tail is tail:
                return

    def wait_for(self, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the entry `seq` can be read; return False on timeout, or if writing stops."""
        with self._lock:
            try:
                self._waiting += 1
                self._packer.limit = 0  # the next append takes the slow path and wakes us
                return (
                    self._arrived.wait_for(
                        lambda: self.readable_next_seq > seq or self._refusal is not None, timeout_s
                    )
                    and self.readable_next_seq > seq
                )
            finally:
                self._waiting -= 1


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
