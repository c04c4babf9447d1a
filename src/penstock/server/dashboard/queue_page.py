"""One queue: charts, limits, groups, consumers, keys, settings, and what can be done with it."""

from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import msgspec

from penstock.broker import SETTING_TYPES, QueueName
from penstock.broker.charts import Chart
from penstock.errors import InvalidInput
from penstock.names import check_name
from penstock.operations import (
    Compact,
    CreateGroup,
    DeleteGroup,
    GetLimits,
    GetStats,
    ListConsumers,
    ListKeys,
    Operation,
    Pause,
    Purge,
    Resume,
)
from penstock.server.dashboard.formatting import size, span_text
from penstock.server.dashboard.rest_call import RestCall, queue_path
from penstock.server.dashboard.serving import Action, Done, Form, Page, Values
from penstock.server.dashboard.visit import HOME, Visit
from penstock.units import number_of

QUEUE = f"{HOME}/queues/{{namespace}}/{{queue}}"
RANGES = {"1h": 3600, "24h": 86400, "7d": 7 * 86400}
_MOST_HOLDERS, _MOST_KEYS = 50, 20
_FEWEST_POINTS = 30  # of a chart


async def load(visit: Visit) -> Values:
    broker, caller, queue, group = visit.broker, visit.caller, visit.queue, visit.group()
    stats = await broker.run(caller, GetStats(), queue)
    info = await broker.queue_info(caller, queue)
    return {
        "queue": queue,
        "info": info,
        "stats": stats,
        "group": group,
        "range": _range(visit),
        "ranges": tuple(RANGES),
        "chart": await chart_json(visit, queue),
        "limits": (await broker.run(caller, GetLimits(), queue)).limits,
        "consumers": await broker.run(
            caller, ListConsumers(group=group, limit=_MOST_HOLDERS), queue
        ),
        "readers": await broker.readers.of_queue(caller, queue),
        "waiting": broker.waiting_calls(caller, queue).get(group, 0),
        "keys": await broker.run(caller, ListKeys(group=group, limit=_MOST_KEYS), queue),
        "settings": _settings(info.settings.as_dict()),
        "rest": _rest_calls(queue),
        "may_manage": visit.may("manage", queue.namespace),
        "may_consume": visit.may("consume", queue.namespace),
    }


def _range(visit: Visit) -> str:
    asked = visit.text("range") or "1h"
    if asked not in RANGES:
        raise InvalidInput(f"range is {asked!r}; it must be one of {', '.join(RANGES)}")
    return asked


async def chart_json(visit: Visit, queue: QueueName | None) -> str:
    """Return the chart of a queue as JSON, for the script of the page."""
    since = visit.now_ns / 1e9 - RANGES[_range(visit)]
    chart = await visit.broker.survey.chart(visit.caller, queue, since=since)
    skipped = _without_data(chart)
    shown = {
        name: [None if value is None else float(f"{value:.4g}") for value in values[skipped:]]
        for name, values in chart.series.items()
    }
    return msgspec.json.encode(
        {
            "start": chart.start + skipped * chart.step_s,
            "step_s": chart.step_s,
            "points": chart.points - skipped,
            "series": shown,
        }
    ).decode()


def _without_data(chart: Chart) -> int:
    """Return how many points are before the first one with data. Some stay, for a chart."""
    known = (at for at, value in enumerate(chart.series["ready"]) if value is not None)
    return max(min(next(known, chart.points), chart.points - _FEWEST_POINTS), 0)


# -- settings --------------------------------------------------------------------------------------


