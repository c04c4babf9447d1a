"""Messages straight from their bytes, for the ways that are gone most: plain ones, in a row.

What these functions stop at is not refused: it is for the readers of whole entries.
"""

from penstock.codec.checksum_py import Buffer
from penstock.codec.entry import Entry
from penstock.codec.ids_py import MAX_ID_SEQ, make_id
from penstock.codec.layout import (
    CHECKPOINT,
    CONTENT_TYPE_TAG,
    DATA,
    DEFAULT_MAX_ENTRY_BYTES,
    HAS_DELIVER_AT,
    HAS_EXPIRES_AT,
    HAS_KEY,
    HAS_PRIORITY,
    IS_COMPRESSED,
)
from penstock.codec.pack_py import check_limits, check_seq
from penstock.codec.unpack_py import Head, entry_of, read_head, view_of
from penstock.errors import BadEntry
from penstock.model import NO_HEADERS, Message

_NEEDS_THE_STATE = HAS_PRIORITY | HAS_DELIVER_AT | HAS_KEY
_NEEDS_A_LOOK = _NEEDS_THE_STATE | HAS_EXPIRES_AT | IS_COMPRESSED


def read_messages(
    buffer: Buffer,
    start: int,
    end: int,
    *,
    max_count: int,
    identity: int,
    max_bytes: int = 1 << 62,
    seq_base: int = 0,
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
) -> tuple[list[Message], int]:
    """Messages from `start`, checkpoints left out, and the offset to go on from.

    Stops at `max_count`, at the end, at zeros, before anything else than a good message whose only
    options are its headers and content type, and before all but the first would go over
    `max_bytes`.
    """
    check_limits(seq_base, max_entry_bytes)
    messages: list[Message] = []
    offset = start
    with view_of(buffer, start, end) as view:
        while len(messages) < max_count and offset < end:
            found = _good_entry(view, offset, end, seq_base, max_entry_bytes)
            if found is None:
                break
            head, entry = found
            if messages and offset + head.size - start > max_bytes:
                break
            if head.type != CHECKPOINT:
                if head.type != DATA or head.flags & _NEEDS_A_LOOK or head.seq > MAX_ID_SEQ:
                    break
                if not _has_only_content_type(entry):
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
    """Pass over plain messages in a row: (first seq, seq after the last, offset after the last).

    Plain: good, of the default priority, due at once, without key and with no attribute but a
    content type. Stops before anything else, and before `end_seq`.
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
                if head.type != DATA or head.flags & _NEEDS_THE_STATE or head.seq >= end_seq:
                    break
                if not _has_only_content_type(entry):
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


def _has_only_content_type(entry: Entry) -> bool:
    """As its attributes, if it has any: it changes nothing about the delivery."""
    if not entry.attributes:
        return True
    if [*entry.attributes] != [CONTENT_TYPE_TAG]:
        return False
    try:
        _content_type_of(entry)
    except UnicodeDecodeError:
        return False
    return True


def _content_type_of(entry: Entry) -> str | None:
    return entry.attributes[CONTENT_TYPE_TAG].decode() if entry.attributes else None


def _message_of(entry: Entry, identity: int) -> Message:
    return Message(
        id=make_id(entry.timestamp_ns, identity, entry.seq),
        seq=entry.seq,
        payload=entry.payload,
        priority=entry.priority,
        published_ns=entry.timestamp_ns,
        deliver_at_ns=0,
        expires_at_ns=0,
        key=None,
        headers=entry.headers or NO_HEADERS,
        content_type=_content_type_of(entry),
        max_attempts=0,
    )
