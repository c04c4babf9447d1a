"""One log: append to it, sync it and read it, from any number of threads.

An append has a fast path: one call into a packer, which is atomic and takes no lock. Closing the
packer (`packer.limit = 0`) makes it refuse, and the caller takes the slow path, where locks are
held. So the fast path pays nothing for the rare cases: no room, the first write after a sync, a
reader that waits for entries, and a log that is closed, stopped or forked.

Locks, in the order in which they may be taken: `_sync_lock` (one fdatasync at a time; held across
it; the tail does not change while it is held, except on files that keep the order of changes), then
`_lock` (everything else, shared by the logs of a ledger).
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from threading import Condition
from typing import TYPE_CHECKING, Any, cast

from penstock.clock import Clock
from penstock.codec import Draft, Notes, Packer
from penstock.codec.layout import MAX_SEQ, TOMBSTONE
from penstock.errors import EntryGone, InvalidInput, LedgerStopped, PenstockError, again
from penstock.ledger.files import (
    as_final_error,
    as_passing_error,
    new_sync_lock,
    os_error,
)
from penstock.ledger.folder import Folder
from penstock.ledger.index import SparseIndex
from penstock.ledger.json_files import LogEnd
from penstock.ledger.segment import AdoptedSegment, HoleListener, Segment
from penstock.ledger.segment_header import SegmentHeader
from penstock.ledger.segment_list import SegmentList
from penstock.ledger.settings import LedgerSettings
from penstock.ledger.space import Space
from penstock.ledger.tail import StagedTail, Tail, TailMaker
from penstock.ledger.writer import Item, LogWriter, MustRotate, save_index
from penstock.locks import RLock, guarded

if TYPE_CHECKING:
    from penstock.ledger import sync_pool

Begun = tuple[Tail, int, int]  # what a sync covers: the tail, its end, the seq behind


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
        self._keeps_order = folder.files.keeps_order
        self._on_hole = on_hole
        self._on_stop = on_stop
        self._refusal: PenstockError | None = None  # why nothing can be written
        self._unreadable: PenstockError | None = None  # why nothing can be read either
        self._sync_lock = new_sync_lock()
        self._syncing = guarded(self._sync_lock)  # for `with`
        self._lock = lock  # shared by the logs of a ledger: they stop together
        self._arrived = Condition(lock)
        self._waiting = 0
        self.closed_cleanly = False  # closed, with everything on disk and nothing behind it
        segments = [self._segment(header) for header in headers]
        if segments:
            segments[-1].extend_to(end)
        self.segments = SegmentList(segments, max_open=settings.max_open_segments)
        self._writer = LogWriter(
            folder,
            self.segments,
            TailMaker(folder, settings, space, kind=kind, identity=identity),
            settings,
            next_seq=next_seq,
            last_timestamp_ns=last_timestamp_ns,
            now_ns=clock.now_ns,
            segment_of=self._segment,
            on_packer=self._set_fast_packer,
            on_dirty=on_dirty,
            stop=self._stop,
        )
        self.fast_packer = self._writer.packer  # an append tries it first, without a lock

    def _set_fast_packer(self, packer: Packer) -> None:
        self.fast_packer = packer

    # -- state -------------------------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        """The seq that the next entry gets."""
        return self._writer.packer.next_seq

    @property
    def first_seq(self) -> int:
        """The lowest seq that belongs to a segment; `next_seq` if there is no segment."""
        segments = self.segments.all
        return segments[0].base_seq if segments else self.next_seq

    @property
    def last_timestamp_ns(self) -> int:
        return self._writer.packer.last_timestamp_ns

    @property
    def durable_next_seq(self) -> int:
        """Every entry below it is known to be on disk."""
        return self._writer.durable_next_seq

    @property
    def readable_next_seq(self) -> int:
        """Readers see entries below it. With sync="always" those are the durable ones."""
        if self.settings.sync == "always":
            return self._writer.durable_next_seq
        return self._writer.packer.next_seq

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
            segments = self._writer.created_segments
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

    def keep_notes(self, tags: int) -> Notes:
        """Return notes of the messages with options that are appended from now on.

        `tags` as in `Notes`. For the owner of a ledger, before others can use the log.
        """
        notes = Notes(tags)
        self._writer.keep_notes(notes)
        return notes

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
        self._writer.packer.next_seq = seq

    def _append_slowly(self, items: Sequence[Item]) -> tuple[int, int]:
        """Find out why the fast path refused, fix that, and append."""
        while True:
            with self._lock:
                self._check_writable()
                full = self._writer.is_batch_full(len(items))
                if not full:
                    try:
                        return self._append_or_stop(items)
                    except MustRotate:
                        pass
            if full:
                self.sync()
                continue
            # Not beside another sync of the same file: the system reports a failure only once. If
            # the other one failed, ours would succeed. Without a sync of its own, it need not wait.
            with nullcontext() if self._keeps_order else self._syncing, self._lock:
                self._check_writable()
                return self._append_or_stop(items, may_rotate=True)

    def _append_or_stop(
        self, items: Sequence[Item], *, may_rotate: bool = False
    ) -> tuple[int, int]:
        try:
            stamped = self._writer.append(items, may_rotate=may_rotate)
        except OSError as error:
            passing = as_passing_error(self.folder.path, error)
            raise passing or self._stop(error, "making room") from error
        if self._waiting:
            self._writer.packer.limit = 0
            if self.settings.sync != "always":
                self._arrived.notify_all()
        return stamped

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
        with self._syncing, self._lock:
            self._check_writable()
            try:
                self._writer.seal(only_if_old=only_if_old)
            except OSError as error:
                passing = as_passing_error(self.folder.path, error)
                raise passing or self._stop(error, "sealing a segment") from error

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

    # -- durability --------------------------------------------------------------------------------

    @property
    def needs_sync(self) -> bool:
        """Whether anything was appended that is not on disk."""
        with self._lock:
            return self._writer.needs_sync

    def sync(self) -> None:
        """Return when every entry appended before the call is on disk."""
        with self._lock:
            self._check_writable()
        self._sync()

    def begin_sync(self) -> "list[Begun] | None":
        """Flush, for a caller that makes the file durable itself and then calls `end_sync`.

        Return what that covers, empty if there is nothing; None while another sync runs.
        """
        if not self._sync_lock.acquire(blocking=False):
            return None
        try:
            with self._lock:
                self._check_writable()
                self._finish_or_stop()
                begun = self._writer.begin_sync()
            return [] if begun is None else [begun]
        finally:
            self._sync_lock.release()

    def start_sync(self, pool: "sync_pool.SyncPool", owner: Any) -> "Begun | None":
        """Flush, and sync in the background. Return what that covers.

        Return None while another sync runs. The sync lock is held until the file is synced: then
        the pool releases it and reports the job of `owner`, for `end_sync` or `fail_sync`.
        """
        lock = cast("sync_pool.SyncLock", self._sync_lock)
        before = lock.started
        if not lock.acquire(blocking=False):
            return None
        try:
            with self._lock:
                self._check_writable()
                self._finish_or_stop()
                begun = self._writer.begin_sync()
                assert begun is not None
                pool.start(begun[0].fd, lock, owner)
            return begun
        except BaseException:
            if lock.started == before:  # else the pool releases it
                lock.release()
            raise

    def end_sync(self, begun: "Begun") -> None:
        """Note that what `begin_sync` returned is durable. Several may be under way, in order."""
        tail, end, next_seq = begun
        with self._lock:
            if self._writer.tail is tail:
                self._writer.end_sync(tail, end, next_seq, may_open=self._refusal is None)
            else:  # it was sealed or closed meanwhile
                durable = self._writer.durable_next_seq
                self._writer.durable_next_seq = max(durable, next_seq)
            if self._waiting:
                self._arrived.notify_all()

    def fail_sync(self, error: OSError) -> PenstockError:
        """Stop writing, because what was flushed did not become durable."""
        return self._writer.sync_failed(error)

    def _sync(self) -> None:
        with self._syncing:
            with self._lock:
                self._check_background_sync()
                self._finish_or_stop()
                begun = self._writer.begin_sync()
                if begun is None:
                    return
            tail, end, next_seq = begun
            if end > tail.synced_upto or next_seq > self._writer.durable_next_seq:
                self._writer.fdatasync(tail)
            self.end_sync(begun)

    def _finish_or_stop(self) -> None:
        """Caller holds both locks."""
        try:
            self._writer.finish_interrupted(may_rotate=True)
        except OSError as error:
            raise self._stop(error, "writing") from error

    def rest(self) -> None:
        """Sync, record that everything is synced, and keep no file open until the next append."""
        with self._lock:
            self._check_writable()
        self._rest()
        self.segments.close()

    def _rest(self) -> None:
        self._sync()
        with self._syncing, self._lock:
            self._check_background_sync()
            self._finish_or_stop()
            writer = self._writer
            writer.packer.limit = 0  # no append from here on, so it can be seen if there was one
            tail = writer.tail
            if tail is not None and not writer.needs_sync:  # else another thread has appended
                tail.is_closing = True
                writer.close_tail(tail)

    # -- refusing ----------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        if self._refusal is not None:
            raise again(self._refusal)
        self._check_background_sync()

    def _check_background_sync(self) -> None:
        """Stop if a sync in the background has failed, and `fail_sync` was not called yet.

        The pool has released the sync lock. The next sync of the file would succeed, because the
        system reports a failure only once.
        """
        failed = getattr(self._sync_lock, "failed", 0)
        if failed:
            raise self._writer.sync_failed(os_error(failed))

    def check_readable(self) -> None:
        """Raise if the log cannot be read any more: closed or forked."""
        if self._unreadable is not None:
            raise again(self._unreadable)

    def refuse(self, reason: PenstockError) -> None:
        """Refuse writes from now on; each caller gets a copy of `reason`."""
        with self._lock:
            if self._refusal is None:
                self._refusal = reason
            self._writer.packer.limit = 0
            self._arrived.notify_all()

    def _stop(self, error: OSError, doing: str) -> LedgerStopped:
        stopped = as_final_error(self.folder.path, doing, error)
        self._on_stop(stopped)
        return stopped

    def forked(self, lock: "RLock", reason: PenstockError) -> None:
        """Disable this handle in a forked child. A thread of the parent may hold the old locks."""
        self._lock, self._sync_lock = lock, new_sync_lock()
        self._syncing = guarded(self._sync_lock)
        self._arrived = Condition(lock)
        self._unreadable = self._refusal = reason
        self._writer.forked()

    def close(self, closed: PenstockError) -> None:
        """Sync, close the files, and refuse everything from now on with that reason."""
        with self._lock:
            well = self._refusal is None
            self.refuse(closed)
            self._unreadable = closed
        try:
            if well:
                self._rest()
                self.closed_cleanly = self._writer.tail is None
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files without syncing them."""
        with self._syncing, self._lock:
            self._writer.drop_tail()
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
            with self._syncing, self._lock:
                self._check_writable()
                self._writer.packer.limit = 0
                if self._writer.tail is not None:
                    continue  # another thread has appended
                first_seq, last_ns = self.next_seq, self.last_timestamp_ns
                try:
                    moved, last_ns = move(first_seq, last_ns)
                    new = [self._segment(one.header, one.end, one.index) for one in moved]
                    self.segments.add(*new)
                    self._writer.continue_at(first_seq + count, last_ns)
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
                self._writer.durable_next_seq = first_seq + count
                self._arrived.notify_all()
            for segment in new:
                save_index(segment)
            return first_seq

    # -- for readers -------------------------------------------------------------------------------

    def durable_segments(self) -> tuple[list[tuple[Segment, int]], int]:
        """Return the segments, each with its bytes known to be on disk, and the seq behind them.

        All of one moment. More may be on disk than is known to be.
        """
        while True:
            with self._lock:
                segments, tail = self.segments.all, self._writer.tail
                synced_upto = tail.synced_upto if tail is not None else None
                next_seq = self.durable_next_seq
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
        writer = self._writer
        while (tail := writer.tail) is not None:
            if isinstance(tail, StagedTail):
                with self._lock:  # a writer may have taken its bytes and not written them yet
                    if writer.tail is tail and self._refusal is None:
                        writer.flush()
            segment = self.segments.last
            if segment is not None and segment.base_seq == tail.header.base_seq:
                segment.extend_to(tail.end)
            if writer.tail is tail:
                return

    def wait_for(self, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the entry `seq` can be read; return False on timeout, or if writing stops."""
        with self._lock:
            try:
                self._waiting += 1
                self._writer.packer.limit = 0  # the next append takes the slow path and wakes us
                return (
                    self._arrived.wait_for(
                        lambda: self.readable_next_seq > seq or self._refusal is not None, timeout_s
                    )
                    and self.readable_next_seq > seq
                )
            finally:
                self._waiting -= 1
