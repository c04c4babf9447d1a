"""Storage: disk and sync latency, the segments of a queue, damage; on PostgreSQL, the database."""

from typing import Any

from penstock.broker import QueueName
from penstock.operations import GetStorage
from penstock.server.dashboard.rest_call import API, RestCall, queue_path
from penstock.server.dashboard.serving import Page, Values
from penstock.server.dashboard.visit import HOME, Visit

_ROWS, _SEGMENTS = 50, 200


async def load(visit: Visit) -> Values:
    broker, caller = visit.broker, visit.caller
    state = await broker.survey.storage(caller)
    largest = await broker.survey.queues(
        caller, sort="size_bytes", descending=True, limit=_ROWS, spark=""
    )
    values: dict[str, Any] = {
        "state": state,
        "largest": largest,
        "whole_bytes": max(state.size_bytes or 0, 1),
        "queue": None,
        "rest": RestCall("GET", f"{API}/storage"),
    }
    name = visit.text("queue")
    if name is not None:
        queue = QueueName.parse(name)
        storage = await broker.run(caller, GetStorage(limit=_SEGMENTS), queue)
        values |= {
            "queue": queue,
            "storage": storage,
            "hidden": storage.total_segments - len(storage.segments),
            "rest": RestCall("GET", queue_path(queue, "storage")),
        }
    return values


PAGES = (Page(f"{HOME}/storage", "storage.html", load),)
