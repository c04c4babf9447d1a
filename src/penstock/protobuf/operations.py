"""Operations as calls of `penstock.v1.QueueService`, both ways.

An operation is the method of its name. The fields of its request have the names of its own; a time
has `_ns` added. The fields of the response are those of its answer. So a new operation is a line in
`OPERATIONS` and its messages in the `.proto` file; a test compares the two.
"""

from dataclasses import fields
from typing import Any, TypeVar, get_args

from penstock.checking import unix_ns
from penstock.errors import InvalidInput
from penstock.model import NS, HistoryEvent
from penstock.operations import (
    AwaitEnding,
    Browse,
    Cancel,
    Compact,
    CreateGroup,
    DeleteGroup,
    Discard,
    Ending,
    ExplainWait,
    FindMessage,
    GetEndings,
    GetLimits,
    GetMessage,
    GetRetryInfo,
    GetSchedule,
    GetStats,
    GetStorage,
    ListAwaited,
    ListConsumers,
    ListDead,
    ListDeadReasons,
    ListGroups,
    ListHistory,
    ListKeys,
    ListSchedules,
    MessageOperation,
    OpenGate,
    Operation,
    Pause,
    PauseSchedule,
    Peek,
    PreviewSeek,
    Purge,
    PutSchedule,
    Redrive,
    RemoveSchedule,
    Resolve,
    Resume,
    ResumeSchedule,
    Row,
    Schedule,
    Seek,
    Sync,
)
from penstock.operations.operation import FieldNote, Ids, Moment, field_notes
from penstock.protobuf.descriptors import METHODS, Method, Proto
from penstock.protobuf.messages import new_message_of, set_new_message
from penstock.protobuf.records import fill, read_field, record_of, set_field

A = TypeVar("A")

OPERATIONS: dict[str, type[Operation[Any]]] = {
    kind.__name__: kind
    for kind in (
        AwaitEnding,
        Browse,
        Cancel,
        Compact,
        CreateGroup,
        DeleteGroup,
        Discard,
        ExplainWait,
        FindMessage,
        GetEndings,
        GetLimits,
        GetMessage,
        GetRetryInfo,
        GetSchedule,
        GetStats,
        GetStorage,
        ListAwaited,
        ListConsumers,
        ListDead,
        ListDeadReasons,
        ListGroups,
        ListHistory,
        ListKeys,
        ListSchedules,
        OpenGate,
        Pause,
        PauseSchedule,
        Peek,
        PreviewSeek,
        Purge,
        PutSchedule,
        Redrive,
        RemoveSchedule,
        Resolve,
        Resume,
        ResumeSchedule,
        Seek,
        Sync,
    )
}
# Answers that are lists: the field of the response, and what it has a list of.
_LISTS: dict[type[Operation[Any]], tuple[str, Any]] = {
    Peek: ("rows", Row),
    ListHistory: ("events", HistoryEvent),
    GetEndings: ("endings", Ending),
    ListAwaited: ("endings", Ending),
}


def field_of(note: FieldNote) -> str:
    """Return the name of an operation's field in its request."""
    return f"{note.name}_ns" if is_a(note, Moment) else note.name


def _may_be_left_out(note: FieldNote) -> bool:
    return type(None) in get_args(note.hint)


def is_a(note: FieldNote, check: type[Any]) -> bool:
    return any(isinstance(one, check) for one in note.checks)


# -- requests --------------------------------------------------------------------------------------


def operation_of(kind: type[Operation[A]], request: Proto) -> Operation[A]:
    """Return the operation that a request asks for. Raise InvalidInput if a value is not valid."""
    values: dict[str, Any] = {}
    for note in field_notes(kind):  # type: ignore[arg-type]
        name = field_of(note)
        if note.hint is Schedule:
            values[note.name] = _schedule_of(getattr(request, name))
        elif is_a(note, Ids):
            found = list(getattr(request, name))
            if found or not _may_be_left_out(note):
                values[note.name] = found
        elif request.DESCRIPTOR.fields_by_name[name].has_presence:
            if request.HasField(name):
                value = getattr(request, name)
                values[note.name] = value / NS if is_a(note, Moment) else value
        else:
            values[note.name] = getattr(request, name)
    return kind(**values)


def request_of(operation: Operation[Any]) -> tuple[Method, Proto]:
    """Return the method that runs an operation, and its request without the queue's name."""
    kind = type(operation)
    method = METHODS.get(kind.__name__)
    if method is None or kind.__name__ not in OPERATIONS:
        raise InvalidInput(f"a broker does not offer {kind.__name__} over gRPC")
    request = method.request()
    for note in field_notes(kind):  # type: ignore[arg-type]
        value = getattr(operation, note.name)
        if value is None:
            continue
        if is_a(note, Moment):
            value = unix_ns(value)
        if isinstance(value, Schedule):
            _set_schedule(getattr(request, note.name), value)
            continue
        try:
            set_field(request, field_of(note), value)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{note.name} cannot be sent: {error}") from None
    return method, request


_SCHEDULE_FIELDS = tuple(field.name for field in fields(Schedule) if field.name != "message")


def _schedule_of(found: Proto) -> Schedule:
    values = {
        name: getattr(found, name)
        for name in _SCHEDULE_FIELDS
        if name != "name" and found.HasField(name)
    }
    return Schedule(found.name, new_message_of(found.message), **values)


def _set_schedule(out: Proto, schedule: Schedule) -> None:
    out.SetInParent()
    for name in _SCHEDULE_FIELDS:
        value = getattr(schedule, name)
        if value is not None:
            setattr(out, name, value)
    set_new_message(out.message, schedule.message)


def is_of_message(kind: type[Operation[Any]]) -> bool:
    """Return whether an operation finds its queue by the id of a message."""
    return issubclass(kind, MessageOperation)


# -- answers ---------------------------------------------------------------------------------------


def fill_answer(kind: type[Operation[A]], response: Proto, value: A) -> None:
    """Set the fields of a response to an operation's answer."""
    answer = kind.answer
    if kind in _LISTS:
        set_field(response, _LISTS[kind][0], value)
    elif answer.field:
        set_field(response, answer.field, answer.encode(value)[answer.field])
    elif answer.kind is not None:
        fill(response, value)


def answer_of(operation: Operation[A], response: Proto) -> A:
    """Return the answer of an operation."""
    kind, answer = type(operation), operation.answer
    found: Any = None
    if kind in _LISTS:
        name, items = _LISTS[kind]
        found = [record_of(items, one) for one in getattr(response, name)]
    elif answer.field:
        value = read_field(response, answer.field, answer.kind)
        found = answer.decode({answer.field: value})
    elif answer.kind is not None:
        found = record_of(answer.kind, response)
    return found  # type: ignore[no-any-return]
