"""An ack that is one write with the messages it emits.

The ack's event travels as an attribute of the first emitted message, with the number of the event
before which it happened; at recovery it is applied at that place. So the batch frame of the message
log makes both true or neither. The event follows in the event log as well, mostly with that number:
applied again, it finds nothing to do.
"""

import struct

from penstock.codec import Entry
from penstock.queue.events import Event, EventType, decode, encode
from penstock.queue.tags import SETTLES

_HEAD = struct.Struct("<QB")  # the next event's number at that time, event type


def pack_settlement(event: Event, next_event_seq: int) -> bytes:
    return _HEAD.pack(next_event_seq, event.type) + encode(event)


def settlement_in(entry: Entry) -> tuple[int, Event] | None:
    """(the event number before which it happened, the event) that a message carries."""
    data = entry.attributes.get(SETTLES) if entry.attributes else None
    if data is None:
        return None
    before_event, type_ = _HEAD.unpack_from(data)
    event = decode(
        type_, data[_HEAD.size :], timestamp_ns=entry.timestamp_ns, event_seq=before_event
    )
    assert event.type is EventType.ACKED
    return before_event, event
