"""What orchestrators and Prometheus ask."""

from msgspec import UNSET, Struct, UnsetType

from penstock.broker import Verb
from penstock.server.rest.endpoint import Answer, Call, Endpoint, Reply
from penstock.server.rest.message_out import encode

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Live(Struct):
    """The process is alive and answers."""

    status: str


class Ready(Struct, omit_defaults=True):
    """Whether calls are taken; while it starts, how many queues are recovered so far."""

    status: str  # "ready", "starting", "stopping" or "trouble"
    queues: int = 0
    recovered: int = 0
    reason: str | UnsetType = UNSET


async def livez(call: Call) -> Answer:
    """Is the process alive?"""
    return Live("live")


async def readyz(call: Call) -> Answer:
    """Are calls taken? 503 while starting, stopping, or when a queue takes no writes."""
    broker = call.broker
    recovered, queues = broker.progress
    trouble = broker.trouble
    if call.service.is_stopping:
        answer = Ready("stopping")
    elif not broker.is_open:
        answer = Ready("starting", queues, recovered)
    elif trouble is not None:
        # Whoever needs no key to ask gets no names of queues where others need one.
        reason = UNSET if call.service.keys.required else trouble
        answer = Ready("trouble", queues, recovered, reason)
    else:
        return Ready("ready", queues, recovered)
    return Reply(encode(answer), 503, headers=[("retry-after", "1")])


async def metrics(call: Call) -> Answer:
    """Everything that is counted, for Prometheus."""
    call.broker.admit(call.caller, Verb.READ, None)
    return Reply(await call.broker.metrics_page(), content_type=_PROMETHEUS)


ENDPOINTS = (
    Endpoint("GET", "/livez", livez, None, Live),
    Endpoint("GET", "/readyz", readyz, None, Ready, also=(503,)),
    Endpoint("GET", "/metrics", metrics, Verb.READ, str),
)
