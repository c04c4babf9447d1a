"""GET /debug/profile: where the event loop spends its time. Off unless `profiling` is set."""

import asyncio
import cProfile
import io
import pstats
from typing import Annotated

from msgspec import Meta

from penstock.broker import Verb
from penstock.errors import TooManyRequests
from penstock.server.refusals import NoSuchRoute
from penstock.server.rest.endpoint import Answer, Call, Endpoint, Parameter, Reply

_USUAL_S, _MOST_S = 5, 60
_LINES = 100
_one_at_a_time = asyncio.Lock()


async def profile(call: Call) -> Answer:
    """Watch every call of the event loop for some seconds; it is about half as fast meanwhile."""
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
