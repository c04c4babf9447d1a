"""One message: its payload, its history, why it waits, and what can be done with it."""

import base64
import json
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from penstock.broker import QueueName
from penstock.errors import InvalidInput, NoSuchMessage
from penstock.model import HistoryEvent, Message
from penstock.operations import (
    Cancel,
    ExplainWait,
    GetMessage,
    GetRetryInfo,
    GetStats,
    ListHistory,
    Redrive,
)
from penstock.server.dashboard import drawing
from penstock.server.dashboard.formatting import as_text, hex_dump, pretty_json, span_text
from penstock.server.dashboard.publishing import message_body, publish_action, publish_call
from penstock.server.dashboard.rest_call import RestCall, message_path, queue_path
from penstock.server.dashboard.serving import Action, Done, Form, Page, Values
from penstock.server.dashboard.visit import HOME, Visit

MESSAGE = f"{HOME}/messages/{{id}}"
_MOST_EVENTS = 500
_SHOWN_BYTES = 128 << 10
_EDITABLE_BYTES = 64 << 10
_ENDS = {"acked": "done", "dead": "dead", "dead_lettered": "dead"}
_STATES = {
    "leased": "leased",
    "extended": "leased",
    "nacked": "scheduled",
    "timed_out": "scheduled",
}


async def follow(visit: Visit) -> Values:
    """Load what changes: state, history, retries. The payload is not read again."""
    broker, caller, group = visit.broker, visit.caller, visit.group()
    id_ = visit.call.path("id")
    why = await broker.run(caller, ExplainWait(id_, group=group))
    retry = await broker.run(caller, GetRetryInfo(id_, group=group))
    history = await broker.run(caller, ListHistory(id_, limit=_MOST_EVENTS + 1))
    shown = [one for one in history[:_MOST_EVENTS] if one.group in (None, "", group)]
    queue = await broker.queue_of_message(id_)
    return {
        "id": id_,
        "group": group,
        "queue": queue,
        "rest": _rest_calls(queue, id_, group),
        "why": why,
        "retry": retry,
        "events": shown,
        "more_events": len(history) > _MOST_EVENTS,
        "timeline": _timeline(shown, why.state, visit.now_ns),
        "failures": [one for one in shown if one.reason or one.event == "timed_out"],
    }


async def load(visit: Visit) -> Values:
    values = await follow(visit)
    id_, group, queue = values["id"], values["group"], values["queue"]
    row = await visit.broker.run(visit.caller, GetMessage(id_, group=group))
    stats = await visit.broker.run(visit.caller, GetStats(), queue)
    message = row.message
    payload = message.payload
    shown, form = _shown(payload, visit.text("as"))
    may_manage = visit.may("manage", queue.namespace)
    return {
        **values,
        "message": message,
        "stats": stats,
        "groups": list(stats.groups),
        "shown": shown,
        "form": form,
        "is_cut": len(payload) > _SHOWN_BYTES,
        "forms": ("json", "text", "hex"),
        "large_bytes": len(payload),
        "may_manage": may_manage,
        "may_publish": visit.may("publish", queue.namespace),
        "body": message_body(message) if len(payload) <= _EDITABLE_BYTES else None,
        "as_curl": visit.curl(publish_call(queue, _body_of(message))),
        "as_python": _python(visit, queue, message),
        "publish": publish_call(queue, _body_of(message)),
    }


def _rest_calls(queue: QueueName, id: str, group: str) -> dict[str, RestCall]:
    return {
        "get": RestCall("GET", message_path(id), query=(("group", group),)),
        "cancel": RestCall("DELETE", message_path(id)),
        "redrive": RestCall("POST", queue_path(queue, "redrive"), _redrive(id, group)),
    }


