"""Appending: entries one after another into a buffer that others may be reading."""

import struct
from collections.abc import Sequence

from penstock.codec.buffer_py import check_limits, check_seq, check_timestamp, flat
from penstock.codec.entry import Draft
from penstock.codec.ids_py import MAX_ID_SEQ, make_id
from penstock.codec.layout import (
    CHECKPOINT,
    CHECKPOINT_BYTES,
    CHECKPOINT_FORMAT,
    DEFAULT_MAX_ENTRY_BYTES,
    ENTRY_OVERHEAD_BYTES,
    EVENT_OF_ONE_FORMAT,
    LENGTH_BYTES,
    MAX_SEQ,
    MAX_TIMESTAMP_NS,
)
from penstock.codec.notes_py import Notes
from penstock.codec.pack_py import body_of, check_batch_bytes, seal
from penstock.errors import InvalidInput, TooLarge
from penstock.locks import Lock

_CHECKPOINT = struct.Struct(CHECKPOINT_FORMAT)
_EVENT_OF_ONE = struct.Struct(EVENT_OF_ONE_FORMAT)


class Packer:
    """Writes entries one after another into a buffer: a mapped segment or a staging area.

    A call writes everything or nothing. It returns the first seq, or -1 if there is no room before
    `limit`, or if `seq_limit` or `time_limit_ns` is reached. The owner then makes room or starts a
    new segment and calls again. A call is atomic between threads: by a lock here; the compiled twin
    needs none, because it holds the interpreter lock from the first check to the last byte. So the
    fast path of an append takes no lock of the owner, and closing the packer (`limit = 0`) sends
    the next caller to the owner.

    The length field of the first entry is stored last, so a reader of the same pages sees either
    zeros or all bytes of the call. Then position, seq, time and promise change in one assignment:
    after an interrupt before it nothing was written, and the next call overwrites the bytes.
    """

    def __init__(
        self,
        buffer: bytearray | memoryview,
        *,
        position: int,
        limit: int,
        next_seq: int,
        last_timestamp_ns: int = 0,
        max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
    ) -> None:
        self._buffer = flat(buffer)
        if self._buffer.readonly:
            raise BufferError("a packer needs a buffer that can be written")
        if not 0 <= position <= limit <= len(self._buffer):
            raise ValueError("position and limit must lie inside the buffer")
        check_limits(next_seq, max_entry_bytes)
        self._limit = limit
        # Where the next entry goes, its seq, the last time, and the promised offset or -1.
        self._end = (position, next_seq, last_timestamp_ns, -1)
        self._max_entry_bytes = max_entry_bytes
        self.seq_limit = MAX_SEQ  # entries at or above it are refused with -1
        self.time_limit_ns = MAX_TIMESTAMP_NS  # entries after it are refused with -1
        self._notes: Notes | None = None
        self._lock = Lock()

    @property
    def notes(self) -> Notes | None:
        """Where messages with options are noted, if anywhere."""
        return self._notes

    @notes.setter
    def notes(self, notes: Notes | None) -> None:
        self._notes = notes
        if notes is not None:
            notes.follow(self)

    @property
    def position(self) -> int:
        """The offset of the next entry."""
        return self._end[0]

    @position.setter
    def position(self, position: int) -> None:
        with self._lock:
            self._check_inside(position)
            self._end = (position, *self._end[1:])

    @property
    def limit(self) -> int:
        """Nothing is written at or after it."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._check_inside(limit)
            self._limit = limit

    @property
    def next_seq(self) -> int:
        """The seq of the next entry."""
        return self._end[1]

    @next_seq.setter
    def next_seq(self, seq: int) -> None:
        check_seq(seq)
        with self._lock:
            position, _, timestamp_ns, synced_upto = self._end
            self._end = (position, seq, timestamp_ns, synced_upto)

    @property
    def last_timestamp_ns(self) -> int:
        """The time of the last entry."""
        return self._end[2]

    @last_timestamp_ns.setter
    def last_timestamp_ns(self, timestamp_ns: int) -> None:
        with self._lock:
            position, seq, _, synced_upto = self._end
            self._end = (position, seq, timestamp_ns, synced_upto)

    def append(self, payload: bytes, timestamp_ns: int) -> int:
        """Write a plain message (no options)."""
        return self._write([Draft(payload)], timestamp_ns)

    def append_batch(self, items: Sequence[bytes | Draft], timestamp_ns: int) -> int:
        """Write entries that belong together, in a frame if there are several."""
        if not items:
            raise InvalidInput("a batch needs at least one entry")
        return self._write(items, timestamp_ns)

    def append_batch_stamped(
        self, items: Sequence[bytes | Draft], timestamp_ns: int
    ) -> tuple[int, int] | None:
        """Write as `append_batch` does; return (first seq, timestamp as stored), or None for -1.

        Only the call itself can tell the timestamp: after it, another thread may have appended.
        """
        if not items:
            raise InvalidInput("a batch needs at least one entry")
        return self._write_stamped(items, timestamp_ns)

    def append_event(self, type_: int, body: bytes, timestamp_ns: int) -> int:
        """Write an event: an entry of its type without any option."""
        return self._write([Draft(body, type_)], timestamp_ns)

    def append_event_of_one(
        self, type_: int, group: int, attempt: int, seq: int, timestamp_ns: int
    ) -> int:
        """Write an event that holds only group, attempt and the seq of one message."""
        check_timestamp(timestamp_ns)
        for number in (group, attempt):
            if not 0 <= number <= 0xFFFF:
                raise InvalidInput(f"{number} is not between 0 and 65535")
        check_seq(seq)
        body = _EVENT_OF_ONE.pack(group, attempt, 1, seq, 1)
        return self._write([Draft(body, type_)], timestamp_ns)

    def append_identified(
        self, item: bytes | Draft, timestamp_ns: int, identity: int
    ) -> str | None:
        """Write a message, plain or a draft; return its id, or None for -1.

        Most messages are published by it: it saves the caller two calls.
        """
        if self.next_seq > MAX_ID_SEQ:
            raise InvalidInput(f"seq {self.next_seq} does not fit into an id")
        draft = item if isinstance(item, Draft) else Draft(item)
        stamped = self._write_stamped([draft], timestamp_ns)
        return None if stamped is None else make_id(stamped[1], identity, stamped[0])

    def promise(self, synced_upto: int) -> None:
        """Let the next call write a checkpoint first: the file is durable up to that offset."""
        if not 0 <= synced_upto <= MAX_SEQ:
            raise InvalidInput(f"{synced_upto} is not an offset that can be durable")
        with self._lock:
            self._end = (*self._end[:3], synced_upto)

    def write_checkpoint(self, timestamp_ns: int) -> bool:
        """Write the promised checkpoint now; return False if there is no room."""
        check_timestamp(timestamp_ns)
        with self._lock:
            position, seq, last_ns, synced_upto = self._end
            if synced_upto < 0:
                return True
            if position + CHECKPOINT_BYTES > self._limit:
                return False
            timestamp_ns = max(timestamp_ns, last_ns)
            data = _checkpoint(seq, timestamp_ns, synced_upto)
            self._place(data, (position + len(data), seq, timestamp_ns, -1))
            return True

    def take(self) -> bytes:
        """Return the bytes written so far and start again at the start of the buffer."""
        with self._lock:
            if not self._buffer:
                return b""
            data = bytes(self._buffer[: self._end[0]])
            self._buffer[: len(data)] = bytes(len(data))  # the length-last rule starts from zeros
            self._end = (0, *self._end[1:])
            return data

    def release(self) -> None:
        """Release the buffer; every later append returns -1."""
        with self._lock:
            old, self._limit, self._buffer = self._buffer, 0, memoryview(b"")
            old.release()

    def _write(self, items: Sequence[bytes | Draft], timestamp_ns: int) -> int:
        stamped = self._write_stamped(items, timestamp_ns)
        return -1 if stamped is None else stamped[0]

    def _write_stamped(
        self, items: Sequence[bytes | Draft], timestamp_ns: int
    ) -> tuple[int, int] | None:
        check_timestamp(timestamp_ns)
        drafts = [item if isinstance(item, Draft) else Draft(item) for item in items]
        bodies = []
        batch_bytes = 0
        for draft in drafts:
            flags, body = body_of(draft)
            size = ENTRY_OVERHEAD_BYTES + len(body)
            if size > self._max_entry_bytes:
                raise TooLarge(f"an entry of {size} bytes; the maximum is {self._max_entry_bytes}")
            bodies.append((draft.type, flags, body))
            batch_bytes += size
        check_batch_bytes(batch_bytes)
        with self._lock:
            return self._commit(drafts, bodies, batch_bytes, timestamp_ns)

    def _commit(
        self,
        drafts: list[Draft],
        bodies: list[tuple[int, int, bytes]],
        batch_bytes: int,
        timestamp_ns: int,
    ) -> tuple[int, int] | None:
        position, first_seq, last_ns, synced_upto = self._end
        timestamp_ns = max(timestamp_ns, last_ns)
        count = len(bodies)
        head_bytes = CHECKPOINT_BYTES if count > 1 or synced_upto >= 0 else 0
        if (
            first_seq + count > self.seq_limit
            or timestamp_ns > self.time_limit_ns
            or position + head_bytes + batch_bytes > self._limit
        ):
            return None
        entries = []
        if head_bytes:
            frame = (count, batch_bytes) if count > 1 else (0, 0)
            entries.append(_checkpoint(first_seq, timestamp_ns, synced_upto, *frame))
        for seq, body in enumerate(bodies, first_seq):
            entries.append(seal(seq, timestamp_ns, *body))
        data = b"".join(entries)
        if self._notes is not None:
            self._notes.hold(drafts, first_seq, timestamp_ns)
        self._place(data, (position + len(data), first_seq + count, timestamp_ns, -1))
        return first_seq, timestamp_ns

    def _place(self, data: bytes, end: tuple[int, int, int, int]) -> None:
        start = self._end[0]
        self._buffer[start + LENGTH_BYTES : end[0]] = data[LENGTH_BYTES:]
        self._buffer[start : start + LENGTH_BYTES] = data[:LENGTH_BYTES]
        self._end = end

    def _check_inside(self, offset: int) -> None:
        if not 0 <= offset <= len(self._buffer):
            raise ValueError("position and limit must lie inside the buffer")


def _checkpoint(
    seq: int, timestamp_ns: int, synced_upto: int, frame_count: int = 0, frame_bytes: int = 0
) -> bytes:
    body = _CHECKPOINT.pack(max(synced_upto, 0), frame_count, frame_bytes)
    return seal(seq, timestamp_ns, CHECKPOINT, 0, body)
