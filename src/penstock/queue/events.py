"""Events: what happened to messages, and how that is written in the event log.

One entry of the event log is one event. Its body, little-endian:

    group u16 | attempt u16 | count u16 | count x (first seq u64, how many u32) | what the type adds

Seqs come in runs, because what happens to messages mostly happens to neighbours together.
To add an event: a number here (never reused), its fields in `_EXTRA`, its line in the states page,
its meaning in `group.py` or `state.py`.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from penstock.codec.layout import EVENT_OF_ONE_FORMAT
from penstock.errors import BadEntry, InvalidInput

ALL_GROUPS = 0xFFFF
MAIN_GROUP = 0


class EventType(IntEnum):
    """The numbers are entry types of the format."""

    LEASED = 16
    TAKEN = 17  # leased and acked at once
    ACKED = 18
    NACKED = 19
    TIMED_OUT = 20
    DEAD = 21
    EXTENDED = 22
    RELEASED = 23
    REDRIVEN = 24
    EXPIRED = 25
    CANCELLED = 26
    DISCARDED = 27
    SOUGHT = 28
    PURGED = 29
    GROUP_CREATED = 30
    GROUP_DELETED = 31
    PAUSED = 32
    RESUMED = 33
    DROPPED = 34  # made room for a newer one
    LOST = 35  # its bytes are damaged or gone
    DEAD_LEASED = 36  # a dead letter was handed out
    DEDUPLICATED = 37  # messages were not published again


class Cause(IntEnum):
    """Why a message is dead."""

    NACK = 1
    TIMEOUT = 2
    UNREADABLE = 3  # its payload cannot be decompressed


class Event(NamedTuple):
    """One event, decoded. Fields that its type does not have are left at their defaults."""

    type: EventType
    timestamp_ns: int = 0
    event_seq: int = 0
    group: int = MAIN_GROUP
    attempt: int = 0
    runs: tuple[tuple[int, int], ...] = ()  # (first seq, how many)
    nonce: int = 0
    deadline_ns: int = 0  # LEASED, EXTENDED: when the lease ends
    length_ns: int = 0  # LEASED, EXTENDED: how long it was given for
    retry_at_ns: int = 0  # NACKED, TIMED_OUT
    # SOUGHT: first to deliver; PURGED: first to keep; GROUP_CREATED: start; ACKED: see `encode`
    target_seq: int = 0
    cause: int = 0
    reason: str = ""
    holder: str = ""
    name: str = ""  # GROUP_CREATED
    duplicates: int = 0  # DEDUPLICATED: how many messages

    @property
    def seqs(self) -> Iterable[int]:
        """The messages it is about."""
        if len(self.runs) == 1:
            first, count = self.runs[0]
            return range(first, first + count)
        return (seq for first, count in self.runs for seq in range(first, first + count))

    @property
    def upto_seq(self) -> int:
        """The message behind the last that it speaks of."""
        return max(self.target_seq, *(first + count for first, count in self.runs), 0)

    def recorded(self, timestamp_ns: int, event_seq: int) -> "Event":
        """The event as it stands in the log."""
        return tuple.__new__(Event, (self[0], timestamp_ns, event_seq, *self[3:]))


_HEAD = struct.Struct("<HHH")
_RUN = struct.Struct("<QI")
_HEAD_AND_RUN = struct.Struct(EVENT_OF_ONE_FORMAT)
_NUMBER_FIELDS = {
    "nonce": struct.Struct("<Q"),
    "deadline_ns": struct.Struct("<Q"),
    "length_ns": struct.Struct("<Q"),
    "retry_at_ns": struct.Struct("<Q"),
    "target_seq": struct.Struct("<Q"),
    "cause": struct.Struct("<B"),
    "duplicates": struct.Struct("<I"),
}
_EXTRA: dict[EventType, tuple[str, ...]] = {
    EventType.LEASED: ("nonce", "deadline_ns", "length_ns", "holder"),
    EventType.DEAD_LEASED: ("nonce", "deadline_ns", "length_ns", "holder"),
    EventType.NACKED: ("retry_at_ns", "reason"),
    EventType.TIMED_OUT: ("retry_at_ns",),
    EventType.DEAD: ("cause", "reason"),
    EventType.EXTENDED: ("deadline_ns", "length_ns"),
    EventType.SOUGHT: ("target_seq",),
    EventType.PURGED: ("target_seq",),
    EventType.GROUP_CREATED: ("target_seq", "name"),
    EventType.LOST: ("reason",),
    EventType.DISCARDED: ("reason",),  # none in logs of before it had one
    EventType.DEDUPLICATED: ("duplicates",),
}
MAX_TEXT_BYTES = 4096  # of a reason or holder; longer ones are cut
MAX_RUNS = 0xFFFF


def as_written(name: str, text: object) -> str:
    """A reason or holder as the event log will give it back: live and after a restart the same."""
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is text, not {type(text).__name__}")
    return text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")


def in_parts(event: Event) -> list[Event]:
    """An event about more runs than fit into one, as several that are written together."""
    runs = event.runs
    starts = range(0, len(runs) or 1, MAX_RUNS)
    return [event._replace(runs=runs[start : start + MAX_RUNS]) for start in starts]


def encode(event: Event) -> bytes:
    """The body of an event; its type and time are the entry's own.

    An ACKED of messages that were acked with follow-ups ends with the seq behind the last of those:
    where they are not there, it did not happen either.
    """
    kind, _, _, group, attempt, runs, *_ = event
    if len(runs) == 1:
        head = _HEAD_AND_RUN.pack(group, attempt, 1, *runs[0])
    else:
        head = _HEAD.pack(group, attempt, len(runs)) + b"".join([_RUN.pack(*run) for run in runs])
    names = _EXTRA.get(kind)
    if names is None:
        if kind is EventType.ACKED and event.target_seq:
            return head + _NUMBER_FIELDS["target_seq"].pack(event.target_seq)
        return head
    parts = [head]
    for name in names:
        value: Any = getattr(event, name)
        if name in _NUMBER_FIELDS:
            parts.append(_NUMBER_FIELDS[name].pack(value))
        else:
            text = value.encode(errors="replace")[:MAX_TEXT_BYTES]
            parts.append(len(text).to_bytes(2, "little") + text)
    return b"".join(parts)


def decode(type_: int, body: bytes, *, timestamp_ns: int, event_seq: int) -> Event:
    """The event in an entry of the event log."""
    try:
        kind = EventType(type_)
        group, attempt, count = _HEAD.unpack_from(body)
        offset = _HEAD.size
        end = offset + count * _RUN.size
        if end > len(body):
            raise ValueError("cut off")
        runs = tuple(_RUN.iter_unpack(body[offset:end]))
        offset = end
        fields: dict[str, Any] = {}
        for name in _EXTRA.get(kind, ()):
            if name in _NUMBER_FIELDS:
                (fields[name],) = _NUMBER_FIELDS[name].unpack_from(body, offset)
                offset += _NUMBER_FIELDS[name].size
            else:
                size = int.from_bytes(body[offset : offset + 2], "little")
                fields[name] = body[offset + 2 : offset + 2 + size].decode(errors="replace")
                offset += 2 + size
        if kind is EventType.ACKED and len(body) > offset:
            (fields["target_seq"],) = _NUMBER_FIELDS["target_seq"].unpack_from(body, offset)
    except (ValueError, struct.error) as error:
        raise BadEntry(event_seq, f"event {event_seq} cannot be read: {error}") from None
    return Event(kind, timestamp_ns, event_seq, group, attempt, runs=runs, **fields)
