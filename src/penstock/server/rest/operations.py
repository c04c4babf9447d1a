"""What an operator does with a queue as a whole."""

from penstock.operations import Compact, Pause, Purge, Resume, Sync, Verb
from penstock.server.rest.answers import Compacted, PausedAnswer, Purged
from penstock.server.rest.endpoint import QUEUE, Answer, Call, Endpoint
from penstock.server.rest.structs import PurgeBody


async def purge(call: Call) -> Answer:
    """Remove all messages that wait."""
    asked = await call.read(PurgeBody, PurgeBody())
    purge = Purge(group=asked.group)
    return Purged(await call.broker.run(call.caller, purge, call.queue))


async def pause(call: Call) -> Answer:
    """Hand out nothing until the queue is resumed."""
    await call.broker.run(call.caller, Pause(), call.queue)
    return PausedAnswer(True)


async def resume(call: Call) -> Answer:
    """Hand out messages again."""
    await call.broker.run(call.caller, Resume(), call.queue)
    return PausedAnswer(False)


async def compact(call: Call) -> Answer:
    """Give back the disk space of what is done with."""
    return Compacted(await call.broker.run(call.caller, Compact(), call.queue))


async def sync(call: Call) -> Answer:
    """Answer when everything so far is on disk, whatever the queue's sync policy."""
    await call.broker.run(call.caller, Sync(), call.queue)
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
