"""The request parser of SQS takes anything: malformed JSON, wrong types, large and odd values.

Every answer is one of SQS, no call hangs, and the server goes on serving.
"""

import json
import string
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.server.sqs.actions import ACTIONS, MAX_BODY_BYTES
from penstock.server.sqs.attributes import NAMES
from penstock.server.sqs.errors import SqsError
from penstock.server.sqs.message_attributes import attributes_of, md5_of
from penstock.server.sqs.names import queue_of_arn, queue_of_url
from penstock.server.sqs.signatures import read_signature, region_of
from tests.server.running import RunningServer

FIELDS = (
    *("QueueUrl", "QueueName", "Attributes", "AttributeNames", "MessageBody", "MessageAttributes"),
    *("MessageSystemAttributes", "MessageGroupId", "MessageDeduplicationId", "DelaySeconds"),
    *("ReceiptHandle", "VisibilityTimeout", "WaitTimeSeconds", "MaxNumberOfMessages", "Entries"),
    *("MaxResults", "NextToken", "QueueNamePrefix", "Tags", "TagKeys", "tags", "TaskHandle"),
    *("SourceArn", "DestinationArn", "MessageAttributeNames", "QueueOwnerAWSAccountId"),
    "MaxNumberOfMessagesPerSecond",
)
text = st.text(max_size=20) | st.sampled_from(["All", "http://x/default/fuzz", "fuzz", "a" * 300])
# No wait, so that no example takes 20 s.
number = st.integers(-3, 12) | st.integers() | st.just(1 << 70)
json_values = st.recursive(
    st.none() | st.booleans() | number | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
attribute = st.fixed_dictionaries(
    {"DataType": st.sampled_from(["String", "Number", "Binary", "Binary.x", ""]) | text},
    optional={"StringValue": text, "BinaryValue": text, "StringListValues": json_values},
)
likely = {
    "QueueUrl": st.sampled_from(["http://x/default/fuzz", "http://x/default/fuzz.fifo", "fuzz"]),
    "QueueName": st.sampled_from(["fuzz", "fuzz.fifo"]) | text,
    "Attributes": st.dictionaries(st.sampled_from(sorted(NAMES)) | text, text, max_size=3),
    "MessageAttributes": st.dictionaries(text, attribute, max_size=3),
    "MessageSystemAttributes": st.dictionaries(text, attribute, max_size=2),
    "MessageBody": text,
    "WaitTimeSeconds": st.just(0) | st.integers(-5, -1) | st.integers(21),
    "SourceArn": st.just("arn:aws:sqs:us-east-1:default:fuzz") | text,
    "Entries": st.lists(
        st.fixed_dictionaries(
            {"Id": text | st.sampled_from("abc")},
            optional={"MessageBody": text, "ReceiptHandle": text, "VisibilityTimeout": number},
        ),
        max_size=3,
    ),
}


def _waits(body: dict[str, Any]) -> bool:
    wait_s = body.get("WaitTimeSeconds")
    return isinstance(wait_s, int) and 0 < wait_s <= 20


bodies: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {}, optional={name: likely.get(name, json_values) | json_values for name in FIELDS}
).filter(lambda body: not _waits(body))
relaxed = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx2.Client]:
    with server.client() as client:
        for name in ("fuzz", "fuzz.fifo"):
            given_ = {"FifoQueue": "true"} if name.endswith("fifo") else {}
            post(client, "CreateQueue", {"QueueName": name, "Attributes": given_})
        yield client


def post(http: httpx2.Client, action: str, body: Any) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = http.post("/", headers={"X-Amz-Target": f"AmazonSQS.{action}"}, content=content)
    assert answer.headers["x-amzn-requestid"]
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"
    assert answer.status_code in (200, 400, 403, 404, 413), answer.text
    if answer.status_code != 200:
        assert set(answer.json()) == {"__type", "message"}
        assert answer.headers["x-amzn-query-error"].endswith(";Sender")
    return answer


@given(action=st.sampled_from(sorted(ACTIONS)), body=bodies)
@relaxed
def test_any_fields_have_an_answer(http: httpx2.Client, action: str, body: Any) -> None:
    post(http, action, body)


