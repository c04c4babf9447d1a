"""The segment being written: where an append's bytes go.

Two ways, behind one small seam, because each is the faster one for its purpose:

- `MappedTail`: the packer writes straight into a shared mapping of the file. The bytes are the
  kernel's at once, without a system call. For the policies that do not wait for the disk.
- `StagedTail`: the packer writes into memory; `flush` hands all that is waiting to the file in one
  pwrite, and fdatasync follows. For `sync="always"`, where nobody is answered before that, and
  (flushed after each call) where a mapping cannot be had.

The file is filled with zeros ahead of the writing, in steps that double: writing into blocks that
are there needs no metadata at the next fdatasync, cannot run out of space, and zeros mean
"nothing yet" to a reader.
"""

from penstock.codec import Packer
from penstock.codec.layout import CHECKPOINT_BYTES
from penstock.ledger.files import Files
from penstock.ledger.folder import write_fully
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader
from penstock.ledger.settings import MIB
from penstock.ledger.system_errors import FULL_ERRORS

STAGING_BYTES = 256 * 1024
WRITE_BEHIND_BYTES = 1 * MIB  # from so much on it is worth telling the system
_ZEROS = bytes(1 * MIB)


class Tail:
    """What both ways share: the file, its size, and how far it is known durable."""

    packer: Packer

    def __init__(
        self,
        files: Files,
        fd: int,
        header: SegmentHeader,
        *,
        end: int,
        size: int,
        max_entry_bytes: int,
    ) -> None:
        self.files = files
        self.fd = fd
        self.header = header
        self.size = size  # of the file: zeros from `end` on
        self._max_entry_bytes = max_entry_bytes
        self.synced_upto = end
        self._started_upto = end  # the system was asked to write out what is before it
        self._bare_end = end  # where it ended when a checkpoint last closed it off
        self.is_closing = False  # being closed off: nothing may be written behind the last entry

    @property
    def end(self) -> int:
        """How far the file has entries."""
        raise NotImplementedError

    @property
    def open_limit(self) -> int:
        """What `packer.limit` is while the gate is open."""
        raise NotImplementedError

    @property
    def view(self) -> memoryview | None:
        """The file as memory, where the tail has it so."""
        return None

    @property
    def staged_bytes(self) -> int:
        """What was written by a caller and is not in the file yet."""
        return 0

    def flush(self) -> None:
        """Hand to the file what is not there yet."""

    def grow(self, size: int) -> None:
        """Fill the file with zeros up to `size`; on an error it is as it was."""
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
                pass  # zeros that stay behind mean nothing
            raise

    def write_behind(self) -> None:
        """Let the disk begin with what is not synced, so that sealing does not wait for it all."""
        start = max(self._started_upto, self.synced_upto)
        if self.end - start < WRITE_BEHIND_BYTES:
            return
        try:
            self.files.start_writing(self.fd, start, self.end - start)
        except OSError:
            pass  # a hint: the sync reports what matters
        self._started_upto = self.end

    def _packer_for(self, buffer: memoryview | bytearray, *, position: int) -> Packer:
        """A packer for another buffer, with its gate closed, to go on where this one is."""
        old = self.packer
        packer = Packer(
            buffer,
            position=position,
            limit=position,
            next_seq=old.next_seq,
            last_timestamp_ns=old.last_timestamp_ns,
            max_entry_bytes=self._max_entry_bytes,
        )
        packer.seq_limit, packer.time_limit_ns = old.seq_limit, old.time_limit_ns
        if self.synced_upto > HEADER_BYTES:
            packer.promise(self.synced_upto)  # the old packer may not have written it yet
        return packer

    def trim(self) -> None:
        """Give the zeros back."""
        if self.size > self.end:
            # The size first: after an interrupt, nothing may be stored behind the end of the file.
            self.size = self.end
            self.files.truncate(self.fd, self.end)

    def close_off(self) -> int:
        """Write a last checkpoint and give the zeros back; where the file ends. All is synced.

        The checkpoint goes past the packer, whose gate would have to be opened for it, to all.
        """
        end = self.end
        if end != self._bare_end:
            packer = self.packer
            last_word = vouching_checkpoint(
                end, next_seq=packer.next_seq, timestamp_ns=packer.last_timestamp_ns
            )
            try:
                write_fully(self.files, self.fd, last_word, end)
                end += len(last_word)
            except OSError as error:
                if error.errno not in FULL_ERRORS:
                    raise  # else: what it says would have been good to have, no more
        if end != self._bare_end or self.size > end:
            self.size = end
            self.files.truncate(self.fd, end)
        return end

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
        *,
        end: int,
        size: int,
        next_seq: int,
        last_timestamp_ns: int,
        max_entry_bytes: int,
    ) -> None:
        super().__init__(files, fd, header, end=end, size=size, max_entry_bytes=max_entry_bytes)
        self._view = files.map(fd, size, writable=True).view
        self.packer = Packer(
            self._view,
            position=end,
            limit=end,
            next_seq=next_seq,
            last_timestamp_ns=last_timestamp_ns,
            max_entry_bytes=max_entry_bytes,
        )

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
        self._view = memoryview(b"")  # the traceback of an error may hold this object for long

    def grow(self, size: int) -> None:
        self._fill(size)
        view = self.files.map(self.fd, size, writable=True).view
        old, packer = self.packer, self._packer_for(view, position=self.packer.position)
        self.packer, self._view, self.size = packer, view, size  # no interrupt comes in between
        old.release()