def _settings(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the settings with the kind of field that each needs."""
    found = []
    for name, kind in SETTING_TYPES.items():
        value = values[name]
        choices: tuple[str, ...] = ()
        if kind is bool:
            choices = ("true", "false")
        elif get_origin(kind) is Literal:
            choices = get_args(kind)
        found.append(
            {
                "name": name,
                "value": str(value).lower() if isinstance(value, bool) else _plain(value),
                "meaning": _meaning(name, value),
                "choices": choices,
            }
        )
    return found


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and value < 1e15 else str(value)


def _meaning(name: str, value: Any) -> str:
    """Return what a number means, if its unit makes it hard to read."""
    if not isinstance(value, int | float) or isinstance(value, bool) or value == 0:
        return ""
    if name.endswith("_bytes"):
        return size(value).striptags()
    if name.endswith("_s") and not name.endswith("_per_s") and value >= 60:
        return span_text(float(value))
    return ""


async def change(visit: Visit) -> Action:
    """Read the form with the settings: only those that differ are changed."""
    info = await visit.broker.queue_info(visit.caller, visit.queue)
    old, changes = info.settings.as_dict(), {}
    for name in SETTING_TYPES:
        text = visit.text(f"set.{name}")
        if text is None:
            continue
        value = _typed(name, text.strip())
        if value != old[name]:
            changes[name] = value
    rest = RestCall("PATCH", queue_path(visit.queue), changes)

    async def run() -> Done:
        if not changes:
            return Done("No setting differs: nothing was changed.")
        await visit.broker.change_queue(visit.caller, visit.queue, changes)
        return Done(f"Changed {', '.join(changes)}.")

    return Action(rest, run)


def _typed(name: str, text: str) -> Any:
    kind = SETTING_TYPES[name]
    if kind is bool:
        return text == "true"
    if get_origin(kind) is Literal or kind is str:
        return text
    try:
        value = number_of(name, text)  # "10m", "64MiB"
        number = float(value) if isinstance(value, int | float) else float(text)
    except ValueError:
        raise InvalidInput(f"{name} is {text!r}; it must be a number") from None
    return int(number) if kind is int and number == int(number) else number


# -- actions ---------------------------------------------------------------------------------------


def _rest_calls(queue: QueueName) -> dict[str, RestCall]:
    return {
        "pause": RestCall("POST", queue_path(queue, "pause")),
        "resume": RestCall("POST", queue_path(queue, "resume")),
        "compact": RestCall("POST", queue_path(queue, "compact")),
        "purge": RestCall("POST", queue_path(queue, "purge"), {}),
        "delete": RestCall("DELETE", queue_path(queue)),
        "settings": RestCall("PATCH", queue_path(queue), {}),
        "new-group": RestCall("PUT", queue_path(queue, "groups", "audit"), {"at": "beginning"}),
    }


def _operation(
    name: str, make: Callable[[Visit], Operation[Any]], say: Callable[[Any], str]
) -> Form:
    def read(visit: Visit) -> Action:
        operation = make(visit)
        rest = _rest_calls(visit.queue)[name]
        group = visit.text("only") if name == "purge" else None
        if group:
            rest = rest._replace(body={"group": group})

        async def run() -> Done:
            return Done(say(await visit.broker.run(visit.caller, operation, visit.queue)))

        return Action(rest, run, confirm=visit.queue.name if name == "purge" else "")

    return Form(f"{QUEUE}/{name}", read)


def delete(visit: Visit) -> Action:
    queue = visit.queue

    async def run() -> Done:
        await visit.broker.delete_queue(visit.caller, queue)
        return Done(f"Deleted {queue}.", go=visit.link())

    return Action(_rest_calls(queue)["delete"], run, confirm=queue.name)


def new_group(visit: Visit) -> Action:
    name = check_name("group", (visit.text("name") or "").strip())
    to = visit.text("to") or "beginning"
    operation = CreateGroup(name, to=to)

    async def run() -> Done:
        made = await visit.broker.run(visit.caller, operation, visit.queue)
        return Done(f"Created group {name}." if made else f"There is a group {name} already.")

    return Action(RestCall("PUT", queue_path(visit.queue, "groups", name), {"at": to}), run)


def delete_group(visit: Visit) -> Action:
    name = check_name("group", visit.text("name") or "")

    async def run() -> Done:
        await visit.broker.run(visit.caller, DeleteGroup(name), visit.queue)
        return Done(f"Deleted group {name}.")

    rest = RestCall("DELETE", queue_path(visit.queue, "groups", name))
    return Action(rest, run, confirm=name)


PAGES = (Page(QUEUE, "queue.html", load),)
FORMS = (
    _operation("pause", lambda _: Pause(), lambda _: "Paused: nothing is delivered until resumed."),
    _operation("resume", lambda _: Resume(), lambda _: "Resumed."),
    _operation(
        "compact",
        lambda _: Compact(),
        lambda freed: f"Compacted: {size(freed).striptags()} were freed.",
    ),
    _operation(
        "purge",
        lambda visit: Purge(group=visit.text("only")),
        lambda purged: f"Purged: {purged:,} deliveries were removed.",
    ),
    Form(f"{QUEUE}/delete", delete),
    Form(f"{QUEUE}/settings", change),
    Form(f"{QUEUE}/new-group", new_group),
    Form(f"{QUEUE}/delete-group", delete_group),
)
