"""One log: writing, rotating and syncing its segments.

The usual append is in `appending.py` and takes no lock. What is not usual (no room, first write
after a sync, someone waiting for entries, closed, stopped, forked) comes here, where `_lock` is
held.

Locks, in the order in which they may be taken: `_sync_lock` (one fdatasync at a time; held across
it; the tail stays while it is held), then `_lock` (the structure, shared by the logs of a ledger).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import Condition, Lock, RLock

from penstock import codec
from penstock.clock import Clock
from penstock.codec import Draft, Packer
from penstock.codec.layout import (
    CHECKPOINT_BYTES,
    MAX_ENTRY_BYTES,
    MAX_SEQ,
    MAX_TIMESTAMP_NS,
    TOMBSTONE,
)
from penstock.errors import (
    EntryGone,
    InvalidInput,
    LedgerError,
    LedgerStopped,
    PenstockError,
    again,
)
from penstock.ledger.appending import Appending, Item, T
from penstock.ledger.folder import Folder
from penstock.ledger.index import SparseIndex
from penstock.ledger.segment import HoleListener, Placed, Segment
from penstock.ledger.segment_header import RELATIVE, SegmentHeader, segment_name
from penstock.ledger.segment_list import SegmentList
from penstock.ledger.settings import LedgerSettings
from penstock.ledger.space import Space
from penstock.ledger.system_errors import as_final_error, as_passing_error
from penstock.ledger.tail import StagedTail, Tail
from penstock.ledger.tail_maker import TailMaker, discard_segment


class _MustRotate(Exception):
    """The next entry belongs into a new segment. For that, `_sync_lock` must be held as well."""


class Log(Appending):
    """A segmented, append-only log. Made by `opening.open_log`, which recovers it first."""

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
        self._unreadable: PenstockError | None = None  # why nothing can even be read
        self._sync_lock = Lock()
        self._lock = lock  # shared by the logs of a ledger: a stop stops them together
        self._arrived = Condition(lock)
        self._waiting = 0
        self._tail: Tail | None = None  # None: resting; the last segment is complete on disk
        self._packer = _shut_packer(next_seq, last_timestamp_ns)
        self.hot = self._packer  # what an append tries first, without a lock
        self._write_through = False
        self._dirty = False
        self._begun_seq = 0  # the base seq of a segment that is being made; 0: none is
        self.ended_well = False  # closed, with everything on disk and nothing behind it
        self._durable_next_seq = next_seq
        segments = [self._segment(header) for header in headers]
        if segments:
            segments[-1].grown_to(end)
        self.segments = SegmentList(segments, max_open=settings.max_open_segments)

    # -- what others may ask -----------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        """The seq that the next entry gets."""
        return self._packer.next_seq

    @property
    def first_seq(self) -> int:
        """The lowest seq that a segment stands for; `next_seq` if there is no segment."""
        segments = self.segments.all
        return segments[0].base_seq if segments else self.next_seq

    def size_bytes(self) -> int:
        """Return how many bytes the log holds, without looking at every segment."""
        self.publish_tail()
        return self.segments.size_bytes()

    @property
    def last_timestamp_ns(self) -> int:
        return self._packer.last_timestamp_ns

    @property
    def durable_next_seq(self) -> int:
        """Every entry below it is known to be on disk."""
        return self._durable_next_seq

    @property
    def readable_next_seq(self) -> int:
        """Readers see entries below it: with "always", only what is durable."""
        if self.settings.sync == "always":
            return self._durable_next_seq
        return self._packer.next_seq

    def sealed(self) -> list[tuple[Segment, int]]:
        """The sealed segments, oldest first, with the seq where each ends.

        While a segment is being made, or its making was interrupted, the one before it may be
        written to again: it is not among them.
        """
        with self._lock:
            segments = self.segments.all
            if self._begun_seq:
                segments = segments[:-1]
        return [(segment, following.base_seq) for segment, following in pairwise(segments)]

    # -- writing -----------------------------------------------------------------------------------

    def skip_to(self, seq: int) -> None:
        """Leave out seqs below `seq`, on record: a tombstone stands for them.

        For the opener of a ledger, before anyone else has it.
        """
        first = self.next_seq
        if seq <= first:
            return
        if seq > MAX_SEQ:
            raise InvalidInput(f"seq {seq} is not between 0 and 2^63 - 1")
        self.append_draft(Draft((seq - 1).to_bytes(8, "little"), type=TOMBSTONE))
        self._packer.next_seq = seq

    def _write(self, items: Sequence[Item], write: Callable[[Packer, int], T | None]) -> T:
        """Behind the gate: find out what is in the way, mend it, write."""
        while True:
            with self._lock:
                self._check_writable()
                full = self._batch_is_full(len(items))
                if not full:
                    try:
                        return self._write_or_stop(items, write)
                    except _MustRotate:
                        pass
            if full:
                self.sync()
                continue
            # Not beside another sync of the same file: the system tells of a failure once, so if
            # that one were to fail, ours would succeed.
            with self._sync_lock, self._lock:
                self._check_writable()
                return self._write_or_stop(items, write, may_rotate=True)

    def _write_or_stop(
        self,
        items: Sequence[Item],
        write: Callable[[Packer, int], T | None],
        *,
        may_rotate: bool = False,
    ) -> T:
        try:
            return self._write_locked(items, write, may_rotate=may_rotate)
        except OSError as error:
            passing = as_passing_error(self.folder.path, error)
            raise passing or self._stop(error, "making room") from error

    def _write_locked(
        self,
        items: Sequence[Item],
        write: Callable[[Packer, int], T | None],
        *,
        may_rotate: bool,
    ) -> T:
        self._complete(may_rotate=may_rotate)
        if self._tail is None:
            self._wake_tail(items)
        needed = -1
        while True:
            self._open_gate(len(items))
            written = write(self._packer, self.now_ns())
            if written is not None and written != -1:
                break
            if needed < 0:
                needed = CHECKPOINT_BYTES + sum(_size_of(item) for item in items)
            self._make_room(needed, len(items), may_rotate=may_rotate)
        if self._write_through:
            self._flush()
        if self._write_through or self._waiting:
            self._packer.limit = 0
        if self._waiting and self.settings.sync != "always":
            self._arrived.notify_all()
        return written

    def _batch_is_full(self, count: int) -> bool:
        if self.settings.sync != "batch":
            return False
        waiting = self.next_seq - self._durable_next_seq
        return waiting > 0 and waiting + count > self.settings.sync_batch

    def _open_gate(self, count: int) -> None:
        tail, packer = self._tail, self._packer
        assert tail is not None
        if not self._dirty:
            self._on_dirty()  # before the gate is open: an interrupt must not leave it open, untold
            self._dirty = True
        packer.seq_limit = self._seq_limit(tail, count)
        if self.settings.segment_age_s and packer.next_seq == tail.header.base_seq:
            # Empty: its age counts from its first entry, else it would never take one.
            begins_ns = max(self.now_ns(), packer.last_timestamp_ns)
            age_ns = round(self.settings.segment_age_s * 1e9)
            packer.time_limit_ns = min(begins_ns + age_ns, MAX_TIMESTAMP_NS)
        packer.limit = tail.open_limit

    def _seq_limit(self, tail: Tail, count: int) -> int:
        limit = MAX_SEQ
        next_seq = self._packer.next_seq
        if self.settings.segment_entries:
            limit = tail.header.base_seq + self.settings.segment_entries
            if next_seq == tail.header.base_seq:
                limit = max(limit, next_seq + count)  # a batch larger than a segment has its own
        if self.settings.sync == "batch":
            full = self._durable_next_seq + max(self.settings.sync_batch, count)
            limit = min(limit, max(full, next_seq + count))
        return limit

    # -- room --------------------------------------------------------------------------------------

    def _complete(self, *, may_rotate: bool) -> None:
        """Complete what an interrupt left half done. Hold the lock.

        A segment that was made and has no tail is removed: its seqs go to the one before. A tail
        whose packer is not the one in use is adopted (again). One that was to be closed is closed.
        """
        tail, begun_seq = self._tail, self._begun_seq
        if begun_seq and (tail is None or tail.header.base_seq != begun_seq):
            stray = self.segments.last
            if stray is not None and stray.base_seq == begun_seq:
                self.segments.drop([stray])
            if self.folder.has(segment_name(begun_seq)):
                discard_segment(self.folder, begun_seq)
        self._begun_seq = 0
        if tail is None:
            return
        if tail.packer is not self._packer:
            self._adopt(tail)
        if tail.is_closing:
            if not may_rotate:
                raise _MustRotate
            self._close_tail(tail)

    def _make_room(self, needed: int, count: int, *, may_rotate: bool) -> None:
        """After the packer refused: hand on what is staged, start a new segment, or grow."""
        tail = self._tail
        assert tail is not None
        self._packer.limit = 0
        if tail.staged_bytes:
            self._flush()
        elif self._must_rotate(tail, needed, count):
            if not may_rotate:
                raise _MustRotate
            self._seal_and_begin(needed)
        else:
            if isinstance(tail, StagedTail):
                tail.stage_at_least(needed)
            if tail.end + needed > tail.size:
                self._tails.grow(tail, needed)
            self._adopt(tail)
            tail.write_behind()

    def _must_rotate(self, tail: Tail, needed: int, count: int) -> bool:
        packer, base = self._packer, tail.header.base_seq
        if packer.next_seq == base:
            return False
        limit_entries = self.settings.segment_entries
        return (
            tail.end + needed > self.settings.segment_bytes
            or (limit_entries > 0 and packer.next_seq + count > base + limit_entries)
            or max(self.now_ns(), packer.last_timestamp_ns) > packer.time_limit_ns
        )

    def seal_if_old(self) -> None:
        """Seal the last segment if it is older than `segment_age_s`.

        An append does so as well, but may not come.
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
        self._complete(may_rotate=True)
        if self._tail is None:
            self._wake_tail(())
        tail = self._tail
        assert tail is not None
        self._packer.limit = 0
        if tail.staged_bytes:
            self._flush()
        if not only_if_old or self._must_rotate(tail, 0, 0):
            self._seal_and_begin(CHECKPOINT_BYTES)

    def _seal_and_begin(self, needed: int) -> None:
        """Seal the tail and go on in a new segment. The gate is closed.

        Every step may be done again, for an interrupt may come between any two: see `_complete`.
        """
        old = self._tail
        assert old is not None
        self._fdatasync(old)
        old.synced_upto = old.end
        self._durable_next_seq = self._packer.next_seq
        sealed = self.segments.last
        assert sealed is not None
        # Before the next segment is there to be seen: readers then take this one for complete.
        sealed.grown_to(old.end)
        self._trim(old)
        new = self._create_tail(needed)
        self._save_index(sealed)
        self._adopt(new)
        self._begun_seq = 0
        old.close()

    def _trim(self, tail: Tail) -> None:
        try:
            tail.trim()
        except OSError:
            pass  # zeros that are not given back

    def _save_index(self, segment: Segment) -> None:
        try:
            segment.save_index()
        except (OSError, LedgerError):
            pass  # a cache
        segment.close()

    def _create_tail(self, needed: int) -> Tail:
        packer, old = self._packer, self._tail
        self._begun_seq = packer.next_seq
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

    def _wake_tail(self, items: Sequence[Item]) -> None:
        """Open the last segment for writing, or make the first one."""
        segment = self.segments.last
        if segment is None or segment.header.flags & RELATIVE:
            # None yet, or one that was written elsewhere and counts its seqs by itself.
            needed = CHECKPOINT_BYTES + sum(_size_of(item) for item in items)
            self._adopt(self._create_tail(needed))
            self._begun_seq = 0
            return
        packer = self._packer
        tail = self._tails.reopen(  # recovery, or the last rest, synced all of it
            segment.header,
            end=segment.end,
            next_seq=packer.next_seq,
            last_timestamp_ns=packer.last_timestamp_ns,
        )
        self._adopt(tail)

    def _adopt(self, tail: Tail) -> None:
        """Let appends go to this tail."""
        self._tail = tail
        self._write_through = isinstance(tail, StagedTail) and self.settings.sync != "always"
        segment = self.segments.last
        assert segment is not None
        if tail.view is not None:
            segment.adopt_view(tail.view)
        if self._packer is not tail.packer:
            self._packer.limit = 0
        # Where each call hands its own bytes on, nobody may write while another's gate is open:
        # it would be answered with its bytes still in memory.
        self.hot = _shut_packer(0, 0) if self._write_through else tail.packer
        self._packer = tail.packer  # last: `_complete` looks at it

    # -- durability --------------------------------------------------------------------------------

    @property
    def needs_sync(self) -> bool:
        """Is anything appended that is not on disk?"""
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
                self._complete_or_stop()
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

    def _complete_or_stop(self) -> None:
        """Hold both locks."""
        try:
            self._complete(may_rotate=True)
        except OSError as error:
            raise self._stop(error, "writing") from error

    def _synced(self, tail: Tail, end: int, next_seq: int) -> None:
        self._durable_next_seq = max(self._durable_next_seq, next_seq)
        # Close the gate, then look: an append in between comes to the lock and waits.
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
            tail.files.fdatasync(tail.fd)
        except OSError as error:
            raise self._stop(error, "syncing") from error

    def rest(self) -> None:
        """Sync, note on disk that all is synced, and hold no open file until the next append."""
        with self._lock:
            self._check_writable()
        self._rest()
        self.segments.close()

    def _rest(self) -> None:
        self._sync()
        with self._sync_lock, self._lock:
            self._complete_or_stop()
            self._packer.limit = 0  # from here on nobody writes, so it can be said who did
            tail = self._tail
            if tail is None or tail.end + tail.staged_bytes > tail.synced_upto:
                return  # someone is writing again
            tail.is_closing = True
            self._close_tail(tail)

    def _close_tail(self, tail: Tail) -> None:
        """Hold both locks; the gate is closed. It may be done again after an interrupt."""
        try:
            end = tail.close_off()
        except OSError as error:
            raise self._stop(error, "closing") from error
        self._fdatasync(tail)
        segment = self.segments.last
        assert segment is not None
        segment.grown_to(end)
        segment.close()
        self._let_go(tail)

    def _let_go(self, tail: Tail) -> None:
        packer = self._packer
        self._packer = self.hot = _shut_packer(packer.next_seq, packer.last_timestamp_ns)
        self._tail = None
        tail.close()

    # -- refusing ----------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        if self._refusal is not None:
            raise again(self._refusal)

    def check_readable(self) -> None:
        """Raise if even reading makes no sense any more."""
        if self._unreadable is not None:
            raise again(self._unreadable)

    def refuse(self, reason: PenstockError) -> None:
        """Take no more writes, for a reason that is given to everyone who tries."""
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
        """In a forked child: this handle is the parent's. A thread there may hold the old locks."""
        self._lock, self._sync_lock = lock, Lock()
        self._arrived = Condition(lock)
        self._unreadable = self._refusal = reason
        # Not only shut: of the pure codec's packer a thread there may hold the lock as well.
        packer = self._packer
        self._packer = self.hot = _shut_packer(packer.next_seq, packer.last_timestamp_ns)

    def close(self, closed: PenstockError) -> None:
        """Rest, and refuse everything from now on, with that reason."""
        with self._lock:
            well = self._refusal is None
            self.refuse(closed)
            self._unreadable = closed
        try:
            if well:
                self._rest()
                self.ended_well = self._tail is None
        finally:
            with self._sync_lock, self._lock:
                if self._tail is not None:
                    self._let_go(self._tail)
                self.segments.close()

    # -- for compaction ----------------------------------------------------------------------------

    def drop(self, gone: Sequence[Segment]) -> None:
        """Forget segments that are being removed."""
        with self._lock:
            self._check_writable()
            self.segments.drop(gone)

    def put_in_place(self, run: Sequence[Segment], header: SegmentHeader, end: int) -> Segment:
        """Let readers see one rewritten segment instead of a run of neighbours."""
        with self._lock:
            new = self._segment(header, end)
            self.segments.merge(run, new)
            return new

    # -- for adoption ------------------------------------------------------------------------------

    def take_in(
        self,
        count: int,
        place: Callable[[int, int], tuple[Sequence[Placed], int]],
    ) -> int:
        """Let `place` put segments with `count` entries behind the last one; their first seq.

        It is called while nobody can append, with that seq and the time of the last entry, and
        answers what it placed, and the time of the last entry then. If the system fails it
        half-way, nothing more may be written: opening finds out what is there.
        """
        while True:
            self.rest()  # what is there must be complete before something lies behind it
            with self._sync_lock, self._lock:
                self._check_writable()
                self._packer.limit = 0
                if self._tail is not None:
                    continue  # someone is writing again
                first_seq, last_ns = self._packer.next_seq, self._packer.last_timestamp_ns
                try:
                    placed, last_ns = place(first_seq, last_ns)
                    new = [self._segment(one.header, one.end, one.index) for one in placed]
                    self.segments.add(*new)
                    self._packer = self.hot = _shut_packer(first_seq + count, last_ns)
                except OSError as error:
                    raise self._stop(error, "adopting segments") from error
                except PenstockError:
                    raise
                except BaseException:  # an interrupt: memory does not know what is in place
                    self._on_stop(_interrupted(self.folder.path))
                    raise
                self._durable_next_seq = first_seq + count
                self._arrived.notify_all()
            for segment in new:
                self._save_index(segment)
            return first_seq

    # -- for readers -------------------------------------------------------------------------------

    def durable(self) -> tuple[list[tuple[Segment, int]], int]:
        """The segments, each with how many of its bytes are on disk; and the seq behind them all.

        Of one moment. More may be on disk than is known to be.
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
                continue  # compaction took one away meanwhile
            if synced_upto is not None and found:
                found[-1] = (segments[-1], synced_upto)
            return found, next_seq

    def publish_tail(self) -> None:
        """Let readers of the last segment see all that was appended."""
        while (tail := self._tail) is not None:
            if isinstance(tail, StagedTail):
                with self._lock:  # a writer may have taken its bytes and not written them yet
                    if self._tail is tail and self._refusal is None:
                        self._flush()
            segment = self.segments.last
            if segment is not None and segment.base_seq == tail.header.base_seq:
                segment.grown_to(tail.end)
            if self._tail is tail:
                return

    def wait_for(self, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the entry `seq` can be read; False if the time is over before."""
        with self._lock:
            try:
                self._waiting += 1
                self._packer.limit = 0  # the next append comes through the gate and wakes us
                return (
                    self._arrived.wait_for(
                        lambda: self.readable_next_seq > seq or self._refusal is not None, timeout_s
                    )
                    and self.readable_next_seq > seq
                )
            finally:
                self._waiting -= 1


def _interrupted(path: str) -> LedgerStopped:
    return LedgerStopped(
        f"{path}: adopting segments was interrupted, and nothing more is written. Open the queue "
        f"again: it finds out what is in place."
    )


def _size_of(item: Item) -> int:
    draft = item if isinstance(item, Draft) else Draft(item)
    return len(codec.pack(0, 0, draft))


def _shut_packer(next_seq: int, last_timestamp_ns: int) -> Packer:
    """A packer that takes nothing, and remembers where to go on."""
    return Packer(
        bytearray(0),
        position=0,
        limit=0,
        next_seq=next_seq,
        last_timestamp_ns=last_timestamp_ns,
        max_entry_bytes=MAX_ENTRY_BYTES,  # the limit is the next tail's to check
    )
