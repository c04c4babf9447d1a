"""The webhooks page matches the code."""

import json
import re
import time

from penstock.broker.settings import BrokerSettings
from penstock.broker.webhooks import (
    addresses,
    delivery_log,
    outcome,
    sending,
    subscription,
)
from penstock.broker.webhooks import webhooks as module
from penstock.broker.webhooks.requests import new_secret, request_for, standard_headers
from penstock.model import LeasedMessage, Message, Ticket
from penstock.server.rest.webhooks import ENDPOINTS, WebhookBody
from tests.broker.webhooks.test_outcome import STANDARD
from tests.docs.pages import DOCS, rows_with, unquoted

PAGE = (DOCS / "webhooks.md").read_text()
WORDS = " ".join(PAGE.split())


def test_numbers_match_the_code() -> None:
    settings = BrokerSettings()
    first, second, third, fourth, last = (f"{wait:g} s" for wait in outcome.STANDARD_RETRY_S)
    assert f"after {first}, {second}, {third}, {fourth} and then every {last}" in WORDS
    assert "1 s, 5 s and 30 s" in WORDS
    assert outcome.EPOCHQUEUE_RETRY_S == (1, 5, 30)
    assert f"after {outcome.FAILURES_TO_OPEN} failures in a row" in WORDS
    assert f"After {outcome.FIRST_OPEN_S:g} s it is *half open*" in WORDS
    assert f"twice as long, up to {outcome.MAX_OPEN_S:g} s" in WORDS
    assert outcome.MAX_RETRY_AFTER_S == 86400 and "at most a day" in WORDS
    assert f"`webhook_timeout_s` ({settings.webhook_timeout_s:g} s)" in WORDS
    assert f"`webhook_concurrency` ({settings.webhook_concurrency})" in WORDS
    assert f"`webhook_log` ({settings.webhook_log})" in WORDS
    assert f"saved every {delivery_log.SAVE_AFTER_S:g} s" in WORDS
    assert f"For {subscription.OVERLAP_S / 3600:g} hours" in WORDS
    assert f"At most {subscription.MAX_SECRETS} secrets" in WORDS
    assert sending.MAX_ANSWER_BYTES == 64 * 1024
    assert f"{addresses.MAX_URL} characters" in WORDS
    assert f"| {subscription.MAX_SUBSCRIPTIONS} |" in PAGE
    assert f"{module.MAX_RETRY_WAITS}, each at most 7 days" in WORDS


def test_every_field_and_route_is_listed() -> None:
    fields = {unquoted(row["field"]) for row in rows_with("webhooks.md", "field", "means")}
    assert fields == set(WebhookBody.__struct_fields__)
    for endpoint in ENDPOINTS:
        shown = endpoint.path.replace("/api/v1/namespaces/{namespace}", "…")
        if endpoint.method != "POST":
            assert f"`{endpoint.method} {shown}`" in PAGE


def test_the_example_has_the_fields_of_a_delivery() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    shown = json.loads(example)
    message = Message(
        "01KG9Q3ZC0000000G00000001A",
        1,
        b'{"order": 17}',
        5,
        0,
        0,
        0,
        None,
        {},
        "application/json",
        0,
    )
    ticket = Ticket(1, 0, "main", 1, 0, 0, settler=None)  # type: ignore[arg-type]
    signed = STANDARD.with_secret(new_secret(), 0)
    _, body = request_for(signed, LeasedMessage(message, ticket), now_ns=0)
    sent = json.loads(body)
    assert (list(sent), list(sent["data"])) == (list(shown), list(shown["data"]))


def test_the_signature_check_accepts_only_genuine_requests() -> None:
    (check,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(check, names)
    is_genuine = names["is_genuine"]
    assert callable(is_genuine)
    secret, now_s = new_secret(), int(time.time())
    old, new = new_secret(), secret
    headers = standard_headers([old, new], id="1", timestamp_s=now_s, body=b"body")
    assert is_genuine(secret, headers, b"body")
    assert not is_genuine(secret, headers, b"other")
    assert not is_genuine(new_secret(), headers, b"body")
    late = standard_headers([secret], id="1", timestamp_s=now_s - 600, body=b"body")
    assert not is_genuine(secret, late, b"body")
