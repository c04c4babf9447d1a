"""EpochQueue's namespaces and queues, its health, and the counts of all queues.

New namespaces and queues must have names that EpochQueue allows. Existing ones can be used with any
name.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from penstock import __version__
from penstock.broker import Broker, Caller, QueueName, Verb, check_name
from penstock.broker.access import INSIDE
from penstock.clock import SystemClock
from penstock.errors import AlreadyExists, InvalidInput, NoSuchNamespace, NoSuchQueue
from penstock.model import Stats
from penstock.names import DEAD_VIEW_PREFIX
from penstock.operations import GetStats
from penstock.server.call import Call
from penstock.server.dialects.call import count, json, read
from penstock.server.dialects.json_bodies import Shape
from penstock.server.replies import Reply
from penstock.server.routes import Route

NAMESPACE = "/namespaces/{namespace}"
QUEUE = f"{NAMESPACE}/queues/{{queue}}"

NEW_QUEUE: Mapping[str, Any] = {
    "backoff_base_s": 0.0,  # a failed message is ready again at once
    "max_attempts": 5,
    "max_payload_bytes": 256 * 1024,
}
MOST_RETRIES = 65_535
LONGEST_LEASE_MS = 7 * 86_400_000
_MOST_MESSAGES = 1 << 60
_MOST_IN_BATCH = 100_000
_OWN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)


class NamespaceBody(Struct, forbid_unknown_fields=True):
    name: str


class QueueBody(Struct, forbid_unknown_fields=True):
    """The settings of a new queue. 0 and negative numbers mean the default."""

    visibility_timeout_ms: int = 0
    max_messages: int = 0
    max_retries: int = 0
    max_batch_size: int = 0


_namespace = Shape(NamespaceBody, closed=True)
_queue = Shape(QueueBody, closed=True)


def dead_queue_of(call: Call) -> QueueName | None:
    """Return the queue of a path with `__dlq__<queue>`; None if the path is another."""
    name = call.path("queue")
    if not name.startswith(DEAD_VIEW_PREFIX):
        return None
    return QueueName.checked(call.path("namespace"), name.removeprefix(DEAD_VIEW_PREFIX))


def _check_own_name(what: str, name: str) -> None:
    if not _OWN_NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not a {what} name of this interface: 1 to 64 of a-z, 0-9 and -, not "
            f"starting with -"
        )


async def ensure_queue(broker: Broker, caller: Caller, verb: Verb, queue: QueueName) -> QueueName:
    """Return the queue. Create it with this dialect's settings if it does not exist."""
    if broker.has_queue(queue):
        return queue
    broker.admit(caller, verb, queue.namespace)
    if not broker.settings.create_on_use:
        raise NoSuchQueue(f"there is no queue {queue}: create it first")
    _check_own_name("namespace", queue.namespace)
    try:
        await broker.create_queue(INSIDE, queue, NEW_QUEUE)
    except AlreadyExists:
        pass  # another call created it first
    return queue


async def create_namespace(call: Call) -> Reply:
    body = await read(call, _namespace)
    _check_own_name("namespace", body.name)
    await call.broker.namespaces.create(call.caller, body.name)
    return json({"status": "created", "name": body.name}, 201)


