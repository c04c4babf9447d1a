"""The segment being written: where the bytes of an append go.

There are two kinds, because each is the faster one for its purpose:

- `MappedTail`: the packer writes straight into a shared mapping of the file. The bytes are in the
  page cache at once, without a system call. For the policies that do not wait for the disk.
- `StagedTail`: the packer writes into memory; `flush` writes all of it to the file in one pwrite,
  and fdatasync follows. For `sync="always"`, which answers only after that, and (flushed after
  each call) for file systems without mappings.

The file is filled with zeros ahead of the writing, in steps that double. Writing into allocated
blocks needs no metadata at the next fdatasync and cannot run out of space. Zeros mean "nothing
yet" to a reader.
"""

import errno
from typing import NamedTuple

from penstock.codec import Packer
from penstock.codec.layout import CHECKPOINT_BYTES, MAX_SEQ, MAX_TIMESTAMP_NS
from penstock.ledger.files import FULL_ERRORS, Files
from penstock.ledger.folder import Folder, write_fully
from penstock.ledger.segment_header import EVENTS, HEADER_BYTES, SegmentHeader, segment_name
from penstock.ledger.settings import MIB, LedgerSettings
from penstock.ledger.space import Space

STAGING_BYTES = 256 * 1024
WRITE_BEHIND_BYTES = 1 * MIB  # smaller amounts are not worth a system call
_ZEROS = bytes(1 * MIB)


class TailStart(NamedTuple):
    """Where a tail begins to write."""

    end: int  # of the entries in the file
    size: int  # of the file
    next_seq: int
    last_timestamp_ns: int


class Tail:
    """What both kinds share: the file, its size, and how far it is known to be durable."""

    packer: Packer

    def __init__(
        self,
        files: Files,
        fd: int,
        header: SegmentHeader,
        start: TailStart,
        max_entry_bytes: int,
    ) -> None:
        self.files = files
        self.fd = fd
        self.header = header
        self.size = start.size  # of the file: zeros from `end` on
        self._max_entry_bytes = max_entry_bytes
        self.synced_upto = start.end
        self._writing_upto = start.end  # the system was asked to write out everything before it
        self._closed_end = start.end  # where the file ended when it was last closed off
        self.is_closing = False  # being closed off: nothing may be written behind the last entry

    @property
    def end(self) -> int:
        """The end of the entries in the file."""
        raise NotImplementedError

    @property
    def open_limit(self) -> int:
        """The value of `packer.limit` while appends are allowed."""
        raise NotImplementedError

    @property
    def view(self) -> memoryview | None:
        """The mapping of the file, if this tail has one."""
        return None

    @property
    def staged_bytes(self) -> int:
        """Bytes that were appended and are not in the file yet."""
        return 0

    def flush(self) -> None:
        """Write the staged bytes to the file."""

    def grow(self, size: int) -> None:
        """Fill the file with zeros up to `size`. On an error it keeps its size."""
        self._fill(size)
        self.size = size

    def _fill(self, size: int) -> None:
        old = self.size
        try:
            for offset in range(old, size, len(_ZEROS)):
                chunk = memoryview(_ZEROS)[: min(len(_ZEROS), size - offset)]
                write_fully(self.files, self.fd, chunk, offset)
        except OSError:
            try:
                self.files.truncate(self.fd, old)
            except OSError:
                pass  # zeros behind the end are harmless
            raise

    def write_behind(self) -> None:
        """Let the system start to write unsynced data out, so that sealing takes less time."""
        start = max(self._writing_upto, self.synced_upto)
        if self.end - start < WRITE_BEHIND_BYTES:
            return
        try:
            self.files.start_writing(self.fd, start, self.end - start)
        except OSError:
            pass  # only a hint: the sync reports errors
        self._writing_upto = self.end

    def _closed_packer(
        self, buffer: memoryview | bytearray, position: int, start: "TailStart | Packer"
    ) -> Packer:
        return Packer(
            buffer,
            position=position,
            limit=position,
            next_seq=start.next_seq,
            last_timestamp_ns=start.last_timestamp_ns,
            max_entry_bytes=self._max_entry_bytes,
        )

    def _continued(self, buffer: memoryview | bytearray, *, position: int) -> Packer:
        """Return a closed packer over another buffer that continues where the present one is."""
        old = self.packer
        packer = self._closed_packer(buffer, position, old)
        packer.seq_limit, packer.time_limit_ns = old.seq_limit, old.time_limit_ns
        if self.synced_upto > HEADER_BYTES:
            packer.promise(self.synced_upto)  # the old packer may not have written it yet
        return packer

    def trim(self) -> None:
        """Cut the zeros off."""
        if self.size > self.end:
            # The size first: after an interrupt, nothing may be stored behind the end of the file.
            self.size = self.end
            self.files.truncate(self.fd, self.end)

    def close_off(self) -> int:
        """Write a last checkpoint, cut the zeros off and return the end of the file.

        Everything must be synced. The checkpoint does not go through the packer, because the packer
        would have to be opened for it, and so for every other thread.
        """
        end = self.end
        if end != self._closed_end:
            packer = self.packer
            checkpoint = durability_checkpoint(
                end, next_seq=packer.next_seq, timestamp_ns=packer.last_timestamp_ns
            )
            try:
                write_fully(self.files, self.fd, checkpoint, end)
                end += len(checkpoint)
            except OSError as error:
                if error.errno not in FULL_ERRORS:
                    raise  # on a full disk the checkpoint can be done without
        if end != self._closed_end or self.size > end:
            self.size = end
            self.files.truncate(self.fd, end)
        return end

    def sync(self) -> None:
        """Make what is in the file durable."""
        self.files.fdatasync(self.fd)

    def close(self) -> None:
        self.packer.release()
        self.files.close(self.fd)


