"""Routes of operations, and of redrive and groups, which need more.

Most follow from an operation: its fields are the parameters or the body, its answer is the answer.
An operation with a `route` needs no more than a line in `_OPERATIONS`.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache
from typing import Annotated, Any, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from penstock.errors import InvalidInput, NoSuchGroup
from penstock.operations import (
    AwaitEnding,
    Cancel,
    Compact,
    CreateGroup,
    DeleteGroup,
    Discard,
    ExplainWait,
    FindMessage,
    GetEndings,
    GetLimits,
    GetRetryInfo,
    GetStats,
    GetStorage,
    ListAwaited,
    ListConsumers,
    ListDeadReasons,
    ListGroups,
    ListKeys,
    ListSchedules,
    MessageOperation,
    OpenGate,
    Operation,
    Pause,
    PauseSchedule,
    PreviewSeek,
    Purge,
    Redrive,
    RemoveSchedule,
    Resolve,
    Resume,
    ResumeSchedule,
    Seek,
    Sync,
    Verb,
)
from penstock.operations.answers import Answer, json_name, record_of_items
from penstock.operations.operation import (
    MAX_NAMED_IDS,
    Between,
    FieldNote,
    Ids,
    Moment,
    Named,
    OneOf,
    field_notes,
)
from penstock.server.call import Answer as HttpAnswer
from penstock.server.call import Call, encode
from penstock.server.replies import Reply
from penstock.server.rest.endpoint import API, QUEUE, Endpoint, Parameter
from penstock.server.rest.query import unix_seconds
from penstock.server.rest.structs import (
    GroupAnswer,
    GroupBody,
    MessageId,
    Name,
    PositionBody,
    RedriveAnswer,
    RedriveCancelled,
    RedriveList,
    Redriven,
    SeekBody,
    SoughtTo,
    Time,
)

MESSAGE = f"{API}/messages/{{id}}"

# Every operation whose HTTP form is just its fields and its answer.
_OPERATIONS: tuple[type[Operation[Any]], ...] = (
    ListGroups,
    DeleteGroup,
    Cancel,
    AwaitEnding,
    OpenGate,
    GetEndings,
    ListAwaited,
    Resolve,
    ExplainWait,
    GetRetryInfo,
    FindMessage,
    Discard,
    Purge,
    Pause,
    Resume,
    Compact,
    Sync,
    GetLimits,
    GetStorage,
    ListConsumers,
    ListDeadReasons,
    ListKeys,
    ListSchedules,
    RemoveSchedule,
    PauseSchedule,
    ResumeSchedule,
)


def endpoint_of(kind: type[Operation[Any]]) -> Endpoint:
    """Return the endpoint of an operation."""
    route, answer = kind.route, kind.answer
    assert route is not None
    # In every path, a group's name is called `group` and a schedule's `schedule`.
    named = "schedule" if route.path.startswith("/schedules") else "group"
    path = f"{MESSAGE if issubclass(kind, MessageOperation) else QUEUE}{route.path}".replace(
        "{name}", f"{{{named}}}"
    )
    others = [note for note in notes_of(kind) if note.name not in ("id", "name")]
    is_query = route.method in ("GET", "DELETE")
    required = [note.name for note in others if _default(kind, note.name) is MISSING]
    body = None if is_query or not others else body_of(kind)

    async def handler(call: Call) -> HttpAnswer:
        values: dict[str, Any] = {}
        if "{id}" in path:
            values["id"] = call.path("id")
        if "{group}" in path:
            values["name"] = call.group
        if "{schedule}" in path:
            values["name"] = call.path("schedule")
        if is_query:
            values |= {n.name: v for n in others if (v := _query_value(call, n)) is not None}
            for name in required:
                if name not in values:
                    raise InvalidInput(f"{name} is missing: give it in the query, ?{name}=…")
        elif body is not None:
            asked = await (call.read(body) if required else call.read(body, body()))
            values |= values_of(asked, others)
        queue = None if issubclass(kind, MessageOperation) else call.queue
        found = answer.encode(await call.broker.run(call.caller, kind(**values), queue))
        return None if found is None else Reply(encode(found))

    handler.__name__ = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    handler.__doc__ = kind.__doc__
    return Endpoint(
        route.method,
        path,
        handler,
        kind.verb,
        answer_of(kind),
        status=route.status,
        body=body,
        body_optional=body is not None and not required,
        query=tuple(_parameter(note, required) for note in others) if is_query else (),
        also=(404,),
    )


def _query_value(call: Call, note: FieldNote) -> Any:
    for check in note.checks:
        if isinstance(check, Between):
            if isinstance(check.low, float):
                return call.query.number(note.name)
            return call.query.whole(note.name, int(check.low), int(check.high))
    return call.query.text(note.name)


def notes_of(kind: Any) -> tuple[FieldNote, ...]:
    """Return the fields of a class of operations."""
    return field_notes(kind)


def body_of(kind: Any, *more: tuple[str, Any, Any]) -> type[Struct]:
    """Return the struct of the body of an operation: its fields, and `more`."""
    fields: list[Any] = [
        (note.name, _body_type(note))
        if _default(kind, note.name) is MISSING
        else (note.name, _body_type(note), _default(kind, note.name))
        for note in field_notes(kind)
    ]
    return defstruct(
        f"{kind.__name__}Body",
        [*fields, *more],
        forbid_unknown_fields=True,
        namespace={"__doc__": _summary(kind)},
    )


def values_of(body: Any, notes: "tuple[FieldNote, ...] | list[FieldNote]") -> dict[str, Any]:
    """Return the arguments of an operation from its body."""
    values = {note.name: getattr(body, note.name) for note in notes}
    for note in notes:
        if values[note.name] is not None and _has(note, Moment):
            values[note.name] = unix_seconds(f"$.{note.name}", values[note.name])
    return values


def answer_of(kind: Any) -> Any:
    """Return the struct of the answer of an operation; None if there is none."""
    answer: Answer[Any] = kind.answer
    if answer.kind is None:
        return None
    if answer.field:
        fields: list[Any] = [(answer.field, answer.kind)]
        return defstruct(f"{kind.__name__}Answer", fields, namespace={"__doc__": _summary(kind)})
    kind_of_answer: Any = answer.kind
    return _struct_of(kind_of_answer, f"{kind_of_answer.__name__}Answer")


@cache  # several operations may have the same answer, and a name is of one struct
def _struct_of(record: Any, name: str) -> type[Struct]:
    """Return the struct of a record: a NamedTuple as JSON."""
    hints = record.__annotations__
    fields = [
        (json_name(field), str | UnsetType, UNSET)
        if field.endswith("_ns")
        else (field, _json_type(hints[field]))
        for field in record._fields
    ]
    return defstruct(name, sorted(fields, key=len), namespace={"__doc__": record.__doc__})


def _json_type(hint: Any) -> Any:
    items = record_of_items(hint)
    if items is not None:
        return list[_struct_of(items, items.__name__)]  # type: ignore[misc]
    return Mapping[str, Any] if hint == Mapping[str, object] else hint


def _body_type(note: FieldNote) -> Any:
    kind: Any = next((one for one in get_args(note.hint) if one is not type(None)), note.hint)
    for check in note.checks:
        match check:
            case Between(low, high):
                kind = Annotated[type(low), Meta(ge=low, le=min(high, (1 << 63) - 1))]
            case OneOf(choices):
                kind = Literal[choices]
            case Named():
                kind = Name
            case Moment():
                kind = Time
            case Ids():
                kind = Annotated[list[MessageId], Meta(max_length=MAX_NAMED_IDS)]
    return kind | None if type(None) in get_args(note.hint) else kind


def _parameter(note: FieldNote, required: list[str]) -> Parameter:
    if note.name == "group":
        return Parameter("group", "A consumer group; main if none is named.", Name)
    return Parameter(note.name, "", _body_type(note), required=note.name in required)


def _has(note: FieldNote, kind: type[Any]) -> bool:
    return any(isinstance(check, kind) for check in note.checks)


def _default(kind: Any, name: str) -> Any:
    return kind.__dataclass_fields__[name].default


def _summary(kind: Any) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]


# -- redrive: at once, or paced by the broker ------------------------------------------------------

_RedriveBody = body_of(Redrive, ("max_rate", Annotated[float, Meta(ge=1e-6, le=1e9)] | None, None))


async def redrive(call: Call) -> HttpAnswer:
    """Make dead letters ready again, attempts reset: those named, those that match, or all."""
    asked: Any = await call.read(_RedriveBody, _RedriveBody())
    operation = Redrive(**values_of(asked, notes_of(Redrive)))
    if asked.max_rate is not None and not asked.dry_run:
        paced = call.broker.redrives.start(call.caller, call.queue, operation, asked.max_rate)
        return Redriven(await paced)
    return Redriven(await call.broker.run(call.caller, operation, call.queue))


async def list_redrives(call: Call) -> HttpAnswer:
    """List the paced redrives (`max_rate`) that run, wait for a retry, or failed."""
    found = await call.broker.redrives.list(call.caller, call.queue)
    return RedriveList(
        [
            RedriveAnswer(one.id, one.group, one.rate_per_s, one.state, one.reason or UNSET)
            for one in found
        ]
    )


async def cancel_redrive(call: Call) -> HttpAnswer:
    """Cancel a paced redrive. Dead letters that are ready again stay so."""
    await call.broker.redrives.cancel(call.caller, call.queue, call.path("id"))
    return RedriveCancelled(True)


# -- groups, and positions as bodies name them -----------------------------------------------------


async def get_group(call: Call) -> HttpAnswer:
    """Show a consumer group and its counts."""
    group = call.group
    stats = await call.broker.run(call.caller, GetStats(), call.queue)
    if group not in stats.groups:
        raise NoSuchGroup(f"queue {call.queue} has no group {group!r}")
    return GroupAnswer(group, stats.groups[group]._asdict())


async def put_group(call: Call) -> HttpAnswer:
    """Create a consumer group. One that exists is not changed."""
    asked = await call.read(GroupBody, GroupBody())
    create = CreateGroup(call.group, **_position(asked.at, "$.at"))
    is_new = await call.broker.run(call.caller, create, call.queue)
    answer = GroupAnswer(create.name)
    return Reply(encode(answer), 201) if is_new else answer


async def seek(call: Call) -> HttpAnswer:
    """Deliver to a group from another position on."""
    asked = await call.read(SeekBody)
    operation = Seek(**_position(asked.to, "$.to"), group=asked.group)
    return SoughtTo(await call.broker.run(call.caller, operation, call.queue))


async def preview_seek(call: Call) -> HttpAnswer:
    """Show what a seek would mean, without doing it."""
    asked = await call.read(SeekBody)
    operation = PreviewSeek(**_position(asked.to, "$.to"), group=asked.group)
    found = await call.broker.run(call.caller, operation, call.queue)
    return Reply(encode(PreviewSeek.answer.encode(found)))


def _position(body: Literal["beginning", "end"] | PositionBody, path: str) -> dict[str, Any]:
    """Return the position that a body names, as arguments of an operation."""
    if not isinstance(body, PositionBody):
        return {"to": body}
    time = None if body.time is None else unix_seconds(f"{path}.time", body.time)
    if sum(one is not None for one in (body.seq, body.id, time)) != 1:
        raise InvalidInput(f"a position is exactly one of seq, id and time - at `{path}`")
    return {"seq": body.seq, "id": body.id, "time": time}


_GROUP = f"{QUEUE}/groups/{{group}}"

ENDPOINTS: tuple[Endpoint, ...] = (
    *(endpoint_of(kind) for kind in _OPERATIONS),
    Endpoint(
        "POST",
        f"{QUEUE}/redrive",
        redrive,
        Redrive.verb,
        Redriven,
        body=_RedriveBody,
        body_optional=True,
        also=(404,),
    ),
    Endpoint("GET", f"{QUEUE}/redrives", list_redrives, Verb.READ, RedriveList, also=(404,)),
    Endpoint(
        "DELETE",
        f"{QUEUE}/redrives/{{id}}",
        cancel_redrive,
        Redrive.verb,
        RedriveCancelled,
        also=(404,),
    ),
    Endpoint("GET", _GROUP, get_group, GetStats.verb, GroupAnswer, also=(404,)),
    Endpoint(
        "PUT",
        _GROUP,
        put_group,
        CreateGroup.verb,
        GroupAnswer,
        status=201,
        body=GroupBody,
        body_optional=True,
        also=(200, 404),
    ),
    Endpoint("POST", f"{QUEUE}/seek", seek, Seek.verb, SoughtTo, body=SeekBody, also=(404,)),
    Endpoint(
        "POST",
        f"{QUEUE}/seek/preview",
        preview_seek,
        PreviewSeek.verb,
        answer_of(PreviewSeek),
        body=SeekBody,
        also=(404,),
    ),
)
