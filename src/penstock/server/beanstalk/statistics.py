"""The texts of stats, stats-job, stats-tube and the lists: YAML, as beanstalkd writes it."""

import asyncio
import os
import resource
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock.errors import PenstockError
from penstock.model import NS, HistoryEvent, Stats
from penstock.operations import ExplainWait, GetStats, ListHistory, Peek, Row
from penstock.server.beanstalk.commands import NAMES
from penstock.server.beanstalk.mapping import KICKED, RELEASED, URGENT, pri_of, ttr_s_of
from penstock.server.beanstalk.tubes import Tube

if TYPE_CHECKING:
    from penstock.server.beanstalk.connection import Connection
    from penstock.server.beanstalk.listener import BeanstalkListener

_MOST_PEEKED = 100  # jobs that are looked at to count the urgent ones
_MOST_EVENTS = 1000  # of a job's history
_AT_ONCE = 50  # queues that are looked at without a break
_OF_LEASES = ("leased", "dead_leased", "extended")
_STATES = {
    "scheduled": "delayed",
    "leased": "reserved",
    "dead": "buried",
    "parked": "ready",
    "blocked": "ready",
}


def as_list(names: Iterable[str]) -> bytes:
    """Return a YAML list.

    >>> as_list(["a", "b"])
    b'---\\n- a\\n- b\\n'
    """
    return "".join(["---\n", *(f"- {name}\n" for name in names)]).encode()


def as_mapping(values: dict[str, Any]) -> bytes:
    """Return a YAML mapping."""
    return "".join(["---\n", *(f"{name}: {value}\n" for name, value in values.items())]).encode()


# -- a job -----------------------------------------------------------------------------------------


async def of_job(connection: "Connection", tube: Tube, id: int, row: Row) -> bytes:
    """Return what is known of a job. The counts are those of its history."""
    broker, caller, message = connection.broker, connection.caller, row.message
    history = await broker.run(caller, ListHistory(message.id, limit=_MOST_EVENTS), tube.queue)
    left_s = 0.0
    if row.state in ("leased", "scheduled"):
        why = await broker.run(caller, ExplainWait(message.id), tube.queue)
        left_s = max(float(why.details.get("left_s", 0.0)), 0.0)  # type: ignore[arg-type]
    age_s = max(broker.clock.now_ns() - message.published_ns, 0) // NS
    return as_mapping(
        {
            "id": id,
            "tube": tube.name,
            "state": _STATES.get(row.state, row.state),
            "pri": pri_of(message.headers, message.priority),
            "age": age_s,
            "delay": _delay_s(row, history),
            "ttr": ttr_s_of(message.headers),
            "time-left": int(left_s),
            "file": 0,
            **_counts(history, is_reserved=row.state == "leased"),
        }
    )


def _counts(history: Sequence[HistoryEvent], *, is_reserved: bool) -> dict[str, int]:
    """Return how often a job was reserved, and what became of it."""
    events = [one.event for one in history]
    if is_reserved and events[-1] not in _OF_LEASES:
        events.append("leased")  # history has what is on disk; a lease is a moment later
    kicked = sum(one.event == "nacked" and one.reason == KICKED for one in history)
    released = sum(one.event == "nacked" and one.reason == RELEASED for one in history)
    return {
        "reserves": events.count("leased") + events.count("dead_leased") - kicked,
        "timeouts": events.count("timed_out"),
        "releases": events.count("released") + released,
        "buries": events.count("dead"),
        "kicks": events.count("redriven") + kicked,
    }


def _delay_s(row: Row, history: Sequence[HistoryEvent]) -> int:
    """Return the delay that the last put or release asked for."""
    for one in reversed(history):
        if one.event == "nacked" and one.retry_at_ns > one.at_ns:
            return round((one.retry_at_ns - one.at_ns) / NS)
        if one.event in ("nacked", "released", "redriven"):
            return 0
    message = row.message
    return max(round((message.deliver_at_ns - message.published_ns) / NS), 0)


# -- a tube ----------------------------------------------------------------------------------------


