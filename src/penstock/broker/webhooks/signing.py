"""Secrets and signatures: how an endpoint knows that a delivery is from here, and whole."""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence

from penstock.errors import InvalidInput

PREFIX = "whsec_"
_KEY_BYTES = 32
_LEAST_KEY_BYTES, _MOST_KEY_BYTES = 24, 64  # what Standard Webhooks allows
_LONGEST_EPOCHQUEUE_SECRET = 512


def new_secret() -> str:
    """A secret nobody has seen before."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def check_standard_secret(secret: str) -> str:
    """`whsec_` and the base64 of 24 to 64 bytes; InvalidInput otherwise."""
    key = _key(secret)
    if not _LEAST_KEY_BYTES <= len(key) <= _MOST_KEY_BYTES:
        raise InvalidInput(
            f"the secret has {len(key)} bytes; {_LEAST_KEY_BYTES} to {_MOST_KEY_BYTES} are allowed"
        )
    return secret


def check_epochqueue_secret(secret: str) -> str:
    """Any text that is not too long: it is the key as it stands."""
    if not secret or len(secret.encode()) > _LONGEST_EPOCHQUEUE_SECRET:
        raise InvalidInput(f"a secret has 1 to {_LONGEST_EPOCHQUEUE_SECRET} bytes")
    return secret


def standard_headers(
    current: Sequence[str], *, id: str, timestamp_s: int, body: bytes
) -> dict[str, str]:
    """The headers of Standard Webhooks, one signature for each secret, the newest first.

    `Penstock-Signature` is for endpoints that know only a plain HMAC of the body.
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
    """One signature, by the newest secret; none where the subscription has no secret."""
    if not current:
        return {}
    return {"X-EpochQueue-Signature": "sha256=" + _hmac(current[0].encode(), body).hexdigest()}


def _hmac(key: bytes, data: bytes) -> hmac.HMAC:
    return hmac.new(key, data, hashlib.sha256)


def _key(secret: str) -> bytes:
    if not secret.startswith(PREFIX):
        raise InvalidInput(f"a secret begins with {PREFIX} and goes on with the key in base64")
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"what follows {PREFIX} in the secret is not base64") from None
