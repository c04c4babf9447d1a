"""Webhooks: endpoints, how well they answer, every delivery, and what can be done about them."""

from typing import Any

from penstock.broker import DEFAULT_NAMESPACE, QueueName
from penstock.broker.webhooks import Subscription
from penstock.errors import InvalidInput
from penstock.names import check_name
from penstock.server.dashboard.rest_call import API, RestCall, given, queue_path
from penstock.server.dashboard.serving import Action, Done, Form, Page, Values
from penstock.server.dashboard.visit import HOME, Visit

WEBHOOK = f"{HOME}/webhooks/{{id}}"
_ROWS, _DELIVERIES = 50, 50
_MOST_NUMBER = 1 << 62


async def load(visit: Visit) -> Values:
    webhooks, caller = visit.webhooks, visit.caller
    namespace = visit.text("namespace")
    every = webhooks.list_all(caller, namespace)
    start = visit.whole("from", 0, len(every)) or 0
    rows = [
        (one, webhooks.health(one.id), await webhooks.success(caller, one.id))
        for one in every[start : start + _ROWS]
    ]
    return {
        "rows": rows,
        "total": len(every),
        "next": start + _ROWS if start + _ROWS < len(every) else 0,
        "rest": _creating(QueueName(DEFAULT_NAMESPACE, "orders"), {"url": "https://example.com"}),
        "may_manage": visit.may("manage", caller.any_namespace),
    }


async def load_one(visit: Visit) -> Values:
    webhooks, caller, id_ = visit.webhooks, visit.caller, visit.call.path("id")
    one: Subscription = webhooks.get(caller, id_)
    before = visit.whole("before", 0, _MOST_NUMBER) or 0
    return {
        "one": one,
        "health": webhooks.health(id_),
        "success": await webhooks.success(caller, id_),
        "page": await webhooks.deliveries(caller, id_, cursor=before, limit=_DELIVERIES),
        "rest": {
            "rotate": RestCall("PATCH", _path(id_), {"rotate_secret": True}),
            "enable": RestCall("PATCH", _path(id_), {"enabled": not one.enabled}),
            "url": RestCall("PATCH", _path(id_), {"url": one.url}),
            "delete": RestCall("DELETE", _path(id_)),
            "resend": lambda number: _resending(id_, number),
        },
        "may_manage": visit.may("manage", one.queue.namespace),
    }


def _path(id: str, *rest: str) -> str:
    return "/".join([f"{API}/webhooks/{id}", *rest])


def _resending(id: str, number: int) -> RestCall:
    return RestCall("POST", _path(id, "deliveries", str(number), "resend"))


def _creating(queue: QueueName, body: dict[str, Any]) -> RestCall:
    return RestCall("POST", queue_path(queue, "webhooks"), body)


def create(visit: Visit) -> Action:
    queue = QueueName.parse((visit.text("queue") or "").strip())
    url = (visit.text("url") or "").strip()
    group = visit.text("group")
    body = given(url=url, group=None if group is None else check_name("group", group.strip()))

    async def run() -> Done:
        made = await visit.webhooks.create(visit.caller, queue, url, group=body.get("group"))
        return Done(f"Created {made.id}. It signs with this secret:", secret=_secret(made))

    return Action(_creating(queue, body), run)


def _secret(subscription: Subscription) -> str:
    return subscription.secrets[0].value if subscription.secrets else ""


def rotate(visit: Visit) -> Action:
    id_ = visit.call.path("id")

    async def run() -> Done:
        made = await visit.webhooks.change(visit.caller, id_, rotate_secret=True)
        return Done("Rotated. The old secret signs as well for a day. New:", secret=_secret(made))

    return Action(RestCall("PATCH", _path(id_), {"rotate_secret": True}), run)


def change(visit: Visit) -> Action:
    id_, url, enabled = visit.call.path("id"), visit.text("url"), visit.text("enabled")
    if url is None and enabled is None:
        raise InvalidInput("nothing to change: the form has neither url nor enabled")
    changes = given(url=url, enabled=None if enabled is None else enabled == "true")

    async def run() -> Done:
        await visit.webhooks.change(visit.caller, id_, **changes)
        return Done(f"Changed {', '.join(changes)}.")

    return Action(RestCall("PATCH", _path(id_), changes), run)


def delete(visit: Visit) -> Action:
    id_ = visit.call.path("id")

    async def run() -> Done:
        await visit.webhooks.delete(visit.caller, id_)
        return Done(f"Deleted {id_}.", go=visit.link("webhooks"))

    return Action(RestCall("DELETE", _path(id_)), run, confirm=id_)


def resend(visit: Visit) -> Action:
    id_, number = visit.call.path("id"), visit.whole("number", 1, _MOST_NUMBER)
    if number is None:
        raise InvalidInput("which delivery? The form names none")

    async def run() -> Done:
        made = await visit.webhooks.resend(visit.caller, id_, number)
        return Done(f"Sent again: {made.outcome}, status {made.status or 'none'}.")

    return Action(_resending(id_, number), run)


PAGES = (
    Page(f"{HOME}/webhooks", "webhooks.html", load),
    Page(WEBHOOK, "webhook.html", load_one),
)
FORMS = (
    Form(f"{HOME}/webhooks", create),
    Form(f"{WEBHOOK}/rotate", rotate),
    Form(f"{WEBHOOK}/change", change),
    Form(f"{WEBHOOK}/delete", delete),
    Form(f"{WEBHOOK}/resend", resend),
)