def _shown(payload: bytes, asked: str | None) -> tuple[str, str]:
    """Return the payload as text, in the form that was asked for or that suits it."""
    if asked not in (None, "json", "text", "hex"):
        raise InvalidInput(f"as is {asked!r}; it must be json, text or hex")
    if asked in (None, "json"):
        pretty = pretty_json(payload)
        if pretty is not None:
            return pretty, "json"
    part = payload[:_SHOWN_BYTES]
    text = as_text(part) if len(part) == len(payload) else as_text(_whole_characters(part))
    if asked != "hex" and text is not None:
        return text, "text"
    return hex_dump(part[: _SHOWN_BYTES // 4]), "hex"


def _whole_characters(part: bytes) -> bytes:
    return part.decode(errors="ignore").encode()


def _timeline(events: Sequence[HistoryEvent], state: str, now_ns: int) -> Markup:
    """Return the life of the message as bars: waiting, leased, waiting to be retried …"""
    stretches: list[drawing.Stretch] = []
    for number, one in enumerate(events):
        is_last = number + 1 == len(events)
        end_ns = now_ns if is_last else events[number + 1].at_ns
        now = _ENDS.get(one.event) or _STATES.get(one.event, "waiting")
        if is_last:
            now = state if state in ("leased", "scheduled", "dead", "done") else now
            if now == "done":
                end_ns = one.at_ns
        end_ns = max(end_ns, one.at_ns)
        if now == "scheduled" and one.at_ns < one.retry_at_ns < end_ns:  # then it waited its turn
            stretches.append(_stretch("scheduled", one.at_ns, one.retry_at_ns))
            stretches.append(_stretch("waiting", one.retry_at_ns, end_ns))
        else:
            stretches.append(_stretch(now, one.at_ns, end_ns))
    return drawing.timeline(stretches, f"timeline of {len(events)} events")


def _stretch(state: str, start_ns: int, end_ns: int) -> drawing.Stretch:
    took = span_text((end_ns - start_ns) / 1e9)
    return drawing.Stretch(state, start_ns, end_ns, f"{state} for {took}")


def _body_of(message: Message) -> dict[str, Any]:
    """Return the message as the body of a request that publishes the same again."""
    body: dict[str, Any] = {}
    try:
        if message.content_type != "application/json" or len(message.payload) > _EDITABLE_BYTES:
            raise ValueError
        body["payload"] = json.loads(message.payload)
    except ValueError:
        part = message.payload[:_EDITABLE_BYTES]
        body["payload_b64"] = base64.b64encode(part).decode()
        if message.content_type:
            body["content_type"] = message.content_type
    body["priority"] = message.priority
    if message.key is not None:
        body["key"] = message.key
    if message.headers:
        body["headers"] = dict(message.headers)
    if message.max_attempts:
        body["max_attempts"] = message.max_attempts
    return body


def _python(visit: Visit, queue: QueueName, message: Message) -> str:
    options = [f"priority={message.priority}"]
    if message.key is not None:
        options.append(f"key={message.key!r}")
    if message.headers:
        options.append(f"headers={dict(message.headers)!r}")
    if message.content_type:
        options.append(f"content_type={message.content_type!r}")
    payload = message.payload[:_EDITABLE_BYTES]
    arguments = "".join(f"        {one},\n" for one in (repr(payload), *options))
    return (
        "import penstock\n\n"
        f'with penstock.open("{visit.base}/{queue}") as queue:\n'
        f"    queue.enqueue(\n{arguments}    )\n"
    )


# -- actions ---------------------------------------------------------------------------------------


def cancel(visit: Visit) -> Action:
    id_ = visit.call.path("id")

    async def run() -> Done:
        was_waiting = await visit.broker.run(visit.caller, Cancel(id_))
        return Done("Cancelled in every group." if was_waiting else "It was done already.")

    return Action(RestCall("DELETE", message_path(id_)), run)


def _redrive(id: str, group: str) -> dict[str, Any]:
    return {"ids": [id], **({"group": group} if group != "main" else {})}


async def redrive(visit: Visit) -> Action:
    id_, group = visit.call.path("id"), visit.group()
    queue = await visit.broker.queue_of_message(id_)
    operation = Redrive([id_], group=group)

    async def run() -> Done:
        found = await visit.broker.run(visit.caller, operation, queue)
        if not found:
            raise NoSuchMessage(f"message {id_} is not a dead letter of group {group} any more")
        return Done("Ready again, with its attempts reset.")

    return Action(RestCall("POST", queue_path(queue, "redrive"), _redrive(id_, group)), run)


async def publish(visit: Visit) -> Action:
    queue = await visit.broker.queue_of_message(visit.call.path("id"))
    return await publish_action(visit, queue)


PAGES = (Page(MESSAGE, "message.html", load, follow),)
FORMS = (
    Form(f"{MESSAGE}/cancel", cancel),
    Form(f"{MESSAGE}/redrive", redrive),
    Form(f"{MESSAGE}/publish", publish),
)
