"""Sending, receiving and settling messages with boto3."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import httpx2
import pytest

from penstock.broker import QueueName
from penstock.broker.access import INSIDE
from penstock.model import NS
from penstock.operations import ListConsumers
from tests.server.running import RunningServer, queue_path
from tests.server.sqs.clients import receive, refused

ALL: dict[str, Any] = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"]}


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def attribute(server: RunningServer, sqs: Any, url: str, name: str) -> int:
    return int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])


# -- one message -----------------------------------------------------------------------------------


def test_a_message_is_sent_received_and_deleted(sqs: Any, url: str) -> None:
    sent = sqs.send_message(QueueUrl=url, MessageBody="pack order 7 – now")
    assert sent["MD5OfMessageBody"] == md5("pack order 7 – now")
    assert "SequenceNumber" not in sent
    (got,) = receive(sqs, url)
    assert (got["MessageId"], got["Body"]) == (sent["MessageId"], "pack order 7 – now")
    assert got["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert set(got) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}
    assert receive(sqs, url) == []
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert [counts[name] for name in sorted(counts) if name.startswith("Approx")] == ["0"] * 3


def test_every_answer_has_a_request_id(server: RunningServer, sqs: Any, url: str) -> None:
    answer = sqs.send_message(QueueUrl=url, MessageBody="x")["ResponseMetadata"]
    assert answer["HTTPHeaders"]["x-amzn-requestid"] == answer["RequestId"]
    assert answer["HTTPHeaders"]["content-type"] == "application/x-amz-json-1.0"
    with server.client() as http:
        target = {"X-Amz-Target": "AmazonSQS.GetQueueUrl"}
        bad = http.post("/", headers=target, content=b'{"QueueName": "nothing-here"}')
    assert bad.status_code == 400
    assert bad.headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert bad.headers["x-amzn-requestid"]
    assert bad.json() == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }


def test_attributes_come_back_as_they_were_sent(sqs: Any, url: str) -> None:
    attributes = {
        "tenant": {"DataType": "String", "StringValue": "acme ü"},
        "count": {"DataType": "Number", "StringValue": "42.5"},
        "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff\x01"},
        "picture": {"DataType": "Binary.gif", "BinaryValue": b"GIF89a"},
        "kind": {"DataType": "Number.int", "StringValue": "7"},
    }
    # boto3 compares MD5OfMessageAttributes with its own, of what it sent and of what it got.
    sent = sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    assert sent["MD5OfMessageAttributes"]
    (got,) = receive(sqs, url, VisibilityTimeout=0, **ALL)
    assert got["MessageAttributes"] == attributes
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


def test_attributes_are_selected_by_name_and_prefix(sqs: Any, url: str) -> None:
    names = ["app.a", "app.b", "other"]
    value = {"DataType": "String", "StringValue": "v"}
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=dict.fromkeys(names, value))

    def selected(*wanted: str) -> set[str]:
        (got,) = receive(sqs, url, VisibilityTimeout=0, MessageAttributeNames=list(wanted))
        return set(got.get("MessageAttributes", ()))

    assert selected("other", "unknown") == {"other"}
    assert selected("app.*") == {"app.a", "app.b"}
    assert selected(".*") == selected("All") == set(names)
    assert selected() == set()


def test_a_header_of_another_interface_is_an_attribute_and_the_reverse(
    server: RunningServer, sqs: Any, queue: str, url: str
) -> None:
    with server.client() as http:
        sent = {"payload": {"n": 1}, "headers": {"tenant": "acme"}}
        assert http.post(queue_path(queue, "messages"), json=sent).is_success
        (got,) = receive(sqs, url, **ALL)
        assert (got["Body"], got["MessageAttributes"]["tenant"]) == (
            '{"n":1}',
            {"DataType": "String", "StringValue": "acme"},
        )
        value = {"DataType": "String", "StringValue": "zeta"}
        sqs.send_message(QueueUrl=url, MessageBody="y", MessageAttributes={"tenant": value})
        (leased,) = http.post(queue_path(queue, "lease"), json={}).json()["messages"]
        assert leased["headers"] == {"tenant": "zeta"}


def test_a_payload_that_is_no_text_is_base64(server: RunningServer, sqs: Any, url: str) -> None:
    name = url.rpartition("/")[2]
    with server.client() as http:
        raw = {"Content-Type": "application/octet-stream"}
        assert http.post(queue_path(name, "messages"), content=b"\xff\x00", headers=raw).is_success
    (got,) = receive(sqs, url)
    assert got["Body"] == "/wA="


def test_system_attributes(sqs: Any, url: str) -> None:
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5"}}
    sent = sqs.send_message(
        QueueUrl=url, MessageBody="x", MessageSystemAttributes=trace, MessageGroupId="tenant-1"
    )
    assert sent["MD5OfMessageSystemAttributes"]
    (first,) = receive(sqs, url, VisibilityTimeout=0, MessageSystemAttributeNames=["All"])
    (got,) = receive(sqs, url, AttributeNames=["All"])
    assert first["Attributes"]["ApproximateReceiveCount"] == "1"
    assert got["Attributes"]["ApproximateReceiveCount"] == "2"
    assert got["Attributes"]["AWSTraceHeader"] == "Root=1-5"
    assert got["Attributes"]["MessageGroupId"] == "tenant-1"
    sent_ms = int(got["Attributes"]["SentTimestamp"])
    assert sent_ms <= int(got["Attributes"]["ApproximateFirstReceiveTimestamp"])
    assert set(got["Attributes"]) == {
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "AWSTraceHeader",
        "MessageGroupId",
    }
    assert "MessageAttributes" not in got


def test_messages_of_one_group_in_a_standard_queue_are_delivered_side_by_side(
    sqs: Any, url: str
) -> None:
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(number), MessageGroupId="tenant-1")
    assert len(receive(sqs, url, MaxNumberOfMessages=10)) == 3


def test_a_delayed_message_is_not_visible_yet(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=900)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "600"})
    sqs.send_message(QueueUrl=url, MessageBody="by the queue's delay")
    sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    (got,) = receive(sqs, url, MaxNumberOfMessages=10)
    assert got["Body"] == "now"
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessagesDelayed"] == "2"
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "1"


# -- visibility ------------------------------------------------------------------------------------


def test_visibility_of_zero_makes_a_message_visible_at_once(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (first,) = receive(sqs, url, VisibilityTimeout=600)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0
    )
    (again,) = receive(sqs, url, AttributeNames=["ApproximateReceiveCount"])
    assert again["Attributes"] == {"ApproximateReceiveCount": "2"}
    with refused("AWS.SimpleQueueService.MessageNotInflight"):
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=5
        )
    # To delete with an old handle is no error, and has no effect.
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=again["ReceiptHandle"], VisibilityTimeout=0
    )
    assert len(receive(sqs, url)) == 1


def test_a_message_that_was_made_visible_can_still_be_deleted(sqs: Any, url: str) -> None:
    for body in ("one", "two"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
        (got,) = receive(sqs, url)
        handle = {"QueueUrl": url, "ReceiptHandle": got["ReceiptHandle"]}
        sqs.change_message_visibility(**handle, VisibilityTimeout=0)
        if body == "two":
            (again,) = receive(sqs, url)  # it is another's now
            sqs.delete_message(**handle)
            sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=again["ReceiptHandle"], VisibilityTimeout=0
            )
            assert len(receive(sqs, url)) == 1
        else:
            sqs.delete_message(**handle)
            sqs.delete_message(**handle)
            assert receive(sqs, url) == []


def test_visibility_can_be_made_longer_and_shorter(
    server: RunningServer, sqs: Any, url: str
) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (got,) = receive(sqs, url, VisibilityTimeout=1)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=43200
    )
    assert lease_left_s(server, url) > 43_000
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=1
    )
    (again,) = receive(sqs, url, WaitTimeSeconds=20)
    assert again["MessageId"] == got["MessageId"]


def lease_left_s(server: RunningServer, url: str) -> float:
    """How long the oldest lease of a queue still lasts, as the broker knows it."""
    name = QueueName("default", url.rpartition("/")[2])

    async def left_s() -> float:
        broker = server.server.broker
        consumers = await broker.run(INSIDE, ListConsumers(), name)
        return consumers.held[0].deadline_ns / NS - broker.clock.now_ns() / NS

    return server.call(left_s())


def test_a_late_delete_counts_if_the_message_was_not_received_again(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (got,) = receive(sqs, url, VisibilityTimeout=0)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert receive(sqs, url, WaitTimeSeconds=1) == []


def test_a_receive_waits_for_a_message(sqs: Any, url: str) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(receive, sqs, url, WaitTimeSeconds=20)
        sqs.send_message(QueueUrl=url, MessageBody="x")
        (got,) = waiting.result(30)
    assert got["Body"] == "x"


def test_a_queue_has_a_wait_and_a_visibility_of_its_own(sqs: Any, queue: str) -> None:
    made = sqs.create_queue(
        QueueName=queue,
        Attributes={"ReceiveMessageWaitTimeSeconds": "20", "VisibilityTimeout": "0"},
    )
    url = made["QueueUrl"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(receive, sqs, url)
        sqs.send_message(QueueUrl=url, MessageBody="x")
        (first,) = waiting.result(30)
    (again,) = receive(sqs, url, VisibilityTimeout=30)
    assert again["MessageId"] == first["MessageId"]
    assert receive(sqs, url, WaitTimeSeconds=0) == []


# -- batches ---------------------------------------------------------------------------------------


def test_a_batch_is_sent_received_changed_and_deleted(sqs: Any, url: str) -> None:
    entries = [{"Id": f"e{n}", "MessageBody": f"body {n}"} for n in range(10)]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in sent["Successful"]] == [f"e{n}" for n in range(10)]
    assert "Failed" not in sent
    got = receive(sqs, url, MaxNumberOfMessages=10)
    assert [one["Body"] for one in got] == [f"body {n}" for n in range(10)]
    handles = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(got)]
    hidden = sqs.change_message_visibility_batch(
        QueueUrl=url, Entries=[{**one, "VisibilityTimeout": 0} for one in handles[:5]]
    )
    assert len(hidden["Successful"]) == 5
    assert len(receive(sqs, url, MaxNumberOfMessages=10)) == 5
    gone = sqs.delete_message_batch(QueueUrl=url, Entries=handles[5:])
    assert [one["Id"] for one in gone["Successful"]] == ["5", "6", "7", "8", "9"]


def test_an_entry_that_is_wrong_fails_alone(sqs: Any, url: str) -> None:
    sent = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "good", "MessageBody": "x"},
            {"Id": "bad", "MessageBody": "\x00"},
            {"Id": "late", "MessageBody": "x", "DelaySeconds": 901},
        ],
    )
    assert [one["Id"] for one in sent["Successful"]] == ["good"]
    codes = {one["Id"]: (one["Code"], one["SenderFault"]) for one in sent["Failed"]}
    assert codes == {
        "bad": ("InvalidMessageContents", True),
        "late": ("InvalidParameterValue", True),
    }
    (got,) = receive(sqs, url)
    gone = sqs.delete_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": got["ReceiptHandle"]},
            {"Id": "b", "ReceiptHandle": "nonsense"},
        ],
    )
    assert [one["Id"] for one in gone["Successful"]] == ["a"]
    assert [one["Code"] for one in gone["Failed"]] == ["ReceiptHandleIsInvalid"]


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "EmptyBatchRequest"),
        ([("a", "x"), ("a", "y")], "BatchEntryIdsNotDistinct"),
        ([("", "x")], "InvalidBatchEntryId"),
        ([("a b", "x")], "InvalidBatchEntryId"),
        ([(str(n), "x") for n in range(11)], "TooManyEntriesInBatchRequest"),
        ([(str(n), "x" * 600_000) for n in range(2)], "BatchRequestTooLong"),
    ],
    ids=str,
)
def test_a_batch_that_is_refused_as_a_whole(
    sqs: Any, url: str, entries: list[tuple[str, str]], code: str
) -> None:
    with refused(f"AWS.SimpleQueueService.{code}"):
        sqs.send_message_batch(
            QueueUrl=url, Entries=[{"Id": id_, "MessageBody": body} for id_, body in entries]
        )
    assert receive(sqs, url) == []


# -- what SQS refuses ------------------------------------------------------------------------------

_STRING = {"DataType": "String", "StringValue": "v"}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"MessageBody": ""}, "MissingParameter"),
        ({"MessageBody": "\x0b"}, "InvalidMessageContents"),
        ({"MessageBody": "\uffff"}, "InvalidMessageContents"),
        ({"MessageBody": "x" * (1 << 20) + "x"}, "InvalidParameterValue"),
        ({"DelaySeconds": 901}, "InvalidParameterValue"),
        ({"DelaySeconds": -1}, "InvalidParameterValue"),
        ({"MessageDeduplicationId": "1"}, "InvalidParameterValue"),
        ({"MessageGroupId": "a b"}, "InvalidParameterValue"),
        ({"MessageAttributes": {f"a{n}": _STRING for n in range(11)}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"AWS.x": _STRING}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"a..b": _STRING}}, "InvalidParameterValue"),
        ({"MessageAttributes": {".a": _STRING}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"a.": _STRING}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"a b": _STRING}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"a" * 257: _STRING}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"a": {"DataType": "String", "StringValue": ""}}}, "Inv"),
        ({"MessageAttributes": {"a": {"DataType": "Number", "StringValue": "x"}}}, "Inv"),
        ({"MessageAttributes": {"a": {"DataType": "Other", "StringValue": "x"}}}, "Inv"),
        ({"MessageAttributes": {"a": {"DataType": "Binary"}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"a": {"DataType": "String", "StringValue": "x" * (1 << 20)}}}, "I"),
        ({"MessageAttributes": {"a": {**_STRING, "StringListValues": ["x"]}}}, "AWS"),
        ({"MessageSystemAttributes": {"Other": _STRING}}, "InvalidParameterValue"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_message_that_is_refused(sqs: Any, url: str, options: dict[str, Any], code: str) -> None:
    with refused(f"{code}.*"):
        sqs.send_message(**{"QueueUrl": url, "MessageBody": "x", **options})
    assert receive(sqs, url) == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"MaxNumberOfMessages": 0}, "InvalidParameterValue"),
        ({"MaxNumberOfMessages": 11}, "InvalidParameterValue"),
        ({"VisibilityTimeout": 43201}, "InvalidParameterValue"),
        ({"VisibilityTimeout": -1}, "InvalidParameterValue"),
        ({"WaitTimeSeconds": 21}, "InvalidParameterValue"),
        ({"AttributeNames": ["Unknown"]}, "InvalidAttributeName"),
    ],
    ids=str,
)
def test_a_receive_that_is_refused(sqs: Any, url: str, options: dict[str, Any], code: str) -> None:
    with refused(code):
        sqs.receive_message(QueueUrl=url, **options)


def test_a_handle_belongs_to_its_queue(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (got,) = receive(sqs, url)
    other = sqs.create_queue(QueueName="another-queue")["QueueUrl"]
    for handle in (got["ReceiptHandle"], "nonsense", got["ReceiptHandle"][:-1]):
        with refused("ReceiptHandleIsInvalid"):
            sqs.delete_message(QueueUrl=other, ReceiptHandle=handle)
        with refused("ReceiptHandleIsInvalid"):
            sqs.change_message_visibility(QueueUrl=other, ReceiptHandle=handle, VisibilityTimeout=1)
    with refused("InvalidParameterValue"):
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=43201
        )


@pytest.mark.parametrize("url", ["http://x/default/not-there", "http://x/a b/c", "http://x/no/q"])
def test_a_queue_that_does_not_exist(sqs: Any, url: str) -> None:
    missing = "AWS.SimpleQueueService.NonExistentQueue"
    with refused(missing):
        sqs.send_message(QueueUrl=url, MessageBody="x")
    with refused(missing):
        sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)
    with refused(missing):
        sqs.delete_message(QueueUrl=url, ReceiptHandle="x")
    with refused(missing):
        sqs.purge_queue(QueueUrl=url)
    assert not [one for one in sqs.list_queues().get("QueueUrls", ()) if "not-there" in one]


def test_a_message_of_the_largest_size(sqs: Any, url: str) -> None:
    body = "ü" * (1 << 19)
    sqs.send_message(QueueUrl=url, MessageBody=body)
    (got,) = receive(sqs, url)
    assert got["Body"] == body


def test_the_queue_says_how_large_a_message_may_be(sqs: Any, queue: str) -> None:
    made = sqs.create_queue(QueueName=queue, Attributes={"MaximumMessageSize": "1024"})
    url = made["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x" * 1024)
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=url, MessageBody="x" * 1025)
    value = {"DataType": "String", "StringValue": "v" * 20}
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=url, MessageBody="x" * 1010, MessageAttributes={"a": value})


# -- more than one message -------------------------------------------------------------------------


def test_purge_removes_waiting_delayed_and_received_messages(sqs: Any, url: str) -> None:
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=60)
    (got,) = receive(sqs, url)
    sqs.purge_queue(QueueUrl=url)
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert [counts[name] for name in sorted(counts) if name.startswith("Approx")] == ["0"] * 3
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])


def test_a_message_expires_after_the_retention_period(
    server: RunningServer, sqs: Any, queue: str
) -> None:
    made = sqs.create_queue(QueueName=queue, Attributes={"MessageRetentionPeriod": "60"})
    sqs.send_message(QueueUrl=made["QueueUrl"], MessageBody="x")
    with server.client() as http:
        (row,) = http.get(queue_path(queue, "messages")).json()["messages"]
    times = [datetime.fromisoformat(row[name]) for name in ("published_at", "expires_at")]
    assert abs((times[1] - times[0]).total_seconds() - 60) < 1


def test_a_client_that_is_gone_gets_no_message(server: RunningServer, sqs: Any, url: str) -> None:
    waiting = server.server.broker.waiting
    with server.wire() as wire:
        body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
        wire.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        server.until(lambda: len(waiting) == 1)
    server.until(lambda: len(waiting) == 0)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (got,) = receive(sqs, url, AttributeNames=["ApproximateReceiveCount"])
    assert got["Attributes"] == {"ApproximateReceiveCount": "1"}


def test_the_query_protocol_is_refused_with_the_reason(server: RunningServer) -> None:
    with server.client() as http:
        answer: httpx2.Response = http.post("/", data={"Action": "ListQueues"})
    assert answer.status_code == 404
    assert "query protocol" in answer.json()["message"]
