"""What is posted for a message: the body and the signed headers, in each style."""

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock import __version__
from penstock.broker.webhooks.signing import epochqueue_headers, standard_headers
from penstock.broker.webhooks.subscription import Style, Subscription
from penstock.model import NS, LeasedMessage, Message

_FIXED = {"Content-Type": "application/json", "User-Agent": f"Penstock/{__version__}"}
_encoder = msgspec.json.Encoder()
_raw = msgspec.json.Decoder(msgspec.Raw)


def request_for(
    subscription: Subscription, leased: LeasedMessage, *, now_ns: int
) -> tuple[dict[str, str], bytes]:
    """(headers, body) of one delivery."""
    secrets = subscription.secrets_at(now_ns)
    if subscription.style is Style.EPOCHQUEUE:
        body = _encoder.encode(_epochqueue_body(subscription, leased))
        return {**_FIXED, **epochqueue_headers(secrets, body)}, body
    body = _encoder.encode(_standard_body(subscription, leased))
    signed = standard_headers(secrets, id=leased.id, timestamp_s=now_ns // NS, body=body)
    return {**_FIXED, **signed}, body


def _standard_body(subscription: Subscription, leased: LeasedMessage) -> dict[str, Any]:
    message = leased.message
    published_at = datetime.fromtimestamp(message.published_at, UTC)
    return {
        "type": "message",
        "timestamp": published_at,
        "data": {
            "id": message.id,
            "namespace": subscription.queue.namespace,
            "queue": subscription.queue.name,
            "group": leased.group,
            "attempt": leased.attempt,
            **_payload(message),
            "content_type": message.content_type,
            "headers": dict(message.headers),
            "priority": message.priority,
            "key": message.key,
        },
    }


def _payload(message: Message) -> dict[str, Any]:
    """JSON travels as it is, everything else as base64."""
    if message.content_type == "application/json":
        try:
            _raw.decode(message.payload)  # looks at all of it and makes nothing of it
            message.payload.decode()
            return {"payload": msgspec.Raw(message.payload)}
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    return {"payload_b64": base64.b64encode(message.payload).decode()}


def _epochqueue_body(subscription: Subscription, leased: LeasedMessage) -> dict[str, Any]:
    message = leased.message
    return {
        "id": message.id,
        "body": base64.b64encode(message.payload).decode(),
        "receipt_handle": leased.receipt,
        "namespace": subscription.queue.namespace,
        "queue": subscription.queue.name,
        "published_at": message.published_ns // 1_000_000,
        "metadata": dict(message.headers),
    }
