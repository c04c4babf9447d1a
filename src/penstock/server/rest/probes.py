"""Liveness, readiness, Prometheus metrics, and a profiler.

GET /debug/profile shows where the event loop spends its time; it is off unless `profiling` is set.
"""

import asyncio
import cProfile
import io
import pstats
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.broker import Verb
from penstock.broker.store import DatabaseState
from penstock.errors import PenstockError, TooManyRequests
from penstock.server.call import Answer, Call, encode
from penstock.server.problems import NoSuchRoute
from penstock.server.replies import Reply
from penstock.server.rest.endpoint import Endpoint, Parameter

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Live(Struct):
    """The process is alive and answers."""

    status: Literal["live"]


class Standby(Struct):
    """A standby of the database. Its states are empty if the database's user may not see them."""

    name: str
    state: str
    sync_state: str
    lag_s: float
    lag_bytes: int


class Database(Struct):
    """The database behind the store."""

    name: str
    primary: bool
    needs_standby: bool
    standbys: list[Standby]
    commits_waiting: int
    outbox_waiting: int
    outbox_refused: int
    oldest_snapshot_s: float


class Ready(Struct, omit_defaults=True):
    """Whether calls are accepted; during the start, the number of queues recovered so far."""

    status: Literal["ready", "starting", "stopping", "trouble"]
    queues: int = 0
    recovered: int = 0
    reason: str | UnsetType = UNSET
    warning: str | UnsetType = UNSET
    database: Database | UnsetType = UNSET


async def livez(call: Call) -> Answer:
    """Check that the process is alive."""
    return Live("live")


async def readyz(call: Call) -> Answer:
    """Check that calls are accepted.

    503 during start and stop, if a queue refuses writes, or if the database takes none. Reasons and
    the state of the database are shown without a key only if no call needs one. `warning`: calls
    are accepted, but the keys cannot be read again.
    """
    broker = call.broker
    recovered, queues = broker.progress
    if call.service.is_stopping:
        return _not_ready(Ready("stopping"))
    if not broker.is_open:
        return _not_ready(Ready("starting", queues, recovered))
    state, trouble = await broker.database_state(), broker.trouble
    if state is not None and state.problem is not None:
        trouble = f"PostgreSQL ({state.name}): {state.problem}"
    answer = Ready("ready" if trouble is None else "trouble", queues, recovered)
    keys = call.service.keys
    await keys.refresh_if_old()
    if keys.unreadable is not None:
        answer.warning = "the keys cannot be read; those known before stay valid: see the log"
    if await _may_see_details(call):
        answer.reason = UNSET if trouble is None else trouble
        answer.database = UNSET if state is None else _database(state)
    return answer if trouble is None else _not_ready(answer)


def _not_ready(answer: Ready) -> Reply:
    return Reply(encode(answer), 503, headers=[("retry-after", "1")])


async def _may_see_details(call: Call) -> bool:
    """Return whether the caller may see names: always if no key is needed, else with a key."""
    if not call.service.keys.required:
        return True
    if b"authorization" not in call.headers and b"x-api-key" not in call.headers:
        return False
    try:
        caller = await call.service.admit(call.headers, call.query_string, call.connection.peer)
        caller.check(Verb.READ, None)
    except PenstockError:
        return False
    return True


def _database(state: DatabaseState) -> Database:
    return Database(
        state.name,
        state.is_primary,
        state.needs_standby,
        [Standby(*standby) for standby in state.standbys],
        state.commits_waiting,
        state.outbox_waiting,
        state.outbox_refused,
        state.oldest_snapshot_s,
    )


async def metrics(call: Call) -> Answer:
    """Return all metrics, for Prometheus."""
    call.broker.admit(call.caller, Verb.READ, None)
    return Reply(await call.broker.survey.metrics_page(), content_type=_PROMETHEUS)


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
