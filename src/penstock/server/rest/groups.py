"""Consumer groups, and where they are."""

from penstock.errors import NoSuchGroup
from penstock.operations import CreateGroup, DeleteGroup, GetStats, ListGroups, Seek, Verb
from penstock.server.rest.answers import GroupAnswer, GroupList, SoughtTo
from penstock.server.rest.endpoint import QUEUE, Answer, Call, Endpoint, Reply
from penstock.server.rest.message_out import encode
from penstock.server.rest.positions import position_of
from penstock.server.rest.queues import group_fields
from penstock.server.rest.structs import GroupBody, SeekBody


async def list_groups(call: Call) -> Answer:
    """List the consumer groups of a queue."""
    return GroupList(await call.broker.run(call.caller, ListGroups(), call.queue))


async def get_group(call: Call) -> Answer:
    """Show a consumer group and its counts."""
    return await _answer(call)


async def put_group(call: Call) -> Answer:
    """Make a consumer group. One that is there is left as it is."""
    asked = await call.read(GroupBody, GroupBody())
    group = call.group
    create = CreateGroup(group, **position_of(asked.at, "$.at"))
    is_new = await call.broker.run(call.caller, create, call.queue)
    return Reply(encode(GroupAnswer(group)), 201) if is_new else GroupAnswer(group)


async def delete_group(call: Call) -> Answer:
    """Delete a consumer group."""
    await call.broker.run(call.caller, DeleteGroup(call.group), call.queue)
    return None


async def seek(call: Call) -> Answer:
    """Let a group go on elsewhere in the queue."""
    asked = await call.read(SeekBody)
    seek = Seek(**position_of(asked.to, "$.to"), group=asked.group)
    return SoughtTo(await call.broker.run(call.caller, seek, call.queue))


async def _answer(call: Call) -> GroupAnswer:
    group = call.group
    stats = await call.broker.run(call.caller, GetStats(), call.queue)
    if group not in stats.groups:
        raise NoSuchGroup(f"queue {call.queue} has no group {group!r}")
    return GroupAnswer(group, group_fields(stats.groups[group]))


_GROUP = f"{QUEUE}/groups/{{group}}"

ENDPOINTS = (
    Endpoint("GET", f"{QUEUE}/groups", list_groups, Verb.READ, GroupList, also=(404,)),
    Endpoint("GET", _GROUP, get_group, Verb.READ, GroupAnswer, also=(404,)),
    Endpoint(
        "PUT",
        _GROUP,
        put_group,
        Verb.CONSUME,
        GroupAnswer,
        status=201,
        body=GroupBody,
        body_optional=True,
        also=(200, 404),
    ),
    Endpoint("DELETE", _GROUP, delete_group, Verb.MANAGE, status=204, also=(404,)),
    Endpoint("POST", f"{QUEUE}/seek", seek, Verb.CONSUME, SoughtTo, body=SeekBody, also=(404,)),
)
