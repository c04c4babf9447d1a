"""Consumer groups and their positions, as bodies name them."""

from typing import Any, Literal

from penstock.errors import InvalidInput, NoSuchGroup
from penstock.operations import CreateGroup, GetStats, Seek
from penstock.server.rest.answers import GroupAnswer, SoughtTo
from penstock.server.rest.endpoint import QUEUE, Answer, Call, Endpoint, Reply
from penstock.server.rest.message_out import encode
from penstock.server.rest.structs import GroupBody, PositionBody, SeekBody
from penstock.server.times import unix_seconds


async def get_group(call: Call) -> Answer:
    """Show a consumer group and its counts."""
    group = call.group
    stats = await call.broker.run(call.caller, GetStats(), call.queue)
    if group not in stats.groups:
        raise NoSuchGroup(f"queue {call.queue} has no group {group!r}")
    return GroupAnswer(group, stats.groups[group]._asdict())


async def put_group(call: Call) -> Answer:
    """Create a consumer group. One that exists is left as it is."""
    asked = await call.read(GroupBody, GroupBody())
    create = CreateGroup(call.group, **_position(asked.at, "$.at"))
    is_new = await call.broker.run(call.caller, create, call.queue)
    answer = GroupAnswer(create.name)
    return Reply(encode(answer), 201) if is_new else answer


async def seek(call: Call) -> Answer:
    """Deliver to a group from another position on."""
    asked = await call.read(SeekBody)
    operation = Seek(**_position(asked.to, "$.to"), group=asked.group)
    return SoughtTo(await call.broker.run(call.caller, operation, call.queue))


def _position(body: Literal["beginning", "end"] | PositionBody, path: str) -> dict[str, Any]:
    """Return the position that a body names, as arguments of an operation."""
    if not isinstance(body, PositionBody):
        return {"to": body}
    time = None if body.time is None else unix_seconds(f"{path}.time", body.time)
    if sum(one is not None for one in (body.seq, body.id, time)) != 1:
        raise InvalidInput(f"a position is exactly one of seq, id and time - at `{path}`")
    return {"seq": body.seq, "id": body.id, "time": time}


_GROUP = f"{QUEUE}/groups/{{group}}"

ENDPOINTS = (
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
)