class MappedTail(Tail):
    """The packer's buffer is the file."""

    def __init__(
        self,
        files: Files,
        fd: int,
        header: SegmentHeader,
        start: TailStart,
        max_entry_bytes: int,
    ) -> None:
        super().__init__(files, fd, header, start, max_entry_bytes)
        self._view = files.map(fd, start.size, writable=True).view
        self.packer = self._closed_packer(self._view, start.end, start)

    @property
    def end(self) -> int:
        return self.packer.position

    @property
    def open_limit(self) -> int:
        return min(len(self._view), self.size)  # a store behind the end of the file is a SIGBUS

    @property
    def view(self) -> memoryview | None:
        return self._view

    def close(self) -> None:
        super().close()
        self._view = memoryview(b"")  # the traceback of an error may keep this object for long

    def grow(self, size: int) -> None:
        self._fill(size)
        view = self.files.map(self.fd, size, writable=True).view
        old, packer = self.packer, self._continued(view, position=self.packer.position)
        self.packer, self._view, self.size = packer, view, size  # no interrupt comes in between
        old.release()


class StagedTail(Tail):
    """The packer's buffer waits for `flush`."""

    def __init__(
        self,
        files: Files,
        fd: int,
        header: SegmentHeader,
        start: TailStart,
        max_entry_bytes: int,
    ) -> None:
        super().__init__(files, fd, header, start, max_entry_bytes)
        self._end = start.end
        self._flushed_end: int | None = None  # the end of the file once the packer is emptied
        self._buffer = bytearray(STAGING_BYTES)
        self.packer = self._closed_packer(self._buffer, 0, start)

    @property
    def end(self) -> int:
        return self._end

    @property
    def staged_bytes(self) -> int:
        return self.packer.position

    @property
    def open_limit(self) -> int:
        if self._flushed_end is not None:
            self._empty_packer()
        return min(len(self._buffer), self.size - self._end)

    def flush(self) -> None:
        """Write the staged bytes to the file.

        Each step may be repeated after an interrupt. The packer is closed from the first step to
        the last, so it holds the bytes that were written, or nothing.
        """
        packer = self.packer
        if self._flushed_end is not None:
            self._empty_packer()
        was_open = packer.limit > 0
        packer.limit = 0
        staged = packer.position
        if staged:
            write_fully(self.files, self.fd, memoryview(self._buffer)[:staged], self._end)
            self._flushed_end = self._end + staged
            self._empty_packer()
        if was_open:
            packer.limit = self.open_limit

    def _empty_packer(self) -> None:
        assert self._flushed_end is not None
        self.packer.take()
        self._end = self._flushed_end
        self._flushed_end = None

    def stage_at_least(self, size: int) -> None:
        """Make the staging buffer large enough for a call of `size` bytes. It must be empty."""
        if size <= len(self._buffer):
            return
        buffer = bytearray(size)
        old, packer = self.packer, self._continued(buffer, position=0)
        self.packer, self._buffer = packer, buffer  # no interrupt comes in between
        old.release()


