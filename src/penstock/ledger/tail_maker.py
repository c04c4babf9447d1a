"""Where tails come from: a segment is made, opened again, or given more room.

Each asks for disk space first. Events may use the reserve; messages are refused in time.
"""

import errno

from penstock.codec.layout import MAX_TIMESTAMP_NS
from penstock.ledger.folder import Folder, write_fully
from penstock.ledger.segment_header import EVENTS, HEADER_BYTES, SegmentHeader, segment_name
from penstock.ledger.settings import LedgerSettings
from penstock.ledger.space import Space
from penstock.ledger.tail import MappedTail, StagedTail, Tail


class TailMaker:
    """Makes the tails of one log."""

    def __init__(
        self, folder: Folder, settings: LedgerSettings, space: Space, *, kind: int, identity: int
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._space = space
        self._kind = kind
        self._identity = identity
        self._tail_type: type[MappedTail | StagedTail] = MappedTail
        if settings.sync == "always" or not settings.mapped:
            self._tail_type = StagedTail

    def create(self, needed: int, *, next_seq: int, now_ns: int, old_bytes: int) -> Tail:
        """A new segment with room for `needed` bytes, durably with its name. `old_bytes`: how large
        the tail before it is."""
        header = SegmentHeader(self._kind, self._identity, next_seq, now_ns)
        at_least = HEADER_BYTES + needed
        settings = self._settings
        size = max(at_least, min(settings.first_step_bytes, settings.segment_bytes))
        self._claim(size, old_bytes)
        fd, size = self._create_file(header, size, at_least)
        try:
            return self._tail(
                fd,
                header,
                end=HEADER_BYTES,
                size=size,
                next_seq=next_seq,
                last_timestamp_ns=now_ns,
            )
        except BaseException:
            discard_segment(self._folder, header.base_seq)
            raise

    def reopen(
        self, header: SegmentHeader, *, end: int, next_seq: int, last_timestamp_ns: int
    ) -> Tail:
        """A segment that is there, to be written on from `end`; all before is durable."""
        files = self._folder.files
        fd = files.open(self._folder.file(segment_name(header.base_seq)), "write")
        try:
            size = files.size(fd)
        except BaseException:
            files.close(fd)
            raise
        tail = self._tail(
            fd, header, end=end, size=size, next_seq=next_seq, last_timestamp_ns=last_timestamp_ns
        )
        tail.packer.promise(end)
        return tail

    def grow(self, tail: Tail, needed: int) -> None:
        """Make room for `needed` bytes more, in steps that follow what was written."""
        settings = self._settings
        wanted = tail.end + needed
        step = min(max(tail.size, settings.first_step_bytes), settings.largest_step_bytes)
        size = max(wanted, min(tail.size + step, settings.segment_bytes))
        self._claim(size - tail.size, tail.size)
        if self._kind == EVENTS:
            self._space.essential(lambda: tail.grow(size), lambda: tail.grow(wanted))
        else:
            tail.grow(size)

    def _claim(self, size: int, log_bytes: int) -> None:
        self._space.claim(size, essential=self._kind == EVENTS, log_bytes=log_bytes)

    def _create_file(self, header: SegmentHeader, size: int, at_least: int) -> tuple[int, int]:
        """The open file, and how large it is."""
        if self._kind != EVENTS:
            return create_segment(self._folder, header, size), size
        return self._space.essential(
            lambda: (create_segment(self._folder, header, size), size),
            lambda: (create_segment(self._folder, header, at_least), at_least),
        )

    def _tail(
        self,
        fd: int,
        header: SegmentHeader,
        *,
        end: int,
        size: int,
        next_seq: int,
        last_timestamp_ns: int,
    ) -> Tail:
        try:
            tail = self._tail_type(
                self._folder.files,
                fd,
                header,
                end=end,
                size=size,
                next_seq=next_seq,
                last_timestamp_ns=last_timestamp_ns,
                max_entry_bytes=self._settings.max_entry_bytes,
            )
        except BaseException:
            self._folder.files.close(fd)
            raise
        if self._settings.segment_age_s:
            age_ns = round(self._settings.segment_age_s * 1e9)
            tail.packer.time_limit_ns = min(header.created_at_ns + age_ns, MAX_TIMESTAMP_NS)
        return tail


def create_segment(folder: Folder, header: SegmentHeader, size: int) -> int:
    """Make a segment file of zeros behind its header, durably with its name; the open file."""
    files, path = folder.files, folder.file(segment_name(header.base_seq))
    if files.exists(path):
        files.unlink(path)  # a creation that failed half-way: never had an entry
        folder.sync()
    fd = files.open(path, "create")
    try:
        write_fully(files, fd, header.pack() + bytes(size - HEADER_BYTES), 0)
        files.fdatasync(fd)
        folder.sync()
    except BaseException:
        files.close(fd)
        discard_segment(folder, header.base_seq)
        raise
    return fd


def discard_segment(folder: Folder, base_seq: int) -> None:
    """Remove a segment that was made in vain, durably.

    The seq in its name goes to the segment before it. Found again, it would be taken for the last
    one, and give out seqs anew: so where it cannot be removed, nothing more may be written.
    """
    try:
        folder.remove(segment_name(base_seq))
        folder.sync()
    except OSError as error:
        raise OSError(errno.EIO, f"could not remove an unused segment: {error}") from error
