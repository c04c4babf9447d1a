"""Push subscriptions: messages are posted to URLs, signed, and settled by the answers."""

from penstock.broker.webhooks.delivery_log import Delivery, DeliveryCounts, DeliveryPage
from penstock.broker.webhooks.outcome import Circuit
from penstock.broker.webhooks.subscription import Style, Subscription
from penstock.broker.webhooks.webhooks import EndpointHealth, Webhooks

__all__ = [
    "Circuit",
    "Delivery",
    "DeliveryCounts",
    "DeliveryPage",
    "EndpointHealth",
    "Style",
    "Subscription",
    "Webhooks",
]