def durability_checkpoint(end: int, *, next_seq: int, timestamp_ns: int) -> bytes:
    """Return a checkpoint that says: everything before `end` is durable.

    Damage before it is then not mistaken for an unfinished write.
    """
    packer = Packer(
        bytearray(CHECKPOINT_BYTES),
        position=0,
        limit=CHECKPOINT_BYTES,
        next_seq=next_seq,
        last_timestamp_ns=timestamp_ns,
    )
    packer.promise(end)
    packer.write_checkpoint(timestamp_ns)
    return packer.take()


# -- making tails ----------------------------------------------------------------------------------


class TailMaker:
    """Creates, reopens and grows the tails of one log, within the limits of its settings.

    Each step first asks for disk space. Events may use the reserve; messages are refused early.
    """

    def __init__(
        self, folder: Folder, settings: LedgerSettings, space: Space, *, kind: int, identity: int
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._space = space
        self._kind = kind
        self._identity = identity
        self._age_ns = round(settings.segment_age_s * 1e9)
        self._tail_type: type[MappedTail | StagedTail] = MappedTail
        if settings.sync == "always" or not settings.mapped:
            self._tail_type = StagedTail

    def create(self, needed: int, *, next_seq: int, now_ns: int, old_bytes: int) -> Tail:
        """Create a segment with room for `needed` bytes, durable with its name.

        `old_bytes` is the size of the tail before it.
        """
        header = SegmentHeader(self._kind, self._identity, next_seq, now_ns)
        at_least = HEADER_BYTES + needed
        settings = self._settings
        size = max(at_least, min(settings.first_step_bytes, settings.segment_bytes))
        self._claim(size, old_bytes)
        fd, size = self._create_file(header, size, at_least)
        try:
            return self._tail(fd, header, TailStart(HEADER_BYTES, size, next_seq, now_ns))
        except BaseException:
            discard_segment(self._folder, header.base_seq)
            raise

    def reopen(
        self, header: SegmentHeader, *, end: int, next_seq: int, last_timestamp_ns: int
    ) -> Tail:
        """Open an existing segment to continue at `end`. Everything before is durable."""
        files = self._folder.files
        fd = files.open(self._folder.file(segment_name(header.base_seq)), "write")
        try:
            size = files.size(fd)
        except BaseException:
            files.close(fd)
            raise
        tail = self._tail(fd, header, TailStart(end, size, next_seq, last_timestamp_ns))
        tail.packer.promise(end)
        return tail

    def grow(self, tail: Tail, needed: int) -> None:
        """Make room for `needed` more bytes, in steps that double with the size of the file."""
        settings = self._settings
        wanted = tail.end + needed
        step = min(max(tail.size, settings.first_step_bytes), settings.largest_step_bytes)
        size = max(wanted, min(tail.size + step, settings.segment_bytes))
        self._claim(size - tail.size, tail.size)
        if self._kind == EVENTS:
            self._space.essential(lambda: tail.grow(size), lambda: tail.grow(wanted))
        else:
            tail.grow(size)

    def is_full(self, tail: Tail, needed: int, count: int, now_ns: int) -> bool:
        """Return whether `count` entries of `needed` bytes belong into a new segment."""
        packer, base_seq = tail.packer, tail.header.base_seq
        if packer.next_seq == base_seq:
            return False
        max_entries = self._settings.segment_entries
        return (
            tail.end + needed > self._settings.segment_bytes
            or (max_entries > 0 and packer.next_seq + count > base_seq + max_entries)
            or max(now_ns, packer.last_timestamp_ns) > packer.time_limit_ns
        )

    def limit_packer(self, tail: Tail, count: int, now_ns: int, durable_next_seq: int) -> None:
        """Set how far the packer of a tail may go in seqs and in time; `count` entries fit."""
        packer, base_seq = tail.packer, tail.header.base_seq
        is_empty = packer.next_seq == base_seq
        limit = MAX_SEQ
        if self._settings.segment_entries:
            limit = base_seq + self._settings.segment_entries
            if is_empty:
                limit = max(limit, base_seq + count)  # a batch may be larger than a segment
        if self._settings.sync == "batch":
            full = durable_next_seq + max(self._settings.sync_batch, count)
            limit = min(limit, max(full, packer.next_seq + count))
        packer.seq_limit = limit
        if self._age_ns and is_empty:
            # The age counts from the first entry: else an old empty segment would never take one.
            packer.time_limit_ns = self._time_limit(max(now_ns, packer.last_timestamp_ns))

    def _time_limit(self, first_ns: int) -> int:
        return min(first_ns + self._age_ns, MAX_TIMESTAMP_NS)

    def _claim(self, size: int, log_bytes: int) -> None:
        self._space.claim(size, essential=self._kind == EVENTS, log_bytes=log_bytes)

    def _create_file(self, header: SegmentHeader, size: int, at_least: int) -> tuple[int, int]:
        """Return the open file and its size."""
        if self._kind != EVENTS:
            return create_segment(self._folder, header, size), size
        return self._space.essential(
            lambda: (create_segment(self._folder, header, size), size),
            lambda: (create_segment(self._folder, header, at_least), at_least),
        )

    def _tail(self, fd: int, header: SegmentHeader, start: TailStart) -> Tail:
        files, max_entry_bytes = self._folder.files, self._settings.max_entry_bytes
        try:
            try:
                tail: Tail = self._tail_type(files, fd, header, start, max_entry_bytes)
            except OSError as error:
                if error.errno != errno.ENODEV or self._tail_type is StagedTail:
                    raise
                self._tail_type = StagedTail  # these files have no mappings that can be written
                tail = StagedTail(files, fd, header, start, max_entry_bytes)
        except BaseException:
            files.close(fd)
            raise
        if self._age_ns:
            tail.packer.time_limit_ns = self._time_limit(header.created_at_ns)
        return tail


def create_segment(folder: Folder, header: SegmentHeader, size: int) -> int:
    """Create a segment file of zeros behind its header, durable with its name; return the fd.

    On files that keep the order of changes, it is durable before anything that is written later.
    """
    files, path = folder.files, folder.file(segment_name(header.base_seq))
    if files.exists(path):
        files.unlink(path)  # a creation that failed half-way: it never had an entry
        if not files.keeps_order:
            folder.sync()
    fd = files.open(path, "create")
    try:
        write_fully(files, fd, header.pack() + bytes(size - HEADER_BYTES), 0)
        if not files.keeps_order:
            files.fdatasync(fd)
            folder.sync()
    except BaseException:
        files.close(fd)
        discard_segment(folder, header.base_seq)
        raise
    return fd


def discard_segment(folder: Folder, base_seq: int) -> None:
    """Remove a segment that was created and is not needed, durably.

    The seq in its name goes to the segment before it. If the file were found again, it would be
    taken for the last segment and seqs would be used twice. So if it cannot be removed, raise an
    error that stops the log.
    """
    try:
        folder.remove(segment_name(base_seq))
        folder.sync()
    except OSError as error:
        raise OSError(errno.EIO, f"could not remove an unused segment: {error}") from error
