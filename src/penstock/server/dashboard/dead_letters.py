"""Dead letters: by reason, and one by one; make them ready again, or discard them."""

from typing import Any

from penstock.errors import InvalidInput
from penstock.operations import Discard, GetStats, ListDead, ListDeadReasons, Redrive
from penstock.server.dashboard.queue_page import QUEUE
from penstock.server.dashboard.rest_call import RestCall, queue_path
from penstock.server.dashboard.serving import Action, Done, Form, Page, Values
from penstock.server.dashboard.visit import Visit

_ROWS, _REASONS = 50, 100
_MAX_SEQ = (1 << 63) - 1


async def load(visit: Visit) -> Values:
    broker, caller, queue, group = visit.broker, visit.caller, visit.queue, visit.group()
    stats = await broker.run(caller, GetStats(), queue)
    reasons = await broker.run(caller, ListDeadReasons(group=group, limit=_REASONS), queue)
    chosen = visit.text("reason")
    letters = ListDead(
        reason_group=chosen,
        group=group,
        after_seq=visit.whole("after", 0, _MAX_SEQ) or 0,
        limit=_ROWS,
    )
    return {
        "queue": queue,
        "stats": stats,
        "group": group,
        "groups": list(stats.groups),
        "reasons": reasons,
        "chosen": chosen,
        "page": await broker.run(caller, letters, queue),
        "redrives": await broker.redrives.list(caller, queue),
        "rest": {
            "redrive": RestCall(
                "POST", queue_path(queue, "redrive"), {**_which(visit, chosen), "dry_run": True}
            ),
            "discard": RestCall("POST", queue_path(queue, "discard"), _which(visit, chosen)),
            "stop": lambda one: RestCall("DELETE", queue_path(queue, "redrives", one)),
            "one": lambda verb, one: RestCall(
                "POST", queue_path(queue, verb), _which(visit, None, [one])
            ),
        },
        "may_manage": visit.may("manage", queue.namespace),
    }


def _which(visit: Visit, reason: str | None, ids: list[str] | None = None) -> dict[str, Any]:
    """Return the body that names the dead letters."""
    group = visit.group()
    body: dict[str, Any] = {"group": group} if group != "main" else {}
    if ids is not None:
        body["ids"] = ids
    if reason is not None:
        body["reason_group"] = reason
    return body


def redrive(visit: Visit) -> Action:
    id_, reason, rate = visit.text("id"), visit.text("reason"), visit.number("max_rate")
    is_dry = visit.flag("dry_run")
    ids = None if id_ is None else [id_]
    operation = Redrive(ids, reason_group=reason, group=visit.group(), dry_run=is_dry)
    body = _which(visit, reason, ids)
    if is_dry:
        body["dry_run"] = True
    elif rate is not None:
        body["max_rate"] = rate

    async def run() -> Done:
        broker, queue = visit.broker, visit.queue
        if is_dry:
            found = await broker.run(visit.caller, operation, queue)
            return Done(f"A redrive would make {_letters(found)} ready. Nothing was changed.")
        if rate is not None:
            found = await broker.redrives.start(visit.caller, queue, operation, rate)
            return Done(f"Redriving {_letters(found)}, at most {rate:g} a second.")
        found = await broker.run(visit.caller, operation, queue)
        return Done(f"Made {_letters(found)} ready again.")

    return Action(RestCall("POST", queue_path(visit.queue, "redrive"), body), run)


def discard(visit: Visit) -> Action:
    id_, reason = visit.text("id"), visit.text("reason")
    ids = None if id_ is None else [id_]
    operation = Discard(ids, reason_group=reason, group=visit.group())
    rest = RestCall("POST", queue_path(visit.queue, "discard"), _which(visit, reason, ids))

    async def run() -> Done:
        found = await visit.broker.run(visit.caller, operation, visit.queue)
        return Done(f"Discarded {_letters(found)}.")

    return Action(rest, run, confirm="" if ids else visit.queue.name)


def stop(visit: Visit) -> Action:
    id_ = visit.text("id")
    if id_ is None:
        raise InvalidInput("which redrive? The form names none")

    async def run() -> Done:
        await visit.broker.redrives.cancel(visit.caller, visit.queue, id_)
        return Done("Stopped. What was redriven stays ready.")

    return Action(RestCall("DELETE", queue_path(visit.queue, "redrives", id_)), run)


def _letters(number: int) -> str:
    return f"{number:,} dead letter" + ("" if number == 1 else "s")


PAGES = (Page(f"{QUEUE}/dead", "dead_letters.html", load),)
FORMS = (
    Form(f"{QUEUE}/redrive", redrive),
    Form(f"{QUEUE}/discard", discard),
    Form(f"{QUEUE}/stop-redrive", stop),
)