@given(
    action=st.sampled_from(sorted(ACTIONS)),
    body=st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()),
)
@relaxed
def test_any_bytes_have_an_answer(http: httpx2.Client, action: str, body: bytes) -> None:
    post(http, action, body)


@given(cut=st.integers(0, 100), action=st.sampled_from(["SendMessage", "SendMessageBatch"]))
@relaxed
def test_a_truncated_body_is_refused(http: httpx2.Client, cut: int, action: str) -> None:
    entry = {"Id": "a", "MessageBody": "x", "MessageAttributes": {}}
    whole = json.dumps({"QueueUrl": "http://x/default/fuzz", **entry, "Entries": [entry]}).encode()
    answer = post(http, action, whole[: min(cut, len(whole) - 1)])
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MissingRequiredParameterException"),
        (b"{}", "MissingRequiredParameterException"),
        (b"[]", "SerializationException"),
        (b"null", "SerializationException"),
        (b'{"QueueUrl": 7, "MessageBody": "x"}', "SerializationException"),
        (b'{"QueueUrl": "http://x/default/fuzz", "MessageBody": 7}', "SerializationException"),
        (b'{"QueueUrl": "http://x/default/fuzz", "MessageBody": "\xff"}', "SerializationException"),
        (b'{"QueueUrl": "http://x/default/fuzz", "MessageBody": "\\ud800"}', "Serialization"),
        (b"[" * 100_000, "SerializationException"),
        (b'{"a": ' * 100_000, "SerializationException"),
        (b'{"QueueUrl": "' + b"x" * 100_000 + b'", "MessageBody": "x"}', "InvalidAddress"),
        (b'{"QueueUrl": "http://[", "MessageBody": "x"}', "InvalidAddress"),
        (b'{"QueueUrl": "/a/..", "MessageBody": "x"}', "QueueDoesNotExist"),
        (b" " * (MAX_BODY_BYTES + 1), "RequestEntityTooLargeException"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_body(http: httpx2.Client, body: bytes, code: str) -> None:
    answer = post(http, "SendMessage", body)
    assert code in answer.json()["__type"]


@pytest.mark.parametrize("target", ["", "SendMessage", "AmazonSQS.", "AmazonSQS.Nope", "\xff"])
def test_a_bad_target(http: httpx2.Client, target: str) -> None:
    headers = {b"X-Amz-Target": target.encode("latin-1")}
    answer = http.post("/", headers=headers, content=b"{}")
    assert answer.status_code == 404
    assert answer.json()["__type"].endswith("#UnknownOperationException")


# -- parsers alone ---------------------------------------------------------------------------------


@given(st.text() | st.lists(st.text(string.printable, max_size=8), max_size=8).map(":".join))
@settings(max_examples=300)
def test_any_arn_is_read_or_refused(arn: str) -> None:
    queue_of_arn(arn)


@given(st.text() | st.text(string.printable).map("http://x/".__add__))
@settings(max_examples=300)
def test_any_url_is_read_or_refused(url: str) -> None:
    try:
        queue_of_url(url)
    except SqsError as error:
        assert error.code in ("InvalidAddress", "QueueDoesNotExist")


@given(st.text(string.printable), st.text(string.printable))
@settings(max_examples=300)
def test_any_authorization_is_read_or_refused(rest: str, date: str) -> None:
    headers = {
        b"authorization": b"AWS4-HMAC-SHA256 " + rest.encode("latin-1"),
        b"x-amz-date": date.encode("latin-1"),
    }
    region_of(headers)
    try:
        read_signature(headers)
    except SqsError as error:
        assert error.code == "IncompleteSignatureException"


@given(st.dictionaries(st.text() | st.just("AWS.types"), st.text()), st.lists(st.text()))
@settings(max_examples=300)
def test_any_headers_are_attributes(headers: dict[str, str], wanted: list[str]) -> None:
    """Other interfaces may have written them."""
    md5_of(attributes_of(headers, [*wanted, "All"]))
