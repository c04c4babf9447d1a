"""Liveness, readiness, Prometheus metrics, and a profiler.

GET /debug/profile shows where the event loop spends its time; it is off unless `profiling` is set.
"""

import asyncio
import cProfile
import io
import pstats
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.broker import Verb
from penstock.errors import TooManyRequests
from penstock.server.call import Answer, Call, encode
from penstock.server.problems import NoSuchRoute
from penstock.server.replies import Reply
from penstock.server.rest.endpoint import Endpoint, Parameter

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Live(Struct):
    """The process is alive and answers."""

    status: str


class Ready(Struct, omit_defaults=True):
    """Whether calls are accepted; during the start, the number of queues recovered so far."""

    status: str  # "ready", "starting", "stopping" or "trouble"
    queues: int = 0
    recovered: int = 0
    reason: str | UnsetType = UNSET


async def livez(call: Call) -> Answer:
    """Check that the process is alive."""
    return Live("live")


async def readyz(call: Call) -> Answer:
    """Check that calls are accepted. 503 during start and stop, or if a queue refuses writes."""
    broker = call.broker
    recovered, queues = broker.progress
    trouble = broker.trouble
    if call.service.is_stopping:
        answer = Ready("stopping")
    elif not broker.is_open:
        answer = Ready("starting", queues, recovered)
    elif trouble is not None:
        # This call needs no key, so it shows no names of queues if other calls need one.
        reason = UNSET if call.service.keys.required else trouble
        answer = Ready("trouble", queues, recovered, reason)
    else:
        return Ready("ready", queues, recovered)
    return Reply(encode(answer), 503, headers=[("retry-after", "1")])


async def metrics(call: Call) -> Answer:
    """Return all metrics, for Prometheus."""
    call.broker.admit(call.caller, Verb.READ, None)
    return Reply(await call.broker.metrics_page(), content_type=_PROMETHEUS)


_USUAL_S, _MOST_S = 5, 60
_LINES = 100
_one_at_a_time = asyncio.Lock()


async def profile(call: Call) -> Answer:
    """Profile the event loop for some seconds; it runs at about half its speed."""
    call.broker.admit(call.caller, Verb.MANAGE, None)
    if not call.service.settings.profiling:
        raise NoSuchRoute("profiling is off: set profiling = true in [server] to use this")
    seconds = call.query.whole("seconds", 1, _MOST_S) or _USUAL_S
    if _one_at_a_time.locked():
        raise TooManyRequests("a profile is being taken already", float(seconds))
    async with _one_at_a_time:
        profiler = cProfile.Profile()
        profiler.enable()
        try:
            await asyncio.sleep(seconds)
        finally:
            profiler.disable()
    return Reply(_table(profiler), content_type="text/plain; charset=utf-8")


def _table(profiler: cProfile.Profile) -> bytes:
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(_LINES)
    return text.getvalue().encode()


ENDPOINTS = (
    Endpoint("GET", "/livez", livez, None, Live),
    Endpoint("GET", "/readyz", readyz, None, Ready, also=(503,)),
    Endpoint("GET", "/metrics", metrics, Verb.READ, str),
    Endpoint(
        "GET",
        "/debug/profile",
        profile,
        Verb.MANAGE,
        str,
        query=(Parameter("seconds", "For how long.", Annotated[int, Meta(ge=1, le=_MOST_S)]),),
        also=(404,),
    ),
)
