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
    request_for,
    standard_headers,
)
from penstock.broker.webhooks.subscription import Style
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage, Message, Ticket
from tests.broker.webhooks.test_outcome import STANDARD

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


# -- the context of a trace ------------------------------------------------------------------------

PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ({}, {}),
        ({"traceparent": PARENT}, {"traceparent": PARENT}),
        (
            {"traceparent": PARENT, "tracestate": "a=b"},
            {"traceparent": PARENT, "tracestate": "a=b"},
        ),
        ({"traceparent": PARENT, "tracestate": "a\r\nx: y"}, {"traceparent": PARENT}),
        ({"traceparent": f"{PARENT}\r\nx: y"}, {}),
        ({"tracestate": "a=b"}, {}),
    ],
)
def test_the_trace_context_of_a_message_is_in_the_headers_of_the_request(
    style: Style, headers: dict[str, str], sent: dict[str, str]
) -> None:
    message = Message("01KG9Q3ZC0000000G00000001A", 1, b"1", 5, 0, 0, 0, None, headers, None, 0)
    ticket = Ticket(1, 0, "main", 1, 0, 0, settler=None)  # type: ignore[arg-type]
    subscription = STANDARD._replace(style=style).with_secret(new_secret(), 0)
    found, _ = request_for(subscription, LeasedMessage(message, ticket), now_ns=0)
    assert {name: value for name, value in found.items() if name.startswith("trace")} == sent
