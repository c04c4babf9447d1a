"""What an operator does with a queue as a whole."""

from penstock.broker import Verb, check_name
from penstock.server.rest.answers import Compacted, PausedAnswer, Purged
from penstock.server.rest.endpoint import QUEUE, Answer, Call, Endpoint
from penstock.server.rest.structs import PurgeBody


async def purge(call: Call) -> Answer:
    """Remove all messages that wait."""
    asked = await call.read(PurgeBody, PurgeBody())
    if asked.group is not None:
        check_name("group", asked.group)
    return Purged(await call.broker.purge(call.caller, call.queue, group=asked.group))


async def pause(call: Call) -> Answer:
    """Hand out nothing until the queue is resumed."""
    await call.broker.pause(call.caller, call.queue, True)
    return PausedAnswer(True)


async def resume(call: Call) -> Answer:
    """Hand out messages again."""
    await call.broker.pause(call.caller, call.queue, False)
    return PausedAnswer(False)


async def compact(call: Call) -> Answer:
    """Give back the disk space of what is done with."""
    return Compacted(await call.broker.compact(call.caller, call.queue))


async def sync(call: Call) -> Answer:
    """Answer when everything so far is on disk, whatever the queue's sync policy."""
    await call.broker.sync(call.caller, call.queue)
    return None


ENDPOINTS = (
    Endpoint(
        "POST",
        f"{QUEUE}/purge",
        purge,
        Verb.MANAGE,
        Purged,
        body=PurgeBody,
        body_optional=True,
        also=(404,),
    ),
    Endpoint("POST", f"{QUEUE}/pause", pause, Verb.MANAGE, PausedAnswer, also=(404,)),
    Endpoint("POST", f"{QUEUE}/resume", resume, Verb.MANAGE, PausedAnswer, also=(404,)),
    Endpoint("POST", f"{QUEUE}/compact", compact, Verb.MANAGE, Compacted, also=(404,)),
    Endpoint("POST", f"{QUEUE}/sync", sync, Verb.PUBLISH, status=204, also=(404,)),
)
