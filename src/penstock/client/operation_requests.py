"""Operations as requests to a broker.

Most follow from the operation's route; those whose HTTP form differs have a function here.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from penstock.client import leasing
from penstock.client.answers import (
    Page,
    QueueDetails,
    dead_letter_of,
    details_of,
    first_page,
    message_of,
    stats_of,
)
from penstock.client.publishing import time_text
from penstock.client.request import Reply, Request, get, post
from penstock.codec import parse_id
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME, DeadLetter, HistoryEvent, Message, Stats
from penstock.operations import (
    MAX_ROWS,
    AwaitEnding,
    Cancel,
    CreateGroup,
    Extend,
    GetMessage,
    GetStats,
    MessageOperation,
    Nack,
    Operation,
    Peek,
    PreviewSeek,
    PutSchedule,
    Release,
    Row,
    ScheduleState,
    Seek,
    SeekPreview,
    position_fields,
)
from penstock.operations.answers import decode_record
from penstock.operations.operation import Ids, Moment, field_notes
from penstock.operations.scheduling import encode_schedule

A = TypeVar("A")

# Payloads travel as base64: the same JSON value can have several encodings.
_BYTES = {"payload": "b64"}
_IN_PATH = frozenset(["id", "name"])  # fields that travel in the path of a route


def request_of(path: str, operation: Operation[A]) -> Request[A]:
    """Return the request that runs an operation on the queue at a path."""
    special = _SPECIAL.get(type(operation))
    return _request(path, operation) if special is None else special(path, operation)


def settle(operation: Nack | Extend | Release) -> Callable[[Sequence[str]], Request[list[str]]]:
    if isinstance(operation, Nack):
        nacked = operation
        return lambda receipts: leasing.nack(receipts, nacked)
    if isinstance(operation, Extend):
        extended = operation
        return lambda receipts: leasing.extend(receipts, extended)
    return leasing.release


def _request(
    path: str,
    operation: Operation[A],
    *,
    body: dict[str, Any] | None = None,
    read: Callable[[Reply], A] | None = None,
) -> Request[A]:
    """Return the request of an operation's route. `body` and `read` replace those it implies."""
    kind: Any = type(operation)
    route, answer = operation.route, operation.answer
    if route is None:
        raise InvalidInput(f"a broker does not offer {kind.__name__} over HTTP")
    if isinstance(operation, MessageOperation):
        path = message_path(operation.id)
    in_path: dict[str, str] = {}
    others: dict[str, Any] = {}
    for note in field_notes(kind):
        value = getattr(operation, note.name)
        if note.name in _IN_PATH:
            in_path[note.name] = value
        elif value is not None:
            for check in note.checks:
                if isinstance(check, Moment):
                    value = time_text(note.name, value)
                elif isinstance(check, Ids):
                    for id_ in value:
                        parse_id(id_)
            others[note.name] = value
    url = f"{path}{route.path.format(**in_path)}"
    read = read or (lambda reply: answer.decode(reply.data))
    if route.method == "GET":
        return get(url, read, others)
    body = body if body is not None else others or None
    return post(url, read, body, method=route.method, idempotent=operation.idempotent)


def message_path(id: str) -> str:
    """Return where a message is; the error for a bad id is that of the embedded queue."""
    parse_id(id)
    return f"/api/v1/messages/{id}"


# -- operations whose HTTP form differs ------------------------------------------------------------


def _seek(path: str, operation: Seek) -> Request[int]:
    return _request(path, operation, body={"to": _position(operation), "group": operation.group})


def _preview_seek(path: str, operation: PreviewSeek) -> Request[SeekPreview]:
    return _request(path, operation, body={"to": _position(operation), "group": operation.group})


def _create_group(path: str, operation: CreateGroup) -> Request[bool]:
    body = {"at": _position(operation)}
    return _request(path, operation, body=body, read=lambda reply: reply.status == 201)


def _position(operation: Seek | CreateGroup | PreviewSeek) -> "str | dict[str, Any]":
    given = {name: value for name, value in position_fields(operation).items() if value is not None}
    if "id" in given:
        parse_id(given["id"])
    if "time" in given:
        given["time"] = time_text("time", given["time"])
    return given.get("to") or given


def _cancel(path: str, operation: Cancel) -> Request[bool]:
    # Sent twice, the second finds the message cancelled by the first.
    return _request(path, operation, read=lambda reply: reply.data["cancelled"] or reply.resent)


def _put_schedule(path: str, operation: PutSchedule) -> Request[ScheduleState]:
    schedule = operation.schedule
    return post(
        f"{path}/schedules/{schedule.name}",
        lambda reply: operation.answer.decode(reply.data),
        encode_schedule(schedule),
        method="PUT",
        idempotent=True,
    )


def _get_message(path: str, operation: GetMessage) -> Request[Row]:
    query = {**_BYTES, "group": operation.group}
    return get(message_path(operation.id), lambda reply: _row_of(reply.data), query)


def _peek(path: str, operation: Peek) -> Request[list[Row]]:
    limit = min(operation.n, MAX_ROWS)
    query = {**_BYTES, "order": "delivery", "group": operation.group, "limit": limit}
    return get(f"{path}/messages", _rows_of, query)


def _rows_of(reply: Reply) -> list[Row]:
    return [_row_of(item) for item in reply.data["messages"]]


def _row_of(data: Any) -> Row:
    return Row(message_of(data), data["state"], data["attempts"])


def _await_ending(path: str, operation: AwaitEnding) -> Request[bool]:
    return replace(_request(path, operation), wait_s=operation.wait_s)


def _get_stats(path: str, operation: GetStats) -> Request[Stats]:
    return get(path, lambda reply: stats_of(reply.data["stats"]))


_SPECIAL: dict[type[Operation[Any]], Callable[[str, Any], Request[Any]]] = {
    AwaitEnding: _await_ending,
    Cancel: _cancel,
    CreateGroup: _create_group,
    GetMessage: _get_message,
    GetStats: _get_stats,
    Peek: _peek,
    PreviewSeek: _preview_seek,
    PutSchedule: _put_schedule,
    Seek: _seek,
}


# -- listings --------------------------------------------------------------------------------------


def browse(path: str, state: str | None, group: str) -> Request[Page[Message]]:
    query = {**_BYTES, "state": state, "group": group}
    return first_page(f"{path}/messages", "messages", message_of, query)


def dead(path: str, group: str = MAIN_GROUP_NAME) -> Request[Page[DeadLetter]]:
    return first_page(f"{path}/dead", "messages", dead_letter_of, {**_BYTES, "group": group})


def history(id: str, group: str | None) -> Request[Page[HistoryEvent]]:
    path = f"{message_path(id)}/history"
    return first_page(
        path, "events", lambda item: decode_record(HistoryEvent, item), {"group": group}
    )


def details(path: str) -> Request[QueueDetails]:
    return get(path, lambda reply: details_of(reply.data))