async def list_namespaces(call: Call) -> Reply:
    found = call.broker.namespaces.list(call.caller)
    return json(
        {
            "namespaces": [
                {"name": one.name, "created_at": one.created_at_ns // 1_000_000} for one in found
            ]
        }
    )


async def delete_namespace(call: Call) -> None:
    """Delete a namespace and its queues. Raise NotEmpty if a queue has messages."""
    name = check_name("namespace", call.path("namespace"))
    await call.broker.namespaces.delete_empty(call.caller, name)


async def create_queue(call: Call) -> Reply:
    body = await read(call, _queue, QueueBody())
    for what in ("namespace", "queue"):
        _check_own_name(what, call.path(what))
    settings = dict(NEW_QUEUE)
    if body.visibility_timeout_ms > 0:
        settings["lease_s"] = min(body.visibility_timeout_ms, LONGEST_LEASE_MS) / 1000
    if body.max_messages > 0:
        settings["max_messages"] = min(body.max_messages, _MOST_MESSAGES)
    if body.max_retries > 0:
        settings["max_attempts"] = min(body.max_retries, MOST_RETRIES)
    if body.max_batch_size > 0:
        settings["max_batch"] = min(body.max_batch_size, _MOST_IN_BATCH)
    await call.broker.create_queue(call.caller, call.queue, settings)
    return json({"status": "created"}, 201)


async def list_queues(call: Call) -> Reply:
    """List the queues of a namespace; none if it does not exist."""
    namespace = check_name("namespace", call.path("namespace"))
    try:
        found = call.broker.queues(call.caller, namespace)
    except NoSuchNamespace:
        found = []
    return json({"queues": [str(one) for one in found]})


async def delete_queue(call: Call) -> None:
    await call.broker.delete_queue(call.caller, call.queue)


# -- health and counts: a page costs its rows ------------------------------------------------------

_PAGE, _MOST_ROWS = 50, 200
_started_ns = SystemClock.monotonic_ns()


async def health(call: Call) -> Reply:
    uptime_ms = (SystemClock.monotonic_ns() - _started_ns) // 1_000_000
    broker = call.broker
    return json(
        {
            "status": "ok",
            "node_id": broker.node_id,
            "queues": len(broker.queues(INSIDE)) if broker.is_open else 0,
            "uptime": _duration(uptime_ms // 1000),
            "uptime_ms": uptime_ms,
            "version": __version__,
        }
    )


async def page(call: Call) -> Reply:
    """Return a page of counts. A page number past the end gives the last page."""
    limit = count(call, "limit", _PAGE, _MOST_ROWS)
    queues = call.broker.queues(call.caller)
    pages = max(-(-len(queues) // limit), 1)
    number = count(call, "page", 1, pages)
    shown = queues[(number - 1) * limit : number * limit]
    return json(
        {
            "queues": [_row(*one) async for one in _counted(call.broker, shown)],
            "total": len(queues),
            "page": number,
            "limit": limit,
            "total_pages": pages,
        }
    )


async def summary(call: Call) -> Reply:
    queues = call.broker.queues(call.caller)
    every = [stats async for _, stats in _counted(call.broker, queues)]
    return json(
        {
            "total_queues": len(queues),
            "namespaces": len(call.broker.namespaces.list(call.caller)),
            "total_depth": sum(map(_depth, every)),
            "total_scheduled": sum(one.scheduled for one in every),
            "dlq_alerts": sum(one.dead > 0 for one in every),
        }
    )


async def _counted(
    broker: Broker, queues: Sequence[QueueName]
) -> AsyncIterator[tuple[QueueName, Stats]]:
    """Yield the counts of each queue. The caller may read them."""
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
        "ready": stats.ready + stats.parked + stats.blocked,
        "in_flight": stats.leased,
        "scheduled": stats.scheduled,
        "depth": _depth(stats),
        "dlq_depth": stats.dead,
    }


def _depth(stats: Stats) -> int:
    """Return the number of messages that are neither settled nor dead."""
    return stats.ready + stats.parked + stats.blocked + stats.leased + stats.scheduled


def _duration(seconds: int) -> str:
    """Return a duration in EpochQueue's format.

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
    Route("GET", "/health", health, needs_key=False),
    Route("GET", "/api/stats", page),
    Route("GET", "/api/stats/summary", summary),
    Route("POST", "/namespaces", create_namespace),
    Route("GET", "/namespaces", list_namespaces),
    Route("DELETE", NAMESPACE, delete_namespace),
    Route("GET", f"{NAMESPACE}/queues", list_queues),
    Route("POST", QUEUE, create_queue),
    Route("DELETE", QUEUE, delete_queue),
)