async def of_tube(connection: "Connection", tube: Tube, stats: Stats | None) -> bytes:
    left_s = max(tube.paused_until - connection.loop.time(), 0.0) if tube.paused_until else 0.0
    jobs = await _jobs(connection, [(tube, stats)])
    return as_mapping(
        {
            "name": tube.name,
            **jobs,
            "total-jobs": 0 if stats is None else stats.published,
            "current-using": tube.using,
            "current-watching": tube.watching,
            "current-waiting": tube.waiting,
            "cmd-delete": tube.cmd_delete,
            "cmd-pause-tube": tube.cmd_pause,
            "pause": tube.pause_s,
            "pause-time-left": int(left_s),
        }
    )


async def _jobs(
    connection: "Connection", tubes: "Sequence[tuple[Tube | None, Stats | None]]"
) -> dict[str, int]:
    """Return the numbers of jobs by state. Urgent ones are counted in tubes that are referred to,
    among the next hundred jobs of each."""
    known = [stats for _, stats in tubes if stats is not None]
    urgent = 0
    for tube, stats in tubes:
        if tube is not None and stats is not None and stats.ready:
            try:
                peek = Peek(min(_MOST_PEEKED, stats.ready))
                rows = await connection.broker.run(connection.caller, peek, tube.queue)
            except PenstockError:
                continue  # deleted a moment ago
            urgent += sum(
                pri_of(row.message.headers, row.message.priority) < URGENT for row in rows
            )
    return {
        "current-jobs-urgent": urgent,
        "current-jobs-ready": sum(stats.ready + stats.parked + stats.blocked for stats in known),
        "current-jobs-reserved": sum(stats.leased for stats in known),
        "current-jobs-delayed": sum(stats.scheduled for stats in known),
        "current-jobs-buried": sum(stats.dead for stats in known),
    }


# -- the server ------------------------------------------------------------------------------------


async def of_server(connection: "Connection", listener: "BeanstalkListener") -> bytes:
    """Return the counts of all tubes, and those of this listener since it started."""
    broker, tubes = connection.broker, listener.tubes
    found: list[tuple[Tube | None, Stats | None]] = []
    for number, queue in enumerate(tubes.queues(), start=1):
        try:
            stats = await broker.run(connection.caller, GetStats(), queue)
        except PenstockError:
            continue  # deleted a moment ago, or damaged
        found.append((tubes.referred_to(queue), stats))
        if not number % _AT_ONCE:
            await asyncio.sleep(0)
    every = [stats for _, stats in found if stats is not None]
    usage, system = resource.getrusage(resource.RUSAGE_SELF), os.uname()
    connections = listener.connections
    return as_mapping(
        {
            **await _jobs(connection, found),
            **{f"cmd-{name}": listener.commands[name] for name in NAMES if name in _COUNTED},
            "job-timeouts": sum(stats.timed_out for stats in every),
            "total-jobs": sum(stats.published for stats in every),
            "max-job-size": listener.service.settings.max_body_bytes,
            "current-tubes": len(tubes.names()),
            "current-connections": len(connections),
            "current-producers": sum(one.is_producer for one in connections),
            "current-workers": sum(one.is_worker for one in connections),
            "current-waiting": sum(one.reservation is not None for one in connections),
            "total-connections": listener.total_connections,
            "pid": os.getpid(),
            "version": f'"penstock {__version__}"',
            "rusage-utime": f"{usage.ru_utime:.6f}",
            "rusage-stime": f"{usage.ru_stime:.6f}",
            "uptime": (broker.clock.monotonic_ns() - listener.started_ns) // NS,
            "binlog-oldest-index": 0,
            "binlog-current-index": 0,
            "binlog-records-migrated": 0,
            "binlog-records-written": 0,
            "binlog-max-size": 0,
            "draining": "true" if listener.service.is_stopping else "false",
            "id": broker.node_id[:16],
            "hostname": system.nodename,
            "os": f'"{system.version}"',
            "platform": system.machine,
        }
    )


_COUNTED = frozenset(NAMES) - {"reserve-job", "kick-job", "quit"}  # as beanstalkd 1.12 counts
