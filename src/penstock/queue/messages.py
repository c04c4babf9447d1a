"""Read messages from the log: one by one or in runs, a little ahead."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from penstock import codec
from penstock.codec import Entry
from penstock.codec.layout import DATA
from penstock.ledger import read_entry
from penstock.ledger.log import Log
from penstock.ledger.segment import Segment
from penstock.model import NO_HEADERS, Message
from penstock.queue.attributes import CONTENT_TYPE, MAX_ATTEMPTS
from penstock.queue.compression import decompress

_AHEAD_BYTES = 256 * 1024
_AHEAD_ENTRIES = 128
_FIRST_AHEAD = 8
_MOST_SKIPPED = 256  # entries that are read on the way to another
_NEAR, _FAR = 64, 1024  # entries that are skipped from the last message, and for further ones
_MAX_SKIPPED_BYTES = 4096  # of a message that is kept
NO_BYTE_LIMIT = 1 << 62
MESSAGE_OVERHEAD_BYTES = 256  # id, times and names of fields, in an answer


def size_of(message: Message) -> int:
    """Return the approximate size of a message in an answer."""
    size = len(message[2]) + MESSAGE_OVERHEAD_BYTES
    headers = message[8]
    if headers:
        size += sum(len(name) + len(value) for name, value in headers.items())
    return size


def to_message(entry: Entry, identity: int, max_unpacked_bytes: int) -> Message:
    """Return the message in an entry. Raise PayloadUnreadable if it cannot be decompressed."""
    (
        seq,
        published_ns,
        _,
        payload,
        priority,
        expires_at_ns,
        deliver_at_ns,
        key,
        headers,
        attributes,
        compression,
        _,
        _,
    ) = entry
    if compression:
        payload = decompress(payload, compression, max_bytes=max_unpacked_bytes)
    content_type, max_attempts = None, 0
    if attributes:
        content_type = attributes[CONTENT_TYPE].decode() if CONTENT_TYPE in attributes else None
        max_attempts = int.from_bytes(attributes.get(MAX_ATTEMPTS, b""), "little")
    return tuple.__new__(
        Message,
        (
            codec.make_id(published_ns, identity, seq),
            seq,
            payload,
            priority,
            published_ns,
            deliver_at_ns,
            expires_at_ns,
            None if key is None else key.decode(),
            NO_HEADERS if headers is None else headers,
            content_type,
            max_attempts,
        ),
    )


def _ahead_count(before: int, entry_bytes: int) -> int:
    """Return how many entries to read ahead next: twice as many, within the limits."""
    return max(min(2 * before, _AHEAD_BYTES // max(entry_bytes, 1), _AHEAD_ENTRIES), 1)


class EntryReader:
    """Read entries by seq, and a few ahead, because most are read in rising order."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ahead: dict[int, Entry] = {}
        self._segment: Segment | None = None
        self._offset = 0  # behind the last entry read ahead
        self._next_seq = 0
        self._count = _FIRST_AHEAD
        self._missed = False  # the last entry lay before those read ahead

    def get(self, seq: int) -> Entry:
        """Return an entry, and forget it. Raise EntryGone if it is not in the log."""
        entry = self._ahead.pop(seq, None)
        return entry or self._find(seq, keep=False)

    def look(self, seq: int) -> Entry:
        """Return an entry that is asked for again soon. Raise EntryGone as `get` does."""
        return self._ahead.get(seq) or self._find(seq, keep=True)

    def forget(self) -> None:
        """Drop what was read ahead: segments have changed."""
        self._ahead.clear()
        self._segment = None

    def _find(self, seq: int, *, keep: bool) -> Entry:
        if seq < self._next_seq and not self._missed:
            self._missed = True  # one step back: what was read ahead may still be needed
            return read_entry(self._log, seq)
        self._missed = False
        self._read_on(seq)
        entry = self._ahead.get(seq) if keep else self._ahead.pop(seq, None)
        return read_entry(self._log, seq) if entry is None else entry

    def _read_on(self, seq: int) -> None:
        """Read entries up to a seq and beyond, from where the last ones ended if that is near."""
        log = self._log
        log.check_readable()
        log.publish_tail()
        if not self._next_seq <= seq < self._next_seq + _MOST_SKIPPED:
            self._segment = None
            self._count = _FIRST_AHEAD
        while True:
            segment, offset = self._segment, self._offset
            self._segment = None  # until something is found
            if segment is None or segment.gone:
                segment = log.segments.holding(seq)
                offset = -1 if segment is None else segment.offset_of(seq)
                if segment is None or offset < 0:
                    return
            entries, after = log.segments.used(segment).read(offset, self._count, _AHEAD_BYTES)
            if not entries:  # the end of a segment: find the seq in the next one
                following = log.segments.after(segment)
                if following is None or following.base_seq > seq:
                    return
                continue
            self._ahead = {entry.seq: entry for entry in entries if entry.type == DATA}
            self._segment, self._offset = segment, after
            self._next_seq = entries[-1].seq + 1
            self._count = _ahead_count(self._count, max(entry.size for entry in entries))
            if seq < self._next_seq:
                return


