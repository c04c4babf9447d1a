"""Routes of schedules whose bodies or answers have a message in them; see `operation_routes`."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.model import NewMessage, TypedPayload
from penstock.operations import GetSchedule, PutSchedule, Schedule
from penstock.operations.scheduling import (
    MAX_CATCH_UP,
    MAX_CRON_CHARACTERS,
    MAX_EVERY_S,
    MAX_GRACE_S,
    MAX_TIMES,
    MAX_ZONE_CHARACTERS,
    MIN_EVERY_S,
)
from penstock.server.call import Answer as HttpAnswer
from penstock.server.call import Call, encode
from penstock.server.replies import Reply
from penstock.server.rest.endpoint import QUEUE, Endpoint, Parameter
from penstock.server.rest.operation_routes import answer_of
from penstock.server.rest.publish import new_message
from penstock.server.rest.structs import NewMessageBody

_SCHEDULE = f"{QUEUE}/schedules/{{schedule}}"


class ScheduleBody(Struct, forbid_unknown_fields=True):
    """A schedule: `cron` with its time zone, or `every_s`, and the message of each tick."""

    message: NewMessageBody
    cron: Annotated[str, Meta(min_length=1, max_length=MAX_CRON_CHARACTERS)] | None = None
    every_s: Annotated[float, Meta(ge=MIN_EVERY_S, le=MAX_EVERY_S)] | None = None
    time_zone: Annotated[str, Meta(min_length=1, max_length=MAX_ZONE_CHARACTERS)] | None = None
    misfire: Literal["skip", "once", "all"] = "once"
    grace_s: Annotated[float, Meta(ge=0, le=MAX_GRACE_S)] = 60.0
    catch_up_max: Annotated[int, Meta(ge=1, le=MAX_CATCH_UP)] = 100
    paused: bool | None = None


class ScheduleMessage(Struct, omit_defaults=True):
    """The message of a schedule."""

    payload_b64: str
    priority: int | UnsetType = UNSET
    delay_s: float | UnsetType = UNSET
    ttl_s: float | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    key: str | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    compression: str | UnsetType = UNSET
    tenant: str | UnsetType = UNSET


class ScheduleDetailsAnswer(answer_of(PutSchedule), kw_only=True):  # type: ignore[misc, call-arg]
    """A schedule with its message and its next times."""

    message: ScheduleMessage
    next_times: list[str]


async def put_schedule(call: Call) -> HttpAnswer:
    """Put a schedule on record, or replace the one of that name."""
    asked = await call.read(ScheduleBody)
    schedule = Schedule(
        call.path("schedule"),
        _message(asked.message),
        cron=asked.cron,
        every_s=asked.every_s,
        time_zone=asked.time_zone,
        misfire=asked.misfire,
        grace_s=asked.grace_s,
        catch_up_max=asked.catch_up_max,
        paused=asked.paused,
    )
    found = await call.broker.run(call.caller, PutSchedule(schedule), call.queue)
    return Reply(encode(PutSchedule.answer.encode(found)))


async def get_schedule(call: Call) -> HttpAnswer:
    """Show a schedule with its message and its next times."""
    times = call.query.whole("times", 0, MAX_TIMES)
    operation = GetSchedule(call.path("schedule"), 10 if times is None else times)
    found = await call.broker.run(call.caller, operation, call.queue)
    return Reply(encode(GetSchedule.answer.encode(found)))


def _message(body: NewMessageBody) -> NewMessage:
    message: Any = new_message(body, "$.message")
    if isinstance(message, TypedPayload):
        return NewMessage(payload=message.payload, content_type=message.content_type)
    return message if isinstance(message, NewMessage) else NewMessage(payload=message)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "PUT",
        _SCHEDULE,
        put_schedule,
        PutSchedule.verb,
        answer_of(PutSchedule),
        body=ScheduleBody,
        also=(404,),
    ),
    Endpoint(
        "GET",
        _SCHEDULE,
        get_schedule,
        GetSchedule.verb,
        ScheduleDetailsAnswer,
        query=(
            Parameter(
                "times",
                "How many of the next times; 10 if left out.",
                Annotated[int, Meta(ge=0, le=MAX_TIMES)],
            ),
        ),
        also=(404,),
    ),
)