class StagedTail(Tail):
    """The packer's buffer waits for `flush`."""

    def __init__(
        self,
        files: Files,
        fd: int,
        header: SegmentHeader,
        *,
        end: int,
        size: int,
        next_seq: int,
        last_timestamp_ns: int,
        max_entry_bytes: int,
    ) -> None:
        super().__init__(files, fd, header, end=end, size=size, max_entry_bytes=max_entry_bytes)
        self._end = end
        self._moves_to: int | None = None  # where the file ends once the packer is empty
        self._buffer = bytearray(STAGING_BYTES)
        self.packer = Packer(
            self._buffer,
            position=0,
            limit=0,
            next_seq=next_seq,
            last_timestamp_ns=last_timestamp_ns,
            max_entry_bytes=max_entry_bytes,
        )

    @property
    def end(self) -> int:
        return self._end

    @property
    def staged_bytes(self) -> int:
        return self.packer.position

    @property
    def open_limit(self) -> int:
        if self._moves_to is not None:
            self._emptied()
        return min(len(self._buffer), self.size - self._end)

    def flush(self) -> None:
        """Each step may be done again after an interrupt. The gate is shut from the first to the
        last of them, so the packer holds what was written, or nothing."""
        packer = self.packer
        if self._moves_to is not None:
            self._emptied()
        gate_open = packer.limit > 0
        packer.limit = 0
        staged = packer.position
        if staged:
            write_fully(self.files, self.fd, memoryview(self._buffer)[:staged], self._end)
            self._moves_to = self._end + staged
            self._emptied()
        if gate_open:
            packer.limit = self.open_limit

    def _emptied(self) -> None:
        assert self._moves_to is not None
        self.packer.take()
        self._end = self._moves_to
        self._moves_to = None

    def stage_at_least(self, size: int) -> None:
        """Make the staging area large enough for a call of `size` bytes. It must be empty."""
        if size <= len(self._buffer):
            return
        buffer = bytearray(size)
        old, packer = self.packer, self._packer_for(buffer, position=0)
        self.packer, self._buffer = packer, buffer  # no interrupt comes in between
        old.release()


def vouching_checkpoint(end: int, *, next_seq: int, timestamp_ns: int) -> bytes:
    """Says that all before it is durable: damage there is then not taken for a torn write."""
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
