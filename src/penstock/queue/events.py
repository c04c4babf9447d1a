"""Events: what happened to messages, and how the event log stores it.

One entry of the event log is one event. Its body, little-endian:

    group u16 | attempt u16 | runs u16 | runs x (first seq u64, count u32) | fields of the type

Seqs are stored as runs, because most events are about neighbours. `EXTRA_FIELDS` is the only
statement of what each type adds: `encode`, `decode`, the fast path and the Spark columns follow it.
To add an event: a number here (never reused), its fields in `EXTRA_FIELDS`, its row in
docs/states.md and docs/format.md, and its effect in `group_events.py` or `state.py`.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from penstock.codec.layout import (
    EVENT_HEAD_FORMAT,
    EVENT_OF_ONE_BYTES,
    EVENT_OF_ONE_FORMAT,
    EVENT_RUN_FORMAT,
)
from penstock.errors import BadEntry, InvalidInput, NewerVersion

ALL_GROUPS = 0xFFFF
MAIN_GROUP = 0


class EventType(IntEnum):
    """The types of events. The numbers are entry types of the file format."""

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
    PROGRESSED = 38  # a consumer said how far it is; also extends the lease
    # 39 to 55 are left to events of messages.
    RESOLVED = 48  # what became of messages that these come after, if no other event says it
    SCHEDULE_PUT = 56  # a schedule was put on record, or replaced
    SCHEDULE_REMOVED = 57
    SCHEDULE_PAUSED = 58
    SCHEDULE_RESUMED = 59
    SCHEDULE_FIRED = 60  # the message of a tick was published
    SCHEDULE_SKIPPED = 61  # ticks up to this one have no message


class Cause(IntEnum):
    """The reason for a dead letter."""

    NACK = 1
    TIMEOUT = 2
    UNREADABLE = 3  # its payload cannot be decompressed
    DEPENDENCY = 4  # a message that it comes after failed


class Outcome(IntEnum):
    """What became of a message that others come after."""

    DONE = 1
    DEAD = 2
    GONE = 3  # cancelled, expired, discarded, purged, dropped or lost: it will never be done
    WAITING = 4  # redriven
    IGNORED = 5  # all that is left before a message is dead, and it runs all the same


class Event(NamedTuple):
    """One decoded event. A field that its type does not have keeps its default."""

    type: EventType
    timestamp_ns: int = 0
    event_seq: int = 0
    group: int = MAIN_GROUP
    attempt: int = 0
    runs: tuple[tuple[int, int], ...] = ()  # (first seq, count)
    nonce: int = 0
    deadline_ns: int = 0  # LEASED, EXTENDED, PROGRESSED: when the lease ends
    length_ns: int = 0  # the same: how long it was given for
    retry_at_ns: int = 0  # NACKED, TIMED_OUT
    # SOUGHT: first to deliver; PURGED: first to keep; GROUP_CREATED: start; ACKED: OPTIONAL_FIELD
    target_seq: int = 0
    cause: int = 0  # DEAD: a Cause; RESOLVED: an Outcome
    reason: str = ""
    holder: str = ""
    name: str = ""  # of a group or a schedule
    duplicates: int = 0  # DEDUPLICATED: number of messages
    due_ns: int = 0  # SCHEDULE_FIRED, SCHEDULE_SKIPPED: the time of the tick
    missed_ns: int = 0  # SCHEDULE_FIRED: an earlier tick that has no message; 0: there is none
    definition: str = ""  # SCHEDULE_PUT: JSON, with the name of the schedule
    progress_ppm: int = 0  # PROGRESSED: millionths of the work that are done; its reason: a note

    @property
    def seqs(self) -> Iterable[int]:
        """Return the seqs of the messages that the event is about."""
        if len(self.runs) == 1:
            first, count = self.runs[0]
            return range(first, first + count)
        return (seq for first, count in self.runs for seq in range(first, first + count))

    @property
    def upto_seq(self) -> int:
        """Return the seq behind the last message that the event mentions."""
        return max(self.target_seq, *(first + count for first, count in self.runs), 0)

    def recorded(self, timestamp_ns: int, event_seq: int) -> "Event":
        """Return the event with its time and number in the log."""
        return tuple.__new__(Event, (self[0], timestamp_ns, event_seq, *self[3:]))


# -- the layout of a body --------------------------------------------------------------------------

# Number fields are named by their `struct` code; TEXT is a length (u16) and UTF-8, always last.
# LONG_TEXT has a length of u32, and is never cut.
TEXT = "text"
LONG_TEXT = "long text"
FIELD_FORMATS: Mapping[str, str] = {
    "nonce": "Q",
    "deadline_ns": "Q",
    "length_ns": "Q",
    "retry_at_ns": "Q",
    "target_seq": "Q",
    "cause": "B",
    "duplicates": "I",
    "reason": TEXT,
    "holder": TEXT,
    "name": TEXT,
    "due_ns": "Q",
    "missed_ns": "Q",
    "definition": LONG_TEXT,
    "progress_ppm": "I",
}
# What each type adds behind the runs. A type that is not listed adds nothing.
EXTRA_FIELDS: Mapping[EventType, tuple[str, ...]] = {
    EventType.LEASED: ("nonce", "deadline_ns", "length_ns", "holder"),
    EventType.DEAD_LEASED: ("nonce", "deadline_ns", "length_ns", "holder"),
    EventType.NACKED: ("retry_at_ns", "reason"),
    EventType.TIMED_OUT: ("retry_at_ns",),
    EventType.DEAD: ("cause", "reason"),
    EventType.EXTENDED: ("deadline_ns", "length_ns"),
    EventType.PROGRESSED: ("deadline_ns", "length_ns", "progress_ppm", "reason"),
    EventType.SOUGHT: ("target_seq",),
    EventType.PURGED: ("target_seq",),
    EventType.GROUP_CREATED: ("target_seq", "name"),
    EventType.LOST: ("reason",),
    EventType.DISCARDED: ("reason",),  # missing in logs of version 0.1
    EventType.CANCELLED: ("reason",),  # missing in logs of versions before 0.3
    EventType.DEDUPLICATED: ("duplicates",),
    EventType.SCHEDULE_PUT: ("definition",),
    EventType.SCHEDULE_REMOVED: ("name",),
    EventType.SCHEDULE_PAUSED: ("name",),
    EventType.SCHEDULE_RESUMED: ("name",),
    EventType.SCHEDULE_FIRED: ("due_ns", "missed_ns", "name"),
    EventType.SCHEDULE_SKIPPED: ("due_ns", "name"),
    EventType.RESOLVED: ("cause", "reason"),  # begins with the id of a message of another queue
}
# ACKED adds `target_seq` only if messages were published in the same write: the seq behind the
# last of them. If those messages are not in the log, the ack did not happen either.
OPTIONAL_FIELD = {EventType.ACKED: "target_seq"}

_HEAD = struct.Struct("<" + EVENT_HEAD_FORMAT)
_RUN = struct.Struct("<" + EVENT_RUN_FORMAT)
_ONE_RUN = struct.Struct(EVENT_OF_ONE_FORMAT)
_TEXT_LENGTHS = {TEXT: struct.Struct("<H"), LONG_TEXT: struct.Struct("<I")}
_OPTIONAL = struct.Struct("<" + FIELD_FORMATS["target_seq"])


class _Extra(NamedTuple):
    """The fields that one type adds, ready for `struct`."""

    numbers: tuple[str, ...]
    struct: struct.Struct
    texts: tuple[str, ...]


def _extra(names: Sequence[str]) -> _Extra:
    numbers = tuple(name for name in names if FIELD_FORMATS[name] not in _TEXT_LENGTHS)
    texts = tuple(name for name in names if FIELD_FORMATS[name] in _TEXT_LENGTHS)
    assert (*numbers, *texts) == tuple(names), "texts come last"
    codes = "".join(FIELD_FORMATS[name] for name in numbers)
    return _Extra(numbers, struct.Struct("<" + codes), texts)


_KINDS: Mapping[int, EventType] = {int(kind): kind for kind in EventType}
_EXTRA = {kind: _extra(EXTRA_FIELDS.get(kind, ())) for kind in EventType}


def format_of_one(kind: EventType) -> str:
    """Return the `struct` format of a body about one run, with empty texts."""
    extra = _EXTRA[kind]
    lengths = [_TEXT_LENGTHS[FIELD_FORMATS[name]].format[1:] for name in extra.texts]
    return EVENT_OF_ONE_FORMAT + extra.struct.format[1:] + "".join(lengths)


def offsets_in_one(name: str) -> dict[EventType, int]:
    """Return where a field begins in a body about one run, for each type that has the field.

    For a text, this is behind its length. The text then reaches to the end of the body.
    """
    found = {}
    for kind, names in EXTRA_FIELDS.items():
        if name in names:
            before = "".join(FIELD_FORMATS[other] for other in names[: names.index(name)])
            text = _TEXT_LENGTHS.get(FIELD_FORMATS[name])
            length = 0 if text is None else text.size
            found[kind] = EVENT_OF_ONE_BYTES + struct.calcsize("<" + before) + length
    return found


MAX_TEXT_BYTES = 4096  # of a reason or holder; longer ones are cut
MAX_RUNS = 0xFFFF


def as_written(name: str, text: object) -> str:
    """Return a reason or holder as it is stored, so that it is the same after a restart."""
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is text, not {type(text).__name__}")
    return text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")


def in_parts(event: Event) -> list[Event]:
    """Split an event that has more runs than fit into one entry."""
    runs = event.runs
    starts = range(0, len(runs) or 1, MAX_RUNS)
    return [event._replace(runs=runs[start : start + MAX_RUNS]) for start in starts]


def encode(event: Event) -> bytes:
    """Return the body of an event. Its type and time are fields of the entry."""
    kind, _, _, group, attempt, runs, *_ = event
    if len(runs) == 1:
        head = _ONE_RUN.pack(group, attempt, 1, *runs[0])
    else:
        head = _HEAD.pack(group, attempt, len(runs)) + b"".join([_RUN.pack(*run) for run in runs])
    extra = _EXTRA[kind]
    if extra.numbers:
        head += extra.struct.pack(*[getattr(event, name) for name in extra.numbers])
    for name in extra.texts:
        text = getattr(event, name).encode(errors="replace")
        if FIELD_FORMATS[name] is TEXT:
            text = text[:MAX_TEXT_BYTES]
        head += _TEXT_LENGTHS[FIELD_FORMATS[name]].pack(len(text)) + text
    if kind in OPTIONAL_FIELD and event.target_seq:
        head += _OPTIONAL.pack(event.target_seq)
    return head


def names(body: bytes, seq: int) -> bool:
    """Return whether the body of an event names a message. False if it cannot be read."""
    if len(body) < _HEAD.size:
        return False
    count = _HEAD.unpack_from(body)[2]
    runs = body[_HEAD.size : _HEAD.size + count * _RUN.size]
    if len(runs) != count * _RUN.size:
        return False
    return any(first <= seq < first + n for first, n in _RUN.iter_unpack(runs))


def decode(type_: int, body: bytes, *, timestamp_ns: int, event_seq: int) -> Event:
    """Return the event in an entry of the event log. Raise BadEntry if it cannot be read.

    Raise NewerVersion if its type is unknown: its checksum matches, so it is no damage.
    """
    kind = _KINDS.get(type_)
    if kind is None:
        raise NewerVersion(
            event_seq,
            f"event {event_seq} has the unknown type {type_}: written by a newer version; use that "
            f"version or a later one",
        )
    try:
        group, attempt, count = _HEAD.unpack_from(body)
        offset = _HEAD.size + count * _RUN.size
        if offset > len(body):
            raise ValueError("cut off")
        runs = tuple(_RUN.iter_unpack(body[_HEAD.size : offset]))
        extra = _EXTRA[kind]
        values = extra.struct.unpack_from(body, offset)
        fields: dict[str, Any] = dict(zip(extra.numbers, values, strict=True))
        offset += extra.struct.size
        for name in extra.texts:
            start = offset + _TEXT_LENGTHS[FIELD_FORMATS[name]].size
            offset = start + int.from_bytes(body[offset:start], "little")
            fields[name] = body[start:offset].decode(errors="replace")
        if kind in OPTIONAL_FIELD and len(body) > offset:
            (fields[OPTIONAL_FIELD[kind]],) = _OPTIONAL.unpack_from(body, offset)
    except (ValueError, struct.error) as error:
        raise BadEntry(event_seq, f"event {event_seq} cannot be read: {error}") from None
    return Event(kind, timestamp_ns, event_seq, group, attempt, runs=runs, **fields)
