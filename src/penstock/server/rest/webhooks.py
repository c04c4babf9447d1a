"""Webhooks: messages are posted to a URL."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.broker import Verb, check_name
from penstock.broker.webhooks import Circuit, Delivery, DeliveryCounts, Style, Subscription
from penstock.errors import InvalidInput
from penstock.operations.answers import rfc3339
from penstock.server.call import Answer, Call
from penstock.server.rest.endpoint import (
    API,
    PAGING,
    QUEUE,
    Endpoint,
    Parameter,
    cursor_of,
    limit_of,
    listing_of,
)
from penstock.server.rest.structs import GroupName, Name

_LIST = f"{QUEUE}/webhooks"
_ONE = f"{API}/webhooks/{{id}}"

Url = Annotated[str, Meta(min_length=1, max_length=2048)]
Secret = Annotated[str, Meta(min_length=1, max_length=512)]
Wait = Annotated[float, Meta(ge=0, le=7 * 86400)]
Waits = Annotated[list[Wait], Meta(min_length=1, max_length=20)]


class WebhookBody(Struct, forbid_unknown_fields=True):
    """A new subscription. Without `secret` or `group`, one is created for it."""

    url: Url
    secret: Secret | None = None
    group: GroupName | None = None
    style: Literal["standard", "epochqueue"] = "standard"
    retry_s: Waits | None = None


class WebhookChanges(Struct, forbid_unknown_fields=True):
    """Changes of a subscription. An old secret signs as well for a day after it was changed."""

    url: Url | None = None
    secret: Secret | None = None
    rotate_secret: bool = False
    enabled: bool | None = None
    retry_s: Waits | None = None


class WebhookAnswer(Struct, omit_defaults=True, kw_only=True):
    """A subscription. The secret is shown once: when it is made or changed.

    `circuit` is `open` while a failing endpoint is left alone, `half_open` while one delivery is
    tried.
    """

    id: str
    namespace: str
    queue: str
    url: str
    style: Style
    group: str
    retry_s: Sequence[float]
    created_at: str
    enabled: bool
    circuit: Circuit
    failures: int = 0
    open_for_s: float | UnsetType = UNSET
    disabled_because: str | UnsetType = UNSET
    secret: str | UnsetType = UNSET
    deliveries: "DeliveryStats | UnsetType" = UNSET


class DeliveryStats(Struct, omit_defaults=True, kw_only=True):
    """How the deliveries of a subscription went, without those that were sent by hand."""

    delivered: int
    failed: int
    recent: int
    success_rate: float | UnsetType = UNSET
    last_delivered_at: str | UnsetType = UNSET
    last_failed_at: str | UnsetType = UNSET
    p50_s: float
    p95_s: float


class WebhookList(Struct):
    """The subscriptions of a queue, oldest first."""

    webhooks: list[WebhookAnswer]


class DeliveryAnswer(Struct, omit_defaults=True, kw_only=True):
    """One attempt to push one message. `status` 0: there was no answer."""

    number: int
    message_id: str
    attempt: int
    at: str
    took_s: float
    outcome: Literal["delivered", "retry", "dead", "disabled", "failed"]
    status: int
    reason: str | UnsetType = UNSET
    retry_in_s: float | UnsetType = UNSET
    answer: str | UnsetType = UNSET
    is_resent: bool = False


class DeliveryList(Struct, omit_defaults=True):
    """The latest deliveries, latest first; `cursor` asks for older ones."""

    deliveries: list[DeliveryAnswer]
    cursor: str | UnsetType = UNSET
    damaged_log: str | UnsetType = UNSET


async def list_webhooks(call: Call) -> Answer:
    """List the webhooks of a queue."""
    found = call.service.webhooks.list(call.caller, call.queue)
    return WebhookList([_answer(call, one) for one in found])


async def create_webhook(call: Call) -> Answer:
    """Push a queue's messages to a URL."""
    asked = await call.read(WebhookBody)
    made = await call.service.webhooks.create(
        call.caller,
        call.queue,
        asked.url,
        secret=asked.secret,
        group=asked.group,
        style=Style(asked.style),
        retry_s=asked.retry_s,
    )
    return _answer(call, made, with_secret=True)


async def list_all_webhooks(call: Call) -> Answer:
    """List the webhooks of all queues that the key may read."""
    name = call.query.text("namespace")
    namespace = None if name is None else check_name("namespace", name)
    found = call.service.webhooks.list_all(call.caller, namespace)
    return WebhookList([_answer(call, one) for one in found])


async def get_webhook(call: Call) -> Answer:
    """Show a webhook, and how its deliveries went."""
    webhooks, id_ = call.service.webhooks, call.path("id")
    answer = _answer(call, webhooks.get(call.caller, id_))
    answer.deliveries = _stats(await webhooks.success(call.caller, id_))
    return answer


