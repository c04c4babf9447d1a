"""What a broker has beyond what a queue has: namespaces, queues, webhooks."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.queue.settings import QueueSettings


class QueueDetails(NamedTuple):
    """A queue of a broker."""

    namespace: str
    name: str
    created_at: float  # Unix seconds
    settings: QueueSettings


class NamespaceDetails(NamedTuple):
    """A namespace of a broker."""

    name: str
    created_at: float  # Unix seconds
    defaults: Mapping[str, Any]  # settings that its new queues begin with
    max_queues: int  # 0: no quota
    max_bytes: int


class Webhook(NamedTuple):
    """A push subscription of a queue."""

    id: str
    namespace: str
    queue: str
    url: str
    enabled: bool
    details: Mapping[str, Any]  # all that the broker says about it, the above included


class WebhookDelivery(NamedTuple):
    """One attempt to push one message."""

    message_id: str
    attempt: int
    at: float  # Unix seconds
    outcome: str
    status: int  # of the answer; 0: there was none
    reason: str
