"""Passing over a run of entries: seek, skim, resync, restamp."""

import struct

from penstock.codec.buffer_py import (
    Buffer,
    check_limits,
    check_seq,
    check_timestamp,
    crc32c,
    flat,
    view_of,
)
from penstock.codec.entry import Skim
from penstock.codec.layout import (
    CHECKPOINT,
    CHECKPOINT_FORMAT,
    CRC_BYTES,
    DATA,
    DEFAULT_MAX_ENTRY_BYTES,
    ENTRY_OVERHEAD_BYTES,
    FIRST_EVENT,
    FIXED_BYTES,
    INDEX_STEP_BYTES,
    LENGTH_BYTES,
    MAX_SEQ,
    MAX_TIMESTAMP_NS,
    MIN_LENGTH,
    RESERVED_FLAG,
    TOMBSTONE,
)
from penstock.codec.unpack_py import FIXED, Head, read_frame, read_head
from penstock.errors import BadEntry, NewerVersion

_CHECKPOINT = struct.Struct(CHECKPOINT_FORMAT)
_POINT = struct.Struct("<QQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def seek(
    buffer: Buffer,
    start: int,
    end: int,
    *,
    seq: int = 0,
    timestamp_ns: int = 0,
    seq_base: int = 0,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> int:
    """Return the offset of the first entry at or after that seq and that time, or -1.

    Follow the length fields alone: neither the skipped entries nor the found one are verified.
    """
    check_seq(seq)
    check_timestamp(timestamp_ns)
    check_limits(seq_base, max_entry_bytes)
    with view_of(buffer, start, end) as view:
        offset = start
        while end - offset >= FIXED_BYTES:
            length, type_, _, entry_seq, entry_timestamp_ns = FIXED.unpack_from(view, offset)
            if length == 0:
                return -1
            size = LENGTH_BYTES + length
            if length < MIN_LENGTH or size > max_entry_bytes or size > end - offset:
                raise BadEntry(offset, f"length {length} cannot be right")
            if (
                type_ != CHECKPOINT
                and seq_base + entry_seq >= seq
                and entry_timestamp_ns >= timestamp_ns
            ):
                return offset
            offset += size
    return -1


class _Tally:
    """The results of skim so far, and those up to the end of the last whole batch."""

    def __init__(
        self, view: memoryview, start: int, seq_base: int, index_from: int, *, whole_batches: bool
    ) -> None:
        self._view = view
        self._seq_base = seq_base
        self._index_from = index_from
        self._whole_batches = whole_batches
        self._entries = self._next_seq = self._last_timestamp_ns = self._synced_upto = 0
        self._points = bytearray()
        self._frame_end = 0  # of the batch that is being read
        self._frame_left = 0  # entries of it still to come
        self._whole = (start, 0, 0, 0, 0, 0)

    def add(self, head: Head) -> None:
        if head.type == CHECKPOINT:
            self._add_checkpoint(head)
        else:
            self._add_entry(head)
        self._last_timestamp_ns = max(self._last_timestamp_ns, head.timestamp_ns)
        if not self._frame_left:
            self._whole = (
                head.offset + head.size,
                self._entries,
                self._next_seq,
                self._last_timestamp_ns,
                self._synced_upto,
                len(self._points),
            )

    def result(self, stop: int, problem: str | None, *, newer: bool) -> Skim:
        if problem is None and self._frame_left:
            problem = "a batch that was not written to its end"
        end, entries, next_seq, last_timestamp_ns, synced_upto, points_bytes = self._whole
        return Skim(
            end=end,
            stop=stop,
            entries=entries,
            next_seq=next_seq,
            last_timestamp_ns=last_timestamp_ns,
            synced_upto=synced_upto,
            problem=problem,
            newer=newer,
            points=bytes(self._points[:points_bytes]),
        )

    def _add_checkpoint(self, head: Head) -> None:
        if head.size != ENTRY_OVERHEAD_BYTES + _CHECKPOINT.size or head.flags:
            raise BadEntry(head.offset, "a checkpoint of the wrong size")
        promise, count, frame_bytes = _CHECKPOINT.unpack_from(self._view, head.offset + FIXED_BYTES)
        if self._frame_left:
            raise BadEntry(head.offset, "a checkpoint inside a batch")
        if frame_bytes and not count:
            raise BadEntry(head.offset, "a frame without entries")
        if promise > head.offset:
            raise BadEntry(head.offset, "a checkpoint that promises more than there is")
        self._synced_upto = max(self._synced_upto, promise)
        if self._whole_batches:
            self._frame_left = count
            self._frame_end = head.offset + head.size + frame_bytes

    def _add_entry(self, head: Head) -> None:
        last_seq = head.seq
        if head.type == TOMBSTONE:
            if head.size != ENTRY_OVERHEAD_BYTES + _U64.size or head.flags:
                raise BadEntry(head.offset, "a tombstone of the wrong size")
            (last_stored,) = _U64.unpack_from(self._view, head.offset + FIXED_BYTES)
            last_seq = max(last_seq, self._seq_base + last_stored)
            if last_seq > MAX_SEQ:
                raise BadEntry(head.offset, "a seq beyond 2^63 - 1")
        if self._frame_left:
            end = head.offset + head.size
            if end > self._frame_end or (self._frame_left == 1) != (end == self._frame_end):
                raise BadEntry(head.offset, "a batch that does not fill its frame")
            self._frame_left -= 1
        if 0 <= self._index_from <= head.offset:
            self._points += _POINT.pack(head.seq, head.timestamp_ns, head.offset)
            self._index_from = head.offset + INDEX_STEP_BYTES
        self._entries += 1
        self._next_seq = max(self._next_seq, last_seq + 1)


def skim(
    buffer: Buffer,
    start: int,
    end: int,
    *,
    whole_batches: bool = True,
    index_from: int = -1,
    seq_base: int = 0,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> Skim:
    """Verify every checksum from `start` on and return how far the bytes are good.

    With `whole_batches`, `end` of the result is never inside a batch frame. With `index_from`,
    sparse index points are made: the first at the first entry at or after that offset, then about
    one for each INDEX_STEP_BYTES. A tombstone counts as one entry and reaches to its last seq.
    """
    check_limits(seq_base, max_entry_bytes)
    problem: str | None = None
    newer = False
    offset = start
    with view_of(buffer, start, end) as view:
        tally = _Tally(view, start, seq_base, index_from, whole_batches=whole_batches)
        while offset < end:
            try:
                head = read_head(view, offset, end, seq_base, max_entry_bytes)
                if head is None:
                    break
                tally.add(head)
            except BadEntry as error:
                problem, newer = error.reason, isinstance(error, NewerVersion)
                break
            offset += head.size
    return tally.result(offset, problem, newer=newer)


def resync(
    buffer: Buffer,
    start: int,
    end: int,
    *,
    min_seq: int,
    max_seq: int,
    min_timestamp_ns: int = 0,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> int:
    """Return the offset of the first valid entry at or after `start`, or -1.

    Try every byte. The bounds on seq and time (as stored) make it cheap to skip garbage, and keep
    bytes inside a payload from being taken for an entry.
    """
    check_limits(0, max_entry_bytes)
    max_seq = min(max_seq, MAX_SEQ)
    with view_of(buffer, start, end) as view:
        for offset in range(start, end - ENTRY_OVERHEAD_BYTES + 1):
            length, type_, flags, seq, timestamp_ns = FIXED.unpack_from(view, offset)
            if (
                MIN_LENGTH <= length <= min(end - offset, max_entry_bytes) - LENGTH_BYTES
                and min_seq <= seq <= max_seq
                and min_timestamp_ns <= timestamp_ns <= MAX_TIMESTAMP_NS
                and not flags & RESERVED_FLAG
                and (DATA <= type_ <= CHECKPOINT or type_ >= FIRST_EVENT)
            ):
                try:
                    read_frame(view, offset, end, max_entry_bytes)
                except BadEntry:
                    continue
                return offset
    return -1


def first_nonzero(buffer: Buffer, start: int, end: int) -> int:
    """Return the offset of the first byte that is not zero, or -1."""
    zeros = bytes(4096)
    with view_of(buffer, start, end) as view:
        for offset in range(start, end, len(zeros)):
            piece = bytes(view[offset : min(offset + len(zeros), end)])
            if piece != zeros[: len(piece)]:
                return offset + len(piece) - len(piece.lstrip(b"\0"))
    return -1


def restamp(
    into: bytearray | memoryview,
    start: int,
    end: int,
    timestamp_ns: int,
    *,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> None:
    """Change the time of every entry of a range in place, and its checksum.

    Each entry is verified first: a damaged one must not get a valid checksum. Raise BadEntry if one
    is damaged, or if the range has anything but whole entries; the entries before it are changed
    then. The buffer must not be read during the call.

    >>> from penstock.codec import Draft, pack, unpack
    >>> data = bytearray(pack(7, 1, Draft(b"hi")))
    >>> restamp(data, 0, len(data), 5)
    >>> unpack(data, 0, len(data)).timestamp_ns
    5
    """
    check_timestamp(timestamp_ns)
    check_limits(0, max_entry_bytes)
    target = flat(into)
    if target.readonly:
        raise BufferError("entries need a buffer that can be written")
    with view_of(target, start, end) as view:
        offset = start
        while offset < end:
            head = read_head(view, offset, end, 0, max_entry_bytes)
            if head is None:
                raise BadEntry(offset, "nothing written here")
            _U64.pack_into(view, offset + FIXED_BYTES - _U64.size, timestamp_ns)
            offset += head.size
            crc_at = offset - CRC_BYTES
            _U32.pack_into(view, crc_at, crc32c(view[head.offset : crc_at]))
