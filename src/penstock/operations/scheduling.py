"""Schedules: messages that a queue publishes by itself, at the times of a cron expression or at an
interval.

A schedule is on record in the queue. Each of its times, a tick, is one message. See
`queue.firing` for how a tick becomes exactly one message.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from penstock.checking import Duration, as_seconds, check_choice, check_seconds, check_whole
from penstock.errors import InvalidInput
from penstock.model import NewMessage, Payload
from penstock.names import check_name
from penstock.operations.answers import (
    Answer,
    decode_record,
    encode_record,
    in_field,
    record,
    rfc3339,
    time_ns,
)
from penstock.operations.operation import Between, Named, Operation, Route, Runs, Verb

MISFIRES = ("skip", "once", "all")
MIN_EVERY_S, MAX_EVERY_S = 1.0, 366 * 86400.0
MAX_CRON_CHARACTERS = 256
MAX_ZONE_CHARACTERS = 64
MAX_GRACE_S = 86400.0
MAX_CATCH_UP = 1000
MAX_TIMES = 100

ScheduleName = Annotated[str, Named("schedule")]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A message that is published again and again.

    Give `cron` (five fields, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`) with the
    time zone in which it is meant, UTC by default; or `every_s`, seconds or a `timedelta` from one
    tick to the next, the first of them after the schedule was put.

    `message` is a `NewMessage`, or a payload. `delay` and `ttl` count from the time when it is
    published. A dedup id or a fixed time of delivery makes no sense here.

    A tick that is published more than `grace_s` late was missed: no broker ran, for example.
    `misfire` says what happens to missed ticks: "skip" drops them, "once" publishes one message
    for all of them, "all" publishes the newest `catch_up_max` of them.

    `paused`: None leaves a schedule of that name as it is; a new one runs.

    >>> Schedule("report", {"kind": "daily"}, cron="30 6 * * mon-fri", time_zone="Europe/Berlin")
    ... # doctest: +ELLIPSIS
    Schedule(name='report', message=NewMessage(payload=b'{"kind":"daily"}', ...
    """

    name: str
    message: NewMessage
    cron: str | None
    every_s: float | None
    time_zone: str | None
    misfire: str
    grace_s: float
    catch_up_max: int
    paused: bool | None

    def __init__(
        self,
        name: str,
        message: NewMessage | Payload,
        *,
        cron: str | None = None,
        every_s: Duration | None = None,
        time_zone: str | None = None,
        misfire: str = "once",
        grace_s: Duration = 60.0,
        catch_up_max: int = 100,
        paused: bool | None = None,
    ) -> None:
        check_name("schedule", name)
        if (cron is None) == (every_s is None):
            raise InvalidInput(f"schedule {name!r}: give cron or every_s, one of them")
        if every_s is not None:
            every_s = check_seconds("every_s", as_seconds(every_s), MIN_EVERY_S, MAX_EVERY_S)
            if time_zone is not None:
                raise InvalidInput(
                    f"schedule {name!r}: time_zone is for cron; an interval is the same everywhere"
                )
        else:
            _check_text("cron", cron, MAX_CRON_CHARACTERS)
            time_zone = "UTC" if time_zone is None else time_zone
            _check_text("time_zone", time_zone, MAX_ZONE_CHARACTERS)
        if not isinstance(message, NewMessage):
            message = NewMessage(payload=message)
        if message.deliver_at is not None or message.dedup_id is not None:
            raise InvalidInput(
                f"schedule {name!r}: its message has no deliver_at and no dedup_id, since it is "
                f"published again and again"
            )
        check_choice("misfire", misfire, MISFIRES)
        if paused is not None and not isinstance(paused, bool):
            raise InvalidInput(f"paused is {paused!r}; it must be true, false or none")
        values = {
            "name": name,
            "message": message,
            "cron": cron,
            "every_s": every_s,
            "time_zone": time_zone,
            "misfire": misfire,
            "grace_s": check_seconds("grace_s", as_seconds(grace_s), 0, MAX_GRACE_S),
            "catch_up_max": check_whole("catch_up_max", catch_up_max, 1, MAX_CATCH_UP),
            "paused": paused,
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    @property
    def timing(self) -> tuple[str | None, float | None, str | None]:
        """What says when it runs."""
        return self.cron, self.every_s, self.time_zone


def _check_text(name: str, text: object, most: int) -> None:
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{name} is {text!r}; it must be text")
    if len(text) > most or not text.isprintable():
        raise InvalidInput(f"{name} is {text[:most]!r}; it has at most {most} printable characters")


class ScheduleState(NamedTuple):
    """A schedule as it is: when it runs, and what it did."""

    name: str
    cron: str  # empty: it has an interval
    every_s: float  # 0: it has a cron expression
    time_zone: str
    misfire: str
    grace_s: float
    catch_up_max: int
    paused: bool
    payload_bytes: int
    next_ns: int  # 0: it is paused, or cannot run
    put_ns: int
    last_due_ns: int  # the last tick that has a message
    last_message_id: str
    fired: int  # messages
    last_missed_ns: int  # the last tick that has no message of its own
    trouble: str  # why it does not run, or why the last tick has no message


class Schedules(NamedTuple):
    """The schedules of a queue, by name."""

    schedules: list[ScheduleState]


class ScheduleDetails(NamedTuple):
    """A schedule with its message and its next times."""

    state: ScheduleState
    message: NewMessage
    next_times_ns: list[int]


# -- as JSON: over HTTP, and in the event that records a schedule ----------------------------------

_MESSAGE_FIELDS = {
    "priority": "priority",
    "delay_s": "delay",
    "ttl_s": "ttl",
    "headers": "headers",
    "key": "key",
    "max_attempts": "max_attempts",
    "content_type": "content_type",
    "compression": "compression",
    "tenant": "tenant",
}


def encode_schedule(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON, without its name."""
    names = ("cron", "every_s", "time_zone", "misfire", "grace_s", "catch_up_max", "paused")
    found = {name: getattr(schedule, name) for name in names}
    found["message"] = encode_message(schedule.message)
    return {name: value for name, value in found.items() if value is not None}


def decode_schedule(name: str, data: Mapping[str, Any]) -> Schedule:
    """Return the schedule of `encode_schedule`. Fields that only a newer version has are left
    out."""
    known = ("cron", "every_s", "time_zone", "misfire", "grace_s", "catch_up_max", "paused")
    options = {field: data[field] for field in known if field in data}
    return Schedule(name, decode_message(data["message"]), **options)


def encode_message(message: NewMessage) -> dict[str, Any]:
    """Return the message of a schedule as JSON, as messages are published over HTTP."""
    payload = message.payload
    data = payload.encode() if isinstance(payload, str) else bytes(payload)  # type: ignore[arg-type]
    found: dict[str, Any] = {"payload_b64": base64.b64encode(data).decode()}
    for field, name in _MESSAGE_FIELDS.items():
        value = getattr(message, name)
        if value is not None:
            found[field] = dict(value) if name == "headers" else value
    return found


def decode_message(data: Mapping[str, Any]) -> NewMessage:
    """Return the message of `encode_message`."""
    options = {name: data[field] for field, name in _MESSAGE_FIELDS.items() if field in data}
    return NewMessage(payload=base64.b64decode(data["payload_b64"]), **options)


def _encode_details(details: ScheduleDetails) -> dict[str, Any]:
    return {
        **encode_record(details.state),
        "message": encode_message(details.message),
        "next_times": [rfc3339(at_ns) for at_ns in details.next_times_ns],
    }


def _decode_details(data: Mapping[str, Any]) -> ScheduleDetails:
    return ScheduleDetails(
        decode_record(ScheduleState, data),
        decode_message(data["message"]),
        [time_ns(text) for text in data["next_times"]],
    )


# -- the operations --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutSchedule(Operation[ScheduleState]):
    """Put a schedule on record: a new one, or in place of the one that has its name.

    The same again changes nothing. A new message keeps the times; new times begin now.
    """

    verb = Verb.MANAGE
    route = Route("PUT", "/schedules/{name}")
    answer = record(ScheduleState)
    writes = True
    creates_queue = True

    schedule: Schedule

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise InvalidInput(
                f"put_schedule takes a Schedule, not {type(self.schedule).__name__}: "
                f"penstock.Schedule(name, payload, cron=…)"
            )


@dataclass(frozen=True, slots=True)
class RemoveSchedule(Operation[bool]):
    """Remove a schedule. Messages that it published stay. Return False if there is none."""

    verb = Verb.MANAGE
    route = Route("DELETE", "/schedules/{name}")
    answer = in_field("removed", bool)
    writes = True

    name: ScheduleName


@dataclass(frozen=True, slots=True)
class PauseSchedule(Operation[ScheduleState]):
    """Pause a schedule. Its ticks are left out until it is resumed; they are not missed."""

    verb = Verb.MANAGE
    route = Route("POST", "/schedules/{name}/pause")
    answer = record(ScheduleState)
    writes = True

    name: ScheduleName


@dataclass(frozen=True, slots=True)
class ResumeSchedule(Operation[ScheduleState]):
    """Resume a schedule that is paused: its next tick is the next one from now."""

    verb = Verb.MANAGE
    route = Route("POST", "/schedules/{name}/resume")
    answer = record(ScheduleState)
    writes = True

    name: ScheduleName


@dataclass(frozen=True, slots=True)
class ListSchedules(Operation[Schedules]):
    """Return the schedules of a queue by name, each with its next time."""

    verb = Verb.READ
    route = Route("GET", "/schedules")
    answer = record(Schedules)
    runs = Runs.THREAD


@dataclass(frozen=True, slots=True)
class GetSchedule(Operation[ScheduleDetails]):
    """Return a schedule with its message and its next `times`."""

    verb = Verb.READ
    route = Route("GET", "/schedules/{name}")
    answer = Answer(ScheduleDetails, _encode_details, _decode_details)
    runs = Runs.THREAD

    name: ScheduleName
    times: Annotated[int, Between(0, MAX_TIMES)] = 10
