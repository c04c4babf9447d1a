"""Schedules of a queue: when each runs next, what it did, and pausing, resuming and removing it."""

from penstock.operations import (
    GetSchedule,
    GetStats,
    ListSchedules,
    PauseSchedule,
    RemoveSchedule,
    ResumeSchedule,
)
from penstock.server.dashboard.queue_page import QUEUE
from penstock.server.dashboard.rest_call import RestCall, queue_path
from penstock.server.dashboard.serving import Action, Done, Form, Page, Values
from penstock.server.dashboard.visit import Visit

_ROWS = 50
_TIMES = 10
_SCHEDULE = f"{QUEUE}/schedules/{{schedule}}"


async def load(visit: Visit) -> Values:
    queue, caller, broker = visit.queue, visit.caller, visit.broker
    stats = await broker.run(caller, GetStats(), queue)
    every = (await broker.run(caller, ListSchedules(), queue)).schedules
    start = visit.whole("from", 0, len(every)) or 0
    name = visit.text("schedule")
    return {
        "queue": queue,
        "stats": stats,
        "rows": every[start : start + _ROWS],
        "total": len(every),
        "next": start + _ROWS if start + _ROWS < len(every) else 0,
        "one": None if name is None else await broker.run(caller, GetSchedule(name, _TIMES), queue),
        "rest": lambda method, *rest: RestCall(method, queue_path(queue, "schedules", *rest)),
        "may_manage": visit.may("manage", queue.namespace),
    }


def pause(visit: Visit) -> Action:
    name = visit.call.path("schedule")

    async def run() -> Done:
        await visit.broker.run(visit.caller, PauseSchedule(name), visit.queue)
        return Done(f"Paused {name}: its ticks are left out until it is resumed.")

    return Action(_call(visit, "POST", "pause"), run)


def resume(visit: Visit) -> Action:
    name = visit.call.path("schedule")

    async def run() -> Done:
        await visit.broker.run(visit.caller, ResumeSchedule(name), visit.queue)
        return Done(f"Resumed {name}: it goes on with its next tick.")

    return Action(_call(visit, "POST", "resume"), run)


def remove(visit: Visit) -> Action:
    name = visit.call.path("schedule")

    async def run() -> Done:
        await visit.broker.run(visit.caller, RemoveSchedule(name), visit.queue)
        return Done(f"Removed {name}.", go=visit.queue_link(visit.queue, "schedules"))

    return Action(_call(visit, "DELETE"), run, confirm=name)


def _call(visit: Visit, method: str, *rest: str) -> RestCall:
    path = queue_path(visit.queue, "schedules", visit.call.path("schedule"), *rest)
    return RestCall(method, path)


PAGES = (Page(f"{QUEUE}/schedules", "schedules.html", load),)
FORMS = (
    Form(f"{_SCHEDULE}/pause", pause),
    Form(f"{_SCHEDULE}/resume", resume),
    Form(f"{_SCHEDULE}/remove", remove),
)
