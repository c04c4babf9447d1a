"""The overview: counts of everything, and the list of queues."""

from typing import Any

import msgspec

from penstock.broker import DEFAULT_NAMESPACE, QueueName
from penstock.codec import parse_id
from penstock.errors import InvalidInput
from penstock.server.dashboard.rest_call import RestCall, queue_path
from penstock.server.dashboard.serving import Action, Done, Form, Page, Values
from penstock.server.dashboard.visit import HOME, Visit

_ROWS = 50
_COLUMNS = (
    ("name", "Queue"),
    ("ready", "Ready"),
    ("scheduled", "Scheduled"),
    ("leased", "Leased"),
    ("parked", "Parked"),
    ("blocked", "Blocked"),
    ("dead", "Dead"),
    ("oldest_age_s", "Oldest"),
    ("publish_rate", "Published"),
    ("ack_rate", "Acked"),
    ("size_bytes", "Size"),
)
_FIRST_CALL = """\
curl -H 'Content-Type: application/json' -d '{{"payload": "hello"}}' \\
    {base}/api/v1/namespaces/default/queues/orders/messages"""


async def load(visit: Visit) -> Values:
    namespace, sort = visit.text("namespace"), visit.text("sort") or "name"
    descending = visit.flag("down")
    listing = f"dashboard {namespace} {visit.text('text')} {sort} {descending}"
    page = await visit.broker.survey.queues(
        visit.caller,
        namespace,
        text=visit.text("text") or "",
        sort=sort,
        descending=descending,
        after=_position(visit, listing),
        limit=_ROWS,
        spark="published",
    )
    next_ = "" if page.next is None else msgspec.json.encode(page.next).decode()
    return {
        "overview": await visit.broker.survey.overview(visit.caller, namespace),
        "page": page,
        "next": next_ and visit.call.service.cursors.make(listing, next_),
        "namespace": namespace,
        "columns": _COLUMNS,
        "sort": sort,
        "descending": descending,
        "first_call": _FIRST_CALL.format(base=visit.base),
        "new_queue": _creating(QueueName(namespace or DEFAULT_NAMESPACE, "orders")),
    }


def _position(visit: Visit, listing: str) -> Any:
    after = visit.text("after")
    if after is None:
        return None
    text = visit.call.service.cursors.read_name(listing, after)
    return msgspec.json.decode(text, type=tuple[float | str, str])


# -- finding, creating -----------------------------------------------------------------------------


async def find(visit: Visit) -> str:
    """Return the page of what was searched for: a message, a queue, or queues of such a name."""
    asked = (visit.text("q") or "").strip()
    if _is_id(asked):
        return visit.link("messages", asked)
    try:
        queue = QueueName.parse(asked)
    except InvalidInput:
        return visit.link(text=asked[:100])
    if visit.broker.has_queue(queue) and visit.may("read", queue.namespace):
        return visit.queue_link(queue)
    return visit.link(text=asked[:100])


def _is_id(text: str) -> bool:
    try:
        parse_id(text)
    except InvalidInput:
        return False
    return True


def _creating(queue: QueueName) -> RestCall:
    return RestCall("PUT", queue_path(queue))


def create(visit: Visit) -> Action:
    queue = QueueName.checked(
        visit.text("namespace") or DEFAULT_NAMESPACE, (visit.text("name") or "").strip()
    )

    async def run() -> Done:
        await visit.broker.create_queue(visit.caller, queue)
        return Done(f"Created {queue}.", go=visit.queue_link(queue))

    return Action(_creating(queue), run)


PAGES = (Page(HOME, "overview.html", load),)
FORMS = (Form(f"{HOME}/new-queue", create),)
