"""Build the request of a delivery: the body and the signed headers, in each style."""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock import __version__
from penstock.broker.webhooks.subscription import Style, Subscription
from penstock.errors import InvalidInput
from penstock.model import NS, LeasedMessage, Message

SECRET_PREFIX = "whsec_"
_KEY_BYTES = 32
_MIN_KEY_BYTES, _MAX_KEY_BYTES = 24, 64  # the limits of Standard Webhooks
_MAX_EPOCHQUEUE_SECRET_BYTES = 512
_FIXED = {"Content-Type": "application/json", "User-Agent": f"Penstock/{__version__}"}
_TRACEPARENT = re.compile(r"[0-9a-f]{2}(-[0-9a-f]{2,32}){3}", re.ASCII)
_TRACESTATE = re.compile(r"[ -~]{1,512}", re.ASCII)  # nothing that could end the header
_encoder = msgspec.json.Encoder()
_raw = msgspec.json.Decoder(msgspec.Raw)


def request_for(
    subscription: Subscription, leased: LeasedMessage, *, now_ns: int
) -> tuple[dict[str, str], bytes]:
    """Return (headers, body) of one delivery."""
    current = subscription.secrets_at(now_ns)
    if subscription.style is Style.EPOCHQUEUE:
        body = _encoder.encode(_epochqueue_body(subscription, leased))
        signed = epochqueue_headers(current, body)
        return {**_FIXED, **_trace_headers(leased.message), **signed}, body
    body = _encoder.encode(_standard_body(subscription, leased))
    signed = standard_headers(current, id=leased.id, timestamp_s=now_ns // NS, body=body)
    return {**_FIXED, **_trace_headers(leased.message), **signed}, body


def _trace_headers(message: Message) -> dict[str, str]:
    """Return the trace context that a message carries, so that the endpoint continues the trace."""
    parent = message.headers.get("traceparent")
    if parent is None or _TRACEPARENT.fullmatch(parent) is None:
        return {}
    state = message.headers.get("tracestate", "")
    if _TRACESTATE.fullmatch(state) is None:
        return {"traceparent": parent}
    return {"traceparent": parent, "tracestate": state}


# -- bodies ----------------------------------------------------------------------------------------


def _standard_body(subscription: Subscription, leased: LeasedMessage) -> dict[str, Any]:
    message = leased.message
    return {
        "type": "message",
        "timestamp": datetime.fromtimestamp(message.published_at, UTC),
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
    """Return a JSON payload as it is, any other payload as base64."""
    if message.content_type == "application/json":
        try:
            _raw.decode(message.payload)  # validates all of it without building objects
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


# -- secrets and signatures ------------------------------------------------------------------------


def new_secret() -> str:
    """Return a new random secret."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def check_secret(style: Style, secret: str) -> str:
    """Return the secret. Raise InvalidInput if it cannot sign deliveries of this style.

    A standard secret is `whsec_` and the base64 of 24 to 64 bytes; an EpochQueue secret is any
    text of up to 512 bytes.
    """
    if style is Style.EPOCHQUEUE:
        if not secret or len(secret.encode()) > _MAX_EPOCHQUEUE_SECRET_BYTES:
            raise InvalidInput(f"a secret has 1 to {_MAX_EPOCHQUEUE_SECRET_BYTES} bytes")
        return secret
    size = len(_key(secret))
    if not _MIN_KEY_BYTES <= size <= _MAX_KEY_BYTES:
        raise InvalidInput(
            f"the secret has {size} bytes; {_MIN_KEY_BYTES} to {_MAX_KEY_BYTES} are allowed"
        )
    return secret


def standard_headers(
    current: Sequence[str], *, id: str, timestamp_s: int, body: bytes
) -> dict[str, str]:
    """Return the headers of Standard Webhooks: one signature for each secret, newest first.

    `Penstock-Signature` is a plain HMAC of the body, for endpoints that know nothing else.
    """
    signed = b"%s.%d.%s" % (id.encode(), timestamp_s, body)
    signatures = (
        "v1," + base64.b64encode(_hmac(_key(secret), signed).digest()).decode()
        for secret in current
    )
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(signatures),
        "Penstock-Signature": "sha256=" + _hmac(_key(current[0]), body).hexdigest(),
    }


def epochqueue_headers(current: Sequence[str], body: bytes) -> dict[str, str]:
    """Return the signature by the newest secret; nothing if the subscription has no secret."""
    if not current:
        return {}
    return {"X-EpochQueue-Signature": "sha256=" + _hmac(current[0].encode(), body).hexdigest()}


def _hmac(key: bytes, data: bytes) -> hmac.HMAC:
    return hmac.new(key, data, hashlib.sha256)


def _key(secret: str) -> bytes:
    if not secret.startswith(SECRET_PREFIX):
        raise InvalidInput(f"a secret is {SECRET_PREFIX} followed by the key in base64")
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"the secret's part after {SECRET_PREFIX} is not base64") from None
