"""The playground: publish, lease and settle by hand."""

import base64
from typing import Any, cast

from penstock.broker import DEFAULT_NAMESPACE, QueueName, Settlement
from penstock.broker.store import Verdict
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.operations import GetStats
from penstock.server.dashboard.formatting import as_text, pretty_json
from penstock.server.dashboard.publishing import publish_action, publish_call
from penstock.server.dashboard.rest_call import API, RestCall, given, queue_path
from penstock.server.dashboard.serving import Action, Done, Form, Page, Values
from penstock.server.dashboard.visit import HOME, Visit

_HOLDER = "dashboard"
_MOST_LEASED = 10
_SHOWN_BYTES = 4096
_VERDICTS = ("ack", "nack", "extend", "release")
_EXAMPLE = {
    "kind": "json",
    "payload": '{"hello": "world"}',
    "priority": "",
    "key": "",
    "headers": "",
    "content_type": "",
    "max_attempts": "",
}


def _queue(visit: Visit) -> QueueName:
    return QueueName.checked(
        visit.text("namespace") or DEFAULT_NAMESPACE, visit.text("queue") or "playground"
    )


async def load(visit: Visit) -> Values:
    queue = _queue(visit)
    exists = visit.broker.has_queue(queue)
    stats = await visit.broker.run(visit.caller, GetStats(), queue) if exists else None
    return {
        "queue": queue,
        "stats": stats,
        "groups": list(stats.groups) if stats is not None else ["main"],
        "body": _EXAMPLE,
        "publish": publish_call(queue, {"payload": {"hello": "world"}}),
        "lease": _leasing(queue, {"max": 1, "holder": _HOLDER}),
        "may_publish": visit.may("publish", queue.namespace),
        "may_consume": visit.may("consume", queue.namespace),
    }


async def publish(visit: Visit) -> Action:
    return await publish_action(visit, _queue(visit))


def _leasing(queue: QueueName, body: dict[str, Any]) -> RestCall:
    return RestCall("POST", queue_path(queue, "lease"), body)


def lease(visit: Visit) -> Action:
    queue, most = _queue(visit), visit.whole("max", 1, _MOST_LEASED) or 1
    lease_s, group = visit.number("lease_s"), visit.group()
    body: dict[str, Any] = {"max": most, "holder": _HOLDER} | given(lease_s=lease_s)
    if group != "main":
        body["group"] = group

    async def run() -> Done:
        leased = await visit.broker.lease(
            visit.caller, queue, n=most, lease_s=lease_s, group=group, holder=_HOLDER
        )
        shown = [(one, _text(one.payload)) for one in leased]
        values = {"leased": shown, "queue": queue, "settling": _settling}
        return Done(f"Leased {len(leased)}.", shown=values, template="leased.html")

    return Action(_leasing(queue, body), run)


def _text(payload: bytes) -> str:
    part = payload[:_SHOWN_BYTES]
    text = pretty_json(part) or as_text(part)
    return base64.b64encode(part).decode() if text is None else text


def _settling(verdict: str, receipt: str, **options: Any) -> RestCall:
    one = {"receipt": receipt, **given(**options)} if given(**options) else receipt
    return RestCall("POST", f"{API}/settle", {verdict: [one]})


def settle(visit: Visit) -> Action:
    verdict, receipt = visit.text("verdict") or "", visit.text("receipt") or ""
    if verdict not in _VERDICTS:
        raise InvalidInput(f"verdict is {verdict!r}; it must be one of {', '.join(_VERDICTS)}")
    reason = (visit.text("reason") or "") if verdict == "nack" else ""
    settlement = Settlement(cast(Verdict, verdict), receipt, reason=reason)

    async def run() -> Done:
        (outcome,) = await visit.broker.settle(visit.caller, [settlement])
        if not outcome.ok:
            raise ReceiptInvalid(outcome.detail or f"the receipt is {outcome.status}")
        return Done(
            {"ack": "Acked.", "nack": "Nacked.", "extend": "Extended."}.get(verdict, "Released.")
        )

    return Action(_settling(verdict, receipt, reason=reason or None), run)


PLACE = f"{HOME}/playground"
PAGES = (Page(PLACE, "playground.html", load),)
FORMS = (
    Form(f"{PLACE}/publish", publish),
    Form(f"{PLACE}/lease", lease),
    Form(f"{PLACE}/settle", settle),
)