async def resend_delivery(call: Call) -> Answer:
    """Send a delivery once more, now. The message in the queue is not affected."""
    number = call.path("number")
    if not number.isascii() or not number.isdecimal() or len(number) > 18:
        raise InvalidInput(f"{number!r} is not the number of a delivery")
    return _delivery(await call.service.webhooks.resend(call.caller, call.path("id"), int(number)))


async def change_webhook(call: Call) -> Answer:
    """Change a webhook, or rotate its secret."""
    asked = await call.read(WebhookChanges)
    changed = await call.service.webhooks.change(
        call.caller,
        call.path("id"),
        url=asked.url,
        secret=asked.secret,
        rotate_secret=asked.rotate_secret,
        enabled=asked.enabled,
        retry_s=asked.retry_s,
    )
    has_new_secret = asked.rotate_secret or asked.secret is not None
    return _answer(call, changed, with_secret=has_new_secret)


async def delete_webhook(call: Call) -> Answer:
    """Delete a webhook."""
    await call.service.webhooks.delete(call.caller, call.path("id"))
    return None


async def list_deliveries(call: Call) -> Answer:
    """List the latest deliveries of a webhook."""
    listing = listing_of(call)
    before = call.service.cursors.read_number(listing, call.query.text("cursor"))
    page = await call.service.webhooks.deliveries(
        call.caller, call.path("id"), cursor=before, limit=limit_of(call)
    )
    deliveries = [_delivery(one) for one in page.deliveries]
    cursor = cursor_of(call, listing, page.next_cursor)
    return DeliveryList(deliveries, cursor, page.damaged_log or UNSET)


def _answer(call: Call, one: Subscription, *, with_secret: bool = False) -> WebhookAnswer:
    health = call.service.webhooks.health(one.id)
    return WebhookAnswer(
        id=one.id,
        namespace=one.queue.namespace,
        queue=one.queue.name,
        url=one.url,
        style=one.style,
        group=one.group,
        retry_s=one.retry_s,
        created_at=rfc3339(one.created_at_ns),
        enabled=one.enabled,
        circuit=health.circuit,
        failures=health.failures,
        open_for_s=health.open_for_s or UNSET,
        disabled_because=one.disabled_because or UNSET,
        secret=one.secrets[0].value if with_secret and one.secrets else UNSET,
    )


def _delivery(one: Delivery) -> DeliveryAnswer:
    return DeliveryAnswer(
        number=one.number,
        message_id=one.message_id,
        attempt=one.attempt,
        at=rfc3339(one.at_ns),
        took_s=one.took_s,
        outcome=one.outcome,
        status=one.status,
        reason=one.reason or UNSET,
        retry_in_s=UNSET if one.retry_in_s is None else one.retry_in_s,
        answer=one.answer or UNSET,
        is_resent=one.is_resent,
    )


def _stats(found: DeliveryCounts) -> DeliveryStats:
    last, failed = found.last_delivered_ns, found.last_failed_ns
    return DeliveryStats(
        delivered=found.delivered,
        failed=found.failed,
        recent=found.recent,
        success_rate=UNSET if found.success_rate is None else found.success_rate,
        last_delivered_at=rfc3339(last) if last else UNSET,
        last_failed_at=rfc3339(failed) if failed else UNSET,
        p50_s=found.p50_s,
        p95_s=found.p95_s,
    )


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{API}/webhooks",
        list_all_webhooks,
        Verb.READ,
        WebhookList,
        query=(Parameter("namespace", "Only those of this namespace.", Name),),
    ),
    Endpoint("GET", _LIST, list_webhooks, Verb.READ, WebhookList, also=(404,)),
    Endpoint(
        "POST",
        _LIST,
        create_webhook,
        Verb.MANAGE,
        WebhookAnswer,
        status=201,
        body=WebhookBody,
        also=(404,),
    ),
    Endpoint("GET", _ONE, get_webhook, Verb.READ, WebhookAnswer, also=(404,)),
    Endpoint(
        "PATCH", _ONE, change_webhook, Verb.MANAGE, WebhookAnswer, body=WebhookChanges, also=(404,)
    ),
    Endpoint("DELETE", _ONE, delete_webhook, Verb.MANAGE, status=204, also=(404,)),
    Endpoint(
        "GET",
        f"{_ONE}/deliveries",
        list_deliveries,
        Verb.READ,
        DeliveryList,
        query=PAGING,
        also=(404,),
    ),
    Endpoint(
        "POST",
        f"{_ONE}/deliveries/{{number}}/resend",
        resend_delivery,
        Verb.MANAGE,
        DeliveryAnswer,
        also=(404,),
    ),
)
