"""Calls about push subscriptions."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from penstock.client.call import Call, get, nothing, post
from penstock.client.names import QueueName
from penstock.client.pages import Page, first_page
from penstock.client.reading import time_ns
from penstock.client.remote import Webhook, WebhookDelivery
from penstock.model import NS


def of_queue(queue: QueueName) -> Call[Page[Webhook]]:
    return first_page(f"{queue.path}/webhooks", "webhooks", _webhook_of, {})


def create(queue: QueueName, url: str, options: Mapping[str, Any]) -> Call[Webhook]:
    body = {"url": url, **options}
    return post(f"{queue.path}/webhooks", lambda reply: _webhook_of(reply.data), body)


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
        enabled=data["enabled"],
        details=data,
    )


def _delivery_of(data: Mapping[str, Any]) -> WebhookDelivery:
    return WebhookDelivery(
        message_id=data["message_id"],
        attempt=data["attempt"],
        at=time_ns(data["at"]) / NS,
        outcome=data["outcome"],
        status=data.get("status") or 0,
        reason=data.get("reason") or "",
    )