class NearbyMessages:
    """Read messages that are delivered in another order than that of their seqs.

    Of the messages that are needed next, it also reads those that are not far behind the first.
    After messages that it cannot read, it does not try again for some calls, because trying is
    slow.
    """

    def __init__(self, log: Log, identity: int) -> None:
        self._log = log
        self._identity = identity
        self.ahead: dict[int, Message] = {}
        self._ahead_bytes = 0  # of all that were added since it was empty
        self._segment: Segment | None = None
        self._offset = 0  # behind the last message read ahead
        self._next_seq = 0
        self._failures = 0  # in a row
        self._calls_to_skip = 0

    def pop(self, seqs: Sequence[int]) -> Message | None:
        """Return a message, the last of those that are needed next, and forget it.

        Return None if it must be read by an EntryReader.
        """
        message = self.ahead.pop(seqs[-1], None)
        if message is not None:
            return message
        if self._calls_to_skip:
            self._calls_to_skip -= 1
            return None
        self._read(seqs)
        message = self.ahead.pop(seqs[-1], None)
        self._failures = min(self._failures + 1, 7) if message is None else 0
        self._calls_to_skip = (1 << self._failures) - 1
        return message

    def forget(self) -> None:
        """Drop what was read ahead: segments have changed."""
        self.ahead.clear()
        self._segment = None

    def _read(self, seqs: Sequence[int]) -> None:
        log, seq, segment, offset = self._log, seqs[-1], self._segment, self._offset
        log.check_readable()
        log.publish_tail()
        if not self.ahead or self._ahead_bytes > _AHEAD_BYTES or len(self.ahead) > _AHEAD_ENTRIES:
            self.ahead, self._ahead_bytes = {}, 0
        wanted = sorted(seqs[-_AHEAD_ENTRIES:])
        wanted = wanted[bisect_left(wanted, seq) : bisect_left(wanted, seq + _FAR)]
        near = segment is not None and not segment.gone and 0 <= seq - self._next_seq < _NEAR
        messages: list[Message] = []
        if near and segment is not None:
            messages, after = self._read_at(segment, offset, wanted)
        if not messages:  # far away, or in the next segment
            segment = log.segments.holding(seq)
            offset = -1 if segment is None else segment.offset_of(seq)
            if segment is None or offset < 0:
                return
            messages, after = self._read_at(segment, offset, wanted)
        if messages:
            self._ahead_bytes += sum(map(size_of, messages)) if self.ahead else after - offset
            self.ahead.update((message[1], message) for message in messages)
            self._segment, self._offset, self._next_seq = segment, after, messages[-1][1] + 1

    def _read_at(
        self, segment: Segment, offset: int, wanted: list[int]
    ) -> tuple[list[Message], int]:
        return self._log.segments.used(segment).read_messages(
            offset, _AHEAD_ENTRIES, self._identity, _AHEAD_BYTES, wanted
        )


