"""Scheduling: put, pause, resume, remove and show the schedules of a queue."""

from penstock import codec
from penstock.errors import EntryGone, InvalidInput, NoSuchSchedule, TooLarge
from penstock.ledger import read_entry
from penstock.operations import (
    GetSchedule,
    ListSchedules,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    ScheduleDetails,
    Schedules,
    ScheduleState,
)
from penstock.queue.behaviours import Behaviours
from penstock.queue.core import QueueCore
from penstock.queue.drafting import check
from penstock.queue.events import ALL_GROUPS, Event, EventType
from penstock.queue.firing import with_headers
from penstock.queue.schedule_table import ScheduleRecord, as_definition
from penstock.queue.schedule_times import next_times, times_of

MAX_SCHEDULES = 5000
MAX_SCHEDULE_BYTES = 256 << 10  # of one definition: the payload as base64, and the rest
MAX_SCHEDULES_BYTES = 16 << 20  # of all definitions: each snapshot has them


def put_schedule(queue: Behaviours, operation: PutSchedule) -> ScheduleState:
    core, schedule = queue.core, operation.schedule
    check(with_headers(schedule, 0), core.settings, core.clock.now_ns())
    times_of(schedule, 0)  # can be read
    definition = as_definition(schedule)
    if len(definition) > MAX_SCHEDULE_BYTES:
        raise TooLarge(
            f"schedule {schedule.name!r} has {len(definition)} bytes; the maximum is "
            f"{MAX_SCHEDULE_BYTES}, with the payload as base64"
        )
    with core.lock, core.change:
        core.tick()
        before = core.state.schedules.get(schedule.name)
        if before is None or not _is_same(before, definition, schedule.paused):
            _check_room(core, before, len(definition))
            put = Event(EventType.SCHEDULE_PUT, group=ALL_GROUPS, definition=definition)
            core.record([put])
            core.schedules_changed()
        return _state_of(core, _record(core, schedule.name))


def remove_schedule(queue: Behaviours, operation: RemoveSchedule) -> bool:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        if core.state.schedules.get(operation.name) is None:
            return False
        core.record([_event(EventType.SCHEDULE_REMOVED, operation.name)])
        return True


def pause_schedule(queue: Behaviours, operation: PauseSchedule | ResumeSchedule) -> ScheduleState:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        record = _record(core, operation.name)
        pauses = isinstance(operation, PauseSchedule)
        if record.is_paused is not pauses:
            kind = EventType.SCHEDULE_PAUSED if pauses else EventType.SCHEDULE_RESUMED
            core.record([_event(kind, operation.name)])
            core.schedules_changed()
        return _state_of(core, record)


def list_schedules(queue: Behaviours, operation: ListSchedules) -> Schedules:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        found = [_state_of(core, record) for record in core.state.schedules]
    return Schedules(sorted(found))


def get_schedule(queue: Behaviours, operation: GetSchedule) -> ScheduleDetails:
    core = queue.core
    with core.lock, core.change:
        now_ns = core.tick()
        record = _record(core, operation.name)
        state, schedule, anchor_ns = _state_of(core, record), record.schedule, record.anchor_ns
        after_ns = max(record.position_ns, now_ns)
    found: list[int] = []
    if state.next_ns:  # it runs
        found = next_times(times_of(schedule, anchor_ns), after_ns, operation.times)
    return ScheduleDetails(state, schedule.message, found)


def _record(core: QueueCore, name: str) -> ScheduleRecord:
    record = core.state.schedules.get(name)
    if record is None:
        raise NoSuchSchedule(f"there is no schedule {name!r}; put it first")
    return record


def _is_same(before: ScheduleRecord, definition: str, paused: bool | None) -> bool:
    """Return whether a definition is on record already, and it runs or is paused as it should."""
    return before.definition == definition and paused in (None, before.is_paused)


def _check_room(core: QueueCore, before: ScheduleRecord | None, size_bytes: int) -> None:
    table = core.state.schedules
    if before is None and len(table) >= MAX_SCHEDULES:
        raise InvalidInput(
            f"the queue has {MAX_SCHEDULES} schedules, which is the maximum: remove some"
        )
    freed_bytes = 0 if before is None else len(before.definition)
    if table.size_bytes + size_bytes - freed_bytes > MAX_SCHEDULES_BYTES:
        raise TooLarge(
            f"the schedules of the queue have {table.size_bytes} bytes; with this one they would "
            f"have more than {MAX_SCHEDULES_BYTES}: remove some, or make their payloads smaller"
        )


def _event(kind: EventType, name: str) -> Event:
    return Event(kind, group=ALL_GROUPS, name=name)


def _state_of(core: QueueCore, record: ScheduleRecord) -> ScheduleState:
    """Return a schedule as callers see it. Caller holds the lock."""
    schedule = record.schedule
    return ScheduleState(
        name=schedule.name,
        cron=schedule.cron or "",
        every_s=schedule.every_s or 0.0,
        time_zone=schedule.time_zone or "",
        misfire=schedule.misfire,
        grace_s=schedule.grace_s,
        catch_up_max=schedule.catch_up_max,
        paused=record.is_paused,
        payload_bytes=len(schedule.message.payload),
        next_ns=core.firing.next_ns(schedule.name),
        put_ns=record.put_ns,
        last_due_ns=record.last_due_ns,
        last_message_id=_message_id(core, record.last_seq),
        fired=record.fired,
        last_missed_ns=record.last_missed_ns,
        trouble=core.firing.trouble_of(schedule.name),
    )


def _message_id(core: QueueCore, seq: int) -> str:
    """Return the id of a message; empty if there is none, or if it was removed."""
    try:
        entry = read_entry(core.ledger.messages, seq) if seq else None
    except EntryGone:
        entry = None
    return "" if entry is None else codec.make_id(entry.timestamp_ns, core.identity, seq)
