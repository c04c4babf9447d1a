"""Replay: choose a group and a position, see how many messages that means, and go there."""

from typing import Any

from penstock.errors import InvalidInput
from penstock.operations import GetStats, PreviewSeek, Seek
from penstock.operations.answers import rfc3339
from penstock.server.dashboard.queue_page import QUEUE
from penstock.server.dashboard.rest_call import RestCall, queue_path
from penstock.server.dashboard.serving import Action, Done, Form, Page, Values
from penstock.server.dashboard.visit import Visit

_MAX_SEQ = (1 << 63) - 1
_WAYS = ("beginning", "end", "time", "id", "seq")


async def load(visit: Visit) -> Values:
    queue = visit.queue
    stats = await visit.broker.run(visit.caller, GetStats(), queue)
    way = visit.text("way")
    values: dict[str, Any] = {
        "queue": queue,
        "stats": stats,
        "group": visit.group(),
        "groups": list(stats.groups),
        "way": way,
        "preview_of": None,
        "rest": None,
        "may_consume": visit.may("consume", queue.namespace),
    }
    if way is not None:
        position = _position(visit, way)
        asked = PreviewSeek(**position, group=visit.group())
        values["preview_of"] = await visit.broker.run(visit.caller, asked, queue)
        values["rest"] = _rest(visit, position)
    return values


def _position(visit: Visit, way: str) -> dict[str, Any]:
    """Return the position that the form names, as arguments of `Seek`."""
    if way in ("beginning", "end"):
        return {"to": way}
    value: Any = None
    if way == "time":
        value = visit.time("time")
    elif way == "id":
        value = (visit.text("id") or "").strip() or None
    elif way == "seq":
        value = visit.whole("seq", 1, _MAX_SEQ)
    else:
        raise InvalidInput(f"way is {way!r}; it must be one of {', '.join(_WAYS)}")
    if value is None:
        raise InvalidInput(f"give the {way} from which messages are delivered")
    return {way: value}


def _rest(visit: Visit, position: dict[str, Any]) -> RestCall:
    to: Any = position.get("to")
    if to is None:
        ((name, value),) = position.items()
        to = {name: rfc3339(round(value * 1e9)) if name == "time" else value}
    body = {"to": to} if visit.group() == "main" else {"to": to, "group": visit.group()}
    return RestCall("POST", queue_path(visit.queue, "seek"), body)


def seek(visit: Visit) -> Action:
    position = _position(visit, visit.text("way") or "")
    operation = Seek(**position, group=visit.group())

    async def run() -> Done:
        next_seq = await visit.broker.run(visit.caller, operation, visit.queue)
        return Done(f"Group {visit.group()} continues with message {next_seq}.")

    return Action(_rest(visit, position), run)


PAGES = (Page(f"{QUEUE}/replay", "replay.html", load),)
FORMS = (Form(f"{QUEUE}/seek", seek),)
