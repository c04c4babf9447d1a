"""Health, and the counts of all queues. A page costs its rows."""

from collections.abc import AsyncIterator, Sequence

from starlette.responses import Response

from penstock import __version__
from penstock.broker import Broker, QueueName
from penstock.broker.access import INSIDE
from penstock.clock import SystemClock
from penstock.errors import NoSuchQueue
from penstock.model import Stats
from penstock.operations import GetStats
from penstock.server.dialects.call import Call, answer, route

_PAGE, _MOST_ROWS = 50, 200
_started_ns = SystemClock.monotonic_ns()


async def health(call: Call) -> Response:
    uptime_ms = (SystemClock.monotonic_ns() - _started_ns) // 1_000_000
    broker = call.broker
    return answer(
        {
            "status": "ok",
            "node_id": broker.node_id,
            "queues": len(broker.queues(INSIDE)) if broker.is_open else 0,
            "uptime": _duration(uptime_ms // 1000),
            "uptime_ms": uptime_ms,
            "version": __version__,
        }
    )


async def page(call: Call) -> Response:
    """A page past the end is the last one."""
    limit = call.count("limit", _PAGE, _MOST_ROWS)
    queues = call.broker.queues(call.caller)
    pages = max(-(-len(queues) // limit), 1)
    number = call.count("page", 1, pages)
    shown = queues[(number - 1) * limit : number * limit]
    return answer(
        {
            "queues": [_row(*one) async for one in _counted(call.broker, shown)],
            "total": len(queues),
            "page": number,
            "limit": limit,
            "total_pages": pages,
        }
    )


async def summary(call: Call) -> Response:
    queues = call.broker.queues(call.caller)
    every = [stats async for _, stats in _counted(call.broker, queues)]
    return answer(
        {
            "total_queues": len(queues),
            "namespaces": len(call.broker.namespaces(call.caller)),
            "total_depth": sum(map(_depth, every)),
            "total_scheduled": sum(one.scheduled for one in every),
            "dlq_alerts": sum(one.dead > 0 for one in every),
        }
    )


async def _counted(
    broker: Broker, queues: Sequence[QueueName]
) -> AsyncIterator[tuple[QueueName, Stats]]:
    """The counts of queues that the caller may read."""
    for queue in queues:
        try:
            yield queue, await broker.run(INSIDE, GetStats(), queue)
        except NoSuchQueue:
            pass  # deleted since it was listed


def _row(queue: QueueName, stats: Stats) -> dict[str, object]:
    return {
        "namespace": queue.namespace,
        "name": queue.name,
        "key": str(queue),
        "ready": stats.ready + stats.parked,
        "in_flight": stats.leased,
        "scheduled": stats.scheduled,
        "depth": _depth(stats),
        "dlq_depth": stats.dead,
    }


def _depth(stats: Stats) -> int:
    """What is neither settled nor dead."""
    return stats.ready + stats.parked + stats.leased + stats.scheduled


def _duration(seconds: int) -> str:
    """As EpochQueue writes it.

    >>> _duration(3725), _duration(59)
    ('1h2m5s', '59s')
    """
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


ROUTES = (
    route("GET", "/health", health, needs_key=False),
    route("GET", "/api/stats", page),
    route("GET", "/api/stats/summary", summary),
)
