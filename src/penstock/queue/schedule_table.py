"""The schedules of a queue as its logs tell them. Pure: no clock, and no cron expression is read.

A schedule changes by its events. `SCHEDULE_FIRED` is written twice: in the message of the tick, so
that the message and the new position of the schedule are one write, and in the event log. Applied
again, it changes nothing: a position only moves forward.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.errors import BadEntry, InvalidInput
from penstock.operations.scheduling import Schedule, decode_schedule, encode_schedule
from penstock.queue.events import Event, EventType

SCHEDULE_EVENTS = frozenset(
    [
        EventType.SCHEDULE_PUT,
        EventType.SCHEDULE_REMOVED,
        EventType.SCHEDULE_PAUSED,
        EventType.SCHEDULE_RESUMED,
        EventType.SCHEDULE_FIRED,
        EventType.SCHEDULE_SKIPPED,
    ]
)
_SAVED = (
    "put_ns",
    "anchor_ns",
    "position_ns",
    "is_paused",
    "last_due_ns",
    "last_seq",
    "fired",
    "last_missed_ns",
)


def as_definition(schedule: Schedule) -> str:
    """Return a schedule as its event stores it. The same schedule always gives the same text."""
    fields = {"name": schedule.name, **encode_schedule(schedule)}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def schedule_in(definition: str) -> Schedule:
    """Return the schedule of a definition. Raise BadEntry if it cannot be read."""
    try:
        fields = json.loads(definition)
        return decode_schedule(fields["name"], fields)
    except (InvalidInput, LookupError, TypeError, ValueError) as error:
        raise BadEntry(0, f"a schedule cannot be read: {error}") from None


class ScheduleRecord:
    """One schedule, and how far it got."""

    __slots__ = ("definition", "schedule", *_SAVED)

    def __init__(self, schedule: Schedule, definition: str) -> None:
        self.schedule = schedule
        self.definition = definition
        self.put_ns = 0
        self.anchor_ns = 0  # intervals count from here
        self.position_ns = 0  # ticks up to here are dealt with
        self.is_paused = False
        self.last_due_ns = 0  # the last tick that has a message
        self.last_seq = 0  # of that message
        self.fired = 0
        self.last_missed_ns = 0  # the last tick without a message of its own

    def restart(self, at_ns: int) -> None:
        """Let the next tick be the first one after a time."""
        self.position_ns = max(self.position_ns, at_ns)


class ScheduleTable:
    """All schedules of a queue."""

    def __init__(self) -> None:
        self._records: dict[str, ScheduleRecord] = {}
        self._changed: set[str] = set()
        self.size_bytes = 0  # of all definitions

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ScheduleRecord]:
        return iter(self._records.values())

    def get(self, name: str) -> ScheduleRecord | None:
        return self._records.get(name)

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def take_changed(self) -> list[str]:
        """Return the names of schedules that changed since the last call, but for their ticks."""
        names = list(self._changed)
        self._changed.clear()
        return names

    def apply(self, event: Event) -> None:
        """Change a schedule by an event."""
        if event.type is EventType.SCHEDULE_PUT:
            self._put(event)
            return
        record = self._records.get(event.name)
        if record is None:
            return
        match event.type:
            case EventType.SCHEDULE_FIRED:
                self._fired(record, event)
            case EventType.SCHEDULE_SKIPPED:
                if event.due_ns > record.position_ns:
                    record.position_ns = record.last_missed_ns = event.due_ns
            case EventType.SCHEDULE_REMOVED:
                del self._records[event.name]
                self.size_bytes -= len(record.definition)
                self._changed.add(event.name)
            case EventType.SCHEDULE_PAUSED:
                record.is_paused = True
                self._changed.add(event.name)
            case EventType.SCHEDULE_RESUMED:
                if record.is_paused:
                    record.is_paused = False
                    record.restart(event.timestamp_ns)
                    self._changed.add(event.name)

    def _put(self, event: Event) -> None:
        try:
            schedule = schedule_in(event.definition)
        except BadEntry:
            return  # a newer version wrote it
        before = self._records.get(schedule.name)
        record = ScheduleRecord(schedule, event.definition)
        if before is not None:
            for name in _SAVED:
                setattr(record, name, getattr(before, name))
            self.size_bytes -= len(before.definition)
        if before is None or before.schedule.timing != schedule.timing:
            record.anchor_ns = event.timestamp_ns
            record.restart(event.timestamp_ns)
        if schedule.paused is not None:
            if record.is_paused and not schedule.paused:
                record.restart(event.timestamp_ns)
            record.is_paused = schedule.paused
        record.put_ns = event.timestamp_ns
        self._records[schedule.name] = record
        self.size_bytes += len(record.definition)
        self._changed.add(schedule.name)

    @staticmethod
    def _fired(record: ScheduleRecord, event: Event) -> None:
        if event.due_ns <= record.position_ns:
            return
        record.position_ns = record.last_due_ns = event.due_ns
        record.last_seq = event.runs[0][0] if event.runs else 0
        record.fired += 1
        record.last_missed_ns = max(record.last_missed_ns, event.missed_ns)

    # -- snapshots ---------------------------------------------------------------------------------

    def dump(self) -> list[list[Any]]:
        """Return all schedules, in a fixed order, for a snapshot."""
        return [
            [record.definition, *(getattr(record, field) for field in _SAVED)]
            for _, record in sorted(self._records.items())
        ]

    def load(self, rows: Iterable[list[Any]]) -> None:
        """Fill the table of a new state."""
        for definition, *values in rows:
            record = ScheduleRecord(schedule_in(definition), definition)
            for field, value in zip(_SAVED, values, strict=True):
                setattr(record, field, value)
            self._records[record.schedule.name] = record
            self.size_bytes += len(definition)
        self._changed.update(self._records)
