"""Signatures, verified by the library that the people of Standard Webhooks publish."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from penstock.broker.webhooks.requests import (
    check_secret,
    epochqueue_headers,
    new_secret,
    standard_headers,
)
from penstock.broker.webhooks.subscription import Style
from penstock.errors import InvalidInput

BODY = '{"type": "message", "data": {"payload": "ä"}}'.encode()


def signed(*secrets: str, late_s: int = 0) -> dict[str, str]:
    now_s = int(datetime.now(UTC).timestamp())  # the library refuses what is five minutes old
    return standard_headers(secrets, id="msg-1", timestamp_s=now_s - late_s, body=BODY)


def test_the_library_verifies_a_signature() -> None:
    secret = new_secret()
    assert Webhook(secret).verify(BODY, signed(secret))["type"] == "message"


def test_another_secret_body_id_or_time_is_not_verified() -> None:
    secret = new_secret()
    verifier = Webhook(secret)
    for headers, body in [
        (signed(new_secret()), BODY),
        (signed(secret), BODY + b" "),
        ({**signed(secret), "webhook-id": "msg-2"}, BODY),
        (
            {**signed(secret), "webhook-timestamp": signed(secret, late_s=9)["webhook-timestamp"]},
            BODY,
        ),
    ]:
        with pytest.raises(WebhookVerificationError):
            verifier.verify(body, headers)


def test_while_a_secret_rotates_holders_of_either_verify() -> None:
    old, new = new_secret(), new_secret()
    headers = signed(new, old)
    assert len(headers["webhook-signature"].split(" ")) == 2
    Webhook(old).verify(BODY, headers)
    Webhook(new).verify(BODY, headers)


def test_a_plain_hmac_of_the_body_is_sent_as_well() -> None:
    secret = new_secret()
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = hmac.new(key, BODY, hashlib.sha256).hexdigest()
    assert signed(secret)["Penstock-Signature"] == f"sha256={expected}"


def test_an_epochqueue_signature_is_an_hmac_of_the_body_with_the_secret_as_it_stands() -> None:
    expected = hmac.new(b"s3cret", BODY, hashlib.sha256).hexdigest()
    assert epochqueue_headers(["s3cret"], BODY) == {"X-EpochQueue-Signature": f"sha256={expected}"}
    assert epochqueue_headers([], BODY) == {}


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "secret",
        "whsec_",
        "whsec_!!!!",
        "whsec_" + base64.b64encode(b"short").decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
    ],
)
def test_a_secret_that_is_no_secret_is_refused(secret: str) -> None:
    with pytest.raises(InvalidInput):
        check_secret(Style.STANDARD, secret)


def test_an_epochqueue_secret_is_any_text_but_not_endless() -> None:
    assert check_secret(Style.EPOCHQUEUE, "x") == "x"
    for secret in ("", "x" * 513):
        with pytest.raises(InvalidInput):
            check_secret(Style.EPOCHQUEUE, secret)


def test_new_secrets_differ() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
