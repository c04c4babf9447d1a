"""Calls about push subscriptions."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from penstock.client.address import queue_path
from penstock.client.call import Call, get, nothing, post
from penstock.client.pages import Page, first_page
from penstock.client.remote import Webhook, WebhookDelivery
from penstock.model import NS
from penstock.names import QueueName
from penstock.operations.answers import time_ns


def of_queue(queue: QueueName) -> Call[list[Webhook]]:
    return get(
        f"{queue_path(queue)}/webhooks",
        lambda reply: [_webhook_of(item) for item in reply.data["webhooks"]],
    )


def create(queue: QueueName, url: str, options: Mapping[str, Any]) -> Call[Webhook]:
    body = {"url": url, **options}
    return post(f"{queue_path(queue)}/webhooks", lambda reply: _webhook_of(reply.data), body)


def one(id: str) -> Call[Webhook]:
    return get(_path(id), lambda reply: _webhook_of(reply.data))


def change(id: str, options: Mapping[str, Any]) -> Call[Webhook]:
    return post(_path(id), lambda reply: _webhook_of(reply.data), dict(options), method="PATCH")


def delete(id: str) -> Call[None]:
    return post(_path(id), nothing, method="DELETE")


def deliveries(id: str) -> Call[Page[WebhookDelivery]]:
    return first_page(f"{_path(id)}/deliveries", "deliveries", _delivery_of, {})


def _path(id: str) -> str:
    return f"/api/v1/webhooks/{quote(str(id), safe='')}"


def _webhook_of(data: Mapping[str, Any]) -> Webhook:
    return Webhook(
        id=data["id"],
        namespace=data["namespace"],
        queue=data["queue"],
        url=data["url"],
        style=data["style"],
        group=data["group"],
        retry_s=data["retry_s"],
        created_at=time_ns(data["created_at"]) / NS,
        enabled=data["enabled"],
        circuit=data["circuit"],
        disabled_because=data.get("disabled_because", ""),
        secret=data.get("secret"),
    )


def _delivery_of(data: Mapping[str, Any]) -> WebhookDelivery:
    return WebhookDelivery(
        message_id=data["message_id"],
        attempt=data["attempt"],
        at=time_ns(data["at"]) / NS,
        took_s=data["took_s"],
        outcome=data["outcome"],
        status=data["status"],
        reason=data.get("reason", ""),
        retry_in_s=data.get("retry_in_s"),
    )
