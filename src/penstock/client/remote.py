"""What a broker has beyond what a queue has: namespaces, queues, webhooks."""

from collections.abc import Mapping, Sequence
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
    style: str  # what deliveries look like: "standard" or "epochqueue"
    group: str
    retry_s: Sequence[float]  # the waits after the first, second … failure; the last one repeats
    created_at: float  # Unix seconds
    enabled: bool
    circuit: str  # "closed": all is well; "open": it fails, and is left alone; "half_open"
    disabled_because: str
    secret: str | None  # shown only when it is made or changed


class WebhookDelivery(NamedTuple):
    """One attempt to push one message."""

    message_id: str
    attempt: int
    at: float  # Unix seconds
    took_s: float
    outcome: str  # "delivered", "retry", "dead" or "disabled"
    status: int  # of the answer; 0: there was none
    reason: str
    retry_in_s: float | None
