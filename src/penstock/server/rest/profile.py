"""GET /debug/profile: where the server spends its time. Off unless `profiling` is set."""

import asyncio
import sys
import threading
from collections import Counter
from types import FrameType
from typing import Annotated

from msgspec import Meta

from penstock.broker import Verb
from penstock.errors import TooManyRequests
from penstock.server.refusals import NoSuchRoute
from penstock.server.rest.endpoint import Answer, Call, Endpoint, Parameter, Reply

_USUAL_S, _MOST_S = 5, 60
_EVERY_S = 0.01
_one_at_a_time = threading.Lock()


async def profile(call: Call) -> Answer:
    """Look at all threads for some seconds; answers collapsed stacks, as flame graphs take them."""
    call.broker.admit(call.caller, Verb.MANAGE, None)
    if not call.service.settings.profiling:
        raise NoSuchRoute("profiling is off: set profiling = true in [server] to use this")
    seconds = call.query.whole("seconds", 1, _MOST_S) or _USUAL_S
    if not _one_at_a_time.acquire(blocking=False):
        raise TooManyRequests("a profile is being taken already", float(seconds))
    try:
        stacks = await asyncio.to_thread(_sample, seconds)
    finally:
        _one_at_a_time.release()
    lines = [f"{stack} {count}\n" for stack, count in stacks.most_common()]
    return Reply("".join(lines).encode(), content_type="text/plain; charset=utf-8")


def _sample(seconds: int) -> "Counter[str]":
    """How often each stack was seen."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    stacks: Counter[str] = Counter()
    never = threading.Event()
    for _ in range(round(seconds / _EVERY_S)):
        never.wait(_EVERY_S)
        for ident, frame in sys._current_frames().items():
            if ident != own:
                stacks[f"{names.get(ident, 'thread')};{_collapsed(frame)}"] += 1
    return stacks


def _collapsed(frame: FrameType | None) -> str:
    calls = []
    while frame is not None:
        code = frame.f_code
        calls.append(f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(calls))


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
