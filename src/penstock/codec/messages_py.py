"""Messages straight from their bytes: the fast path of delivery and of recovery.

These functions stop at anything else, which is left to the readers of whole entries.
"""

from collections import deque
from collections.abc import Sequence

from penstock.codec.buffer_py import Buffer, check_limits, check_seq, view_of
from penstock.codec.entry import Entry
from penstock.codec.ids_py import MAX_ID_SEQ, make_id
from penstock.codec.layout import (
    CHECKPOINT,
    CONTENT_TYPE_TAG,
    DATA,
    DEFAULT_MAX_ENTRY_BYTES,
    HAS_DELIVER_AT,
    HAS_KEY,
    HAS_PRIORITY,
    IS_COMPRESSED,
    MAX_ATTEMPTS_TAG,
    TENANT_TAG,
)
from penstock.codec.unpack_py import Head, entry_of, read_head
from penstock.errors import BadEntry
from penstock.model import NO_HEADERS, Message

_AFFECTS_ORDER = HAS_PRIORITY | HAS_DELIVER_AT | HAS_KEY
_PLAIN_TAGS = {CONTENT_TYPE_TAG, MAX_ATTEMPTS_TAG, TENANT_TAG}


def read_messages(
    buffer: Buffer,
    start: int,
    end: int,
    *,
    max_count: int,
    identity: int,
    max_bytes: int = 1 << 62,
    wanted: Sequence[int] | None = None,
    seq_base: int = 0,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> tuple[list[Message], int]:
    """Return messages from `start` on, without checkpoints, and the offset to continue from.

    Stop at `max_count`, at the end, at zeros, before `max_bytes` (but not before the first
    message), and before anything but a good message that is not compressed and has no attributes
    other than content type, max_attempts and tenant.

    With `wanted`, rising seqs, skip all other good entries, and stop behind the last of them.
    """
    check_limits(seq_base, max_entry_bytes)
    messages: list[Message] = []
    offset = start
    left: deque[int] | None = None
    if wanted is not None:
        for seq in wanted:
            check_seq(seq)
        left, max_count = deque(wanted), min(max_count, len(wanted))
    with view_of(buffer, start, end) as view:
        while len(messages) < max_count and offset < end:
            found = _good_entry(view, offset, end, seq_base, max_entry_bytes)
            if found is None:
                break
            head, entry = found
            if messages and offset + head.size - start > max_bytes:
                break
            if head.type != CHECKPOINT:
                if left is not None:
                    while left and left[0] < head.seq:
                        left.popleft()
                    if not left:
                        break
                    if left[0] > head.seq:
                        offset += head.size
                        continue
                if head.type != DATA or head.flags & IS_COMPRESSED or head.seq > MAX_ID_SEQ:
                    break
                if not (_has_plain_attributes(entry) and _is_text(entry.key)):
                    break
                messages.append(_message_of(entry, identity))
            offset += head.size
    return messages, offset


def skip_plain(
    buffer: Buffer,
    start: int,
    end: int,
    *,
    end_seq: int,
    seq_base: int = 0,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> tuple[int, int, int]:
    """Skip a run of plain messages; return (first seq, seq after the last, offset after it).

    Plain means: undamaged, of default priority, due at once, without a key, and without attributes
    other than content type and max_attempts. Stop before anything else, and before `end_seq`.
    """
    check_limits(seq_base, max_entry_bytes)
    check_seq(end_seq)
    first = after = 0
    offset = start
    with view_of(buffer, start, end) as view:
        while offset < end:
            found = _good_entry(view, offset, end, seq_base, max_entry_bytes)
            if found is None:
                break
            head, entry = found
            if head.type != CHECKPOINT:
                if head.type != DATA or head.flags & _AFFECTS_ORDER or head.seq >= end_seq:
                    break
                if not _has_plain_attributes(entry) or TENANT_TAG in (entry.attributes or ()):
                    break
                if first == after:
                    first = head.seq
                elif head.seq != after:
                    break
                after = head.seq + 1
            offset += head.size
    return first, after, offset


def _good_entry(
    view: memoryview, offset: int, end: int, seq_base: int, max_entry_bytes: int
) -> tuple[Head, Entry] | None:
    try:
        head = read_head(view, offset, end, seq_base, max_entry_bytes)
        return None if head is None else (head, entry_of(view, head))
    except BadEntry:
        return None


def _has_plain_attributes(entry: Entry) -> bool:
    """Return whether it has only attributes that do not affect how it is read."""
    attributes = entry.attributes
    if not attributes:
        return True
    if not attributes.keys() <= _PLAIN_TAGS or len(attributes.get(MAX_ATTEMPTS_TAG, b"")) > 4:
        return False
    return _is_text(attributes.get(CONTENT_TYPE_TAG))


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


def _message_of(entry: Entry, identity: int) -> Message:
    attributes = entry.attributes or {}
    content_type = attributes.get(CONTENT_TYPE_TAG)
    return Message(
        id=make_id(entry.timestamp_ns, identity, entry.seq),
        seq=entry.seq,
        payload=entry.payload,
        priority=entry.priority,
        published_ns=entry.timestamp_ns,
        deliver_at_ns=entry.deliver_at_ns,
        expires_at_ns=entry.expires_at_ns,
        key=None if entry.key is None else entry.key.decode(),
        headers=entry.headers or NO_HEADERS,
        content_type=None if content_type is None else content_type.decode(),
        max_attempts=int.from_bytes(attributes.get(MAX_ATTEMPTS_TAG, b""), "little"),
    )