class MessageReader:
    """Read messages in seq order and ahead, without an entry in between.

    Most messages are delivered this way. A message that it does not find may be compressed or have
    other attributes, and is read by the EntryReader.
    """

    def __init__(self, log: Log, identity: int) -> None:
        self._log = log
        self._identity = identity
        self.ahead: list[Message] = []  # the next one last
        self._segment: Segment | None = None
        self._offset = 0  # behind the last message read
        self._next_seq = 0
        self._count = _FIRST_AHEAD
        self._read_bytes = 0  # by the last read
        self._skipped: dict[int, Message] = {}  # small ones that were read ahead

    def get(self, seq: int) -> Message | None:
        """Return a message, or None if only an EntryReader can read it.

        Messages that it skips are kept for a while: they may only wait for others of their keys.
        """
        ahead = self.ahead
        if self._skipped and seq in self._skipped:
            return self._skipped.pop(seq)
        if ahead:
            gap = seq - ahead[-1][1]
            if 0 <= gap < len(ahead):
                if gap:
                    self._skip(ahead, gap)
                return ahead.pop()
        ahead = self._read_on(seq, self._count, _AHEAD_BYTES)
        if not ahead:
            return None
        ahead.reverse()
        self.ahead = ahead
        return ahead.pop()

    def get_run(
        self, first: int, count: int, max_bytes: int = NO_BYTE_LIMIT
    ) -> list[Message] | None:
        """Return `count` messages from a seq on, fewer if they exceed `max_bytes`, at least one.

        Return None if only an EntryReader can read any of them.
        """
        found: list[Message] = []
        if self.ahead and self.ahead[-1][1] == first:
            found = self.ahead[-count:]
            del self.ahead[-count:]
            found.reverse()
        size = 0 if max_bytes == NO_BYTE_LIMIT else sum(map(size_of, found))
        while len(found) < count and size < max_bytes:
            more = self._read_on(first + len(found), count - len(found), max_bytes - size)
            if not more:
                return None
            found += more
            size += self._read_bytes
        if size > max_bytes:
            self._keep_within(found, max_bytes)
        return found

    def _keep_within(self, found: list[Message], max_bytes: int) -> None:
        """Remove the last messages that do not fit. If small, keep them for the next call."""
        sizes = accumulate(map(size_of, found))
        fitting = max(sum(size <= max_bytes for size in sizes), 1)
        rest = found[fitting:]
        del found[fitting:]
        if self.ahead or sum(map(size_of, rest)) <= _AHEAD_BYTES:
            self.ahead += reversed(rest)

    def _skip(self, ahead: list[Message], count: int) -> None:
        skipped = self._skipped
        if len(skipped) > _AHEAD_ENTRIES:
            skipped.clear()
        for message in ahead[-count:]:
            if size_of(message) <= _MAX_SKIPPED_BYTES:
                skipped[message[1]] = message
        del ahead[-count:]

    def forget(self) -> None:
        """Drop what was read ahead: segments have changed."""
        self.ahead.clear()
        self._skipped.clear()
        self._segment = None

    def _read_on(self, seq: int, count: int, max_bytes: int) -> list[Message]:
        log = self._log
        log.check_readable()
        log.publish_tail()
        self.ahead = []
        if seq != self._next_seq or self._segment is None or self._segment.gone:
            self._count = _FIRST_AHEAD
            if not self._find(seq):
                return []
        messages = self._read(count, max_bytes)
        if not messages and self._find(seq):  # in the next segment, perhaps
            messages = self._read(count, max_bytes)
        if not messages or messages[0].seq != seq or messages[-1].seq != seq + len(messages) - 1:
            self._segment = None
            return []
        self._next_seq = seq + len(messages)
        return messages

    def _find(self, seq: int) -> bool:
        segment = self._log.segments.holding(seq)
        offset = -1 if segment is None else segment.offset_of(seq)
        self._segment, self._offset = segment if offset >= 0 else None, offset
        return offset >= 0

    def _read(self, count: int, max_bytes: int) -> list[Message]:
        assert self._segment is not None
        start = self._offset
        messages, self._offset = self._log.segments.used(self._segment).read_messages(
            start, count, self._identity, max_bytes
        )
        self._read_bytes = self._offset - start
        self._count = _ahead_count(self._count, self._read_bytes // max(len(messages), 1))
        return messages
