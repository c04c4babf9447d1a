"""The attributes that the queue stores with messages, by tag, and what is in them.

The tags are part of the file format: add new ones, never rename or reuse one.
"""

import struct

from penstock.codec import Entry
from penstock.codec.layout import CONTENT_TYPE_TAG, MAX_ATTEMPTS_TAG, TENANT_TAG
from penstock.ledger.json_files import TRANSACTION_TAG
from penstock.queue.events import Event, EventType, decode, encode, names

DEDUP = 1  # SHA-256 of the dedup id, and the end of its window
MAX_ATTEMPTS = MAX_ATTEMPTS_TAG  # u32
CONTENT_TYPE = CONTENT_TYPE_TAG  # UTF-8
SETTLES = 4  # the ack that was written with these messages
TRACE = 5  # W3C trace context, UTF-8
DUPLICATES = 6  # u32: number of duplicates in the batch that begins with this message
FIRED = 12  # the event of the schedule that published this message; 8 to 11 are left free
AFTER = 9  # the messages that it comes after (`after.py`)
UNIQUE = 14  # for which key the message stands (`unique.py`): u8 mode, SHA-256 of the key
TENANT = TENANT_TAG  # UTF-8
DEDUP_KIND = 15  # u8: what the dedup id is for (`dedup.py`); absent: a message of the user's own
TRANSACTION = TRANSACTION_TAG  # "<version>:<application>" of the job that wrote the batch

_DEDUP = struct.Struct("<32sQ")
_SETTLES = struct.Struct("<QB")  # number of the next event at that time, event type


def pack_dedup(digest: bytes, until_ns: int) -> bytes:
    return _DEDUP.pack(digest, until_ns)


def unpack_dedup(data: bytes) -> tuple[bytes, int]:
    """Return the digest of a dedup id, and the end of its window."""
    digest, until_ns = _DEDUP.unpack(data)
    return digest, until_ns


def pack_carried(event: Event, next_event_seq: int) -> bytes:
    """Pack an event for a message that is published in the same write: the ack that emits it, for
    the first of a batch, or the event of the schedule that publishes it.

    The batch frame of the message log makes both true or neither. At recovery the event is applied
    before the event with that number. It is in the event log as well, mostly with that number:
    applied again, it changes nothing.
    """
    return _SETTLES.pack(next_event_seq, event.type) + encode(event)


def may_carry(entry: Entry, seq: int) -> bool:
    """Return whether a message may carry an event about another, or about itself."""
    data = (entry.attributes or {}).get(SETTLES)
    return entry.seq == seq or (data is not None and names(data[_SETTLES.size :], seq))


def carried_in(entry: Entry) -> tuple[int, Event] | None:
    """Return (number of the next event at that time, event) that a message carries, or None."""
    attributes = entry.attributes or {}
    data = attributes.get(SETTLES) or attributes.get(FIRED)
    if data is None:
        return None
    before_event, type_ = _SETTLES.unpack_from(data)
    body = data[_SETTLES.size :]
    event = decode(type_, body, timestamp_ns=entry.timestamp_ns, event_seq=before_event)
    if event.type is EventType.SCHEDULE_FIRED:
        return before_event, event._replace(runs=((entry.seq, 1),))  # not known when it was packed
    assert event.type is EventType.ACKED
    return before_event, event
