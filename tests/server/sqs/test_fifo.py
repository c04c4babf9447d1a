"""FIFO queues of SQS: order within a group, and deduplication."""

from typing import Any

import pytest

from tests.server.sqs.clients import receive, refused


def send(sqs: Any, url: str, body: str, group: str = "g", id: str | None = None) -> dict[str, Any]:
    dedup = {} if id is None else {"MessageDeduplicationId": id}
    answer = sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **dedup)
    return dict(answer)


def delete(sqs: Any, url: str, got: dict[str, Any]) -> None:
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])


def test_a_group_is_delivered_in_order_one_at_a_time(sqs: Any, fifo: str) -> None:
    for number in range(3):
        send(sqs, fifo, f"a{number}", "a", f"a{number}")
    send(sqs, fifo, "b0", "b", "b0")
    first = receive(sqs, fifo, MaxNumberOfMessages=10, AttributeNames=["All"])
    assert [one["Body"] for one in first] == ["a0", "b0"]
    assert [one["Attributes"]["MessageGroupId"] for one in first] == ["a", "b"]
    assert receive(sqs, fifo) == []
    sqs.change_message_visibility(
        QueueUrl=fifo, ReceiptHandle=first[0]["ReceiptHandle"], VisibilityTimeout=0
    )
    (again,) = receive(sqs, fifo)
    assert again["Body"] == "a0"  # not overtaken by a1
    delete(sqs, fifo, again)
    (second,) = receive(sqs, fifo)
    assert second["Body"] == "a1"


def test_sequence_numbers_grow(sqs: Any, fifo: str) -> None:
    sent = [send(sqs, fifo, str(n), f"g{n}", str(n))["SequenceNumber"] for n in range(3)]
    got = receive(sqs, fifo, MaxNumberOfMessages=10, AttributeNames=["SequenceNumber"])
    assert [one["Attributes"]["SequenceNumber"] for one in got] == sent == sorted(sent)
    assert {len(number) for number in sent} == {20}


def test_a_duplicate_is_accepted_and_not_delivered(sqs: Any, fifo: str) -> None:
    first = send(sqs, fifo, "x", id="same")
    second = send(sqs, fifo, "y", id="same")
    other = send(sqs, fifo, "z", "h", id="same")  # of the whole queue, not of the group
    names = ("MessageId", "SequenceNumber")
    assert [[one[name] for name in names] for one in (second, other)] == [
        [first[name] for name in names]
    ] * 2
    (got,) = receive(sqs, fifo, MaxNumberOfMessages=10, AttributeNames=["All"])
    assert got["Body"] == "x"
    assert got["Attributes"]["MessageDeduplicationId"] == "same"
    delete(sqs, fifo, got)
    send(sqs, fifo, "x", id="same")  # also after it is done, for five minutes
    assert receive(sqs, fifo) == []


def test_duplicates_of_content(sqs: Any, queue: str) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    made = sqs.create_queue(QueueName=f"{queue}.fifo", Attributes=attributes)
    url = made["QueueUrl"]
    send(sqs, url, "x")
    send(sqs, url, "x")
    send(sqs, url, "x", id="own")
    bodies = []
    for _ in range(2):
        (got,) = receive(sqs, url, AttributeNames=["MessageDeduplicationId"])
        bodies.append(got["Attributes"]["MessageDeduplicationId"][:3])
        delete(sqs, url, got)
    assert bodies == ["2d7", "own"]  # SHA-256 of x
    assert receive(sqs, url) == []


def test_duplicates_of_a_group_only(sqs: Any, queue: str) -> None:
    attributes = {
        "FifoQueue": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }
    made = sqs.create_queue(QueueName=f"{queue}.fifo", Attributes=attributes)
    url = made["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert {name: found[name] for name in attributes} == attributes
    for group in ("a", "b", "a"):
        send(sqs, url, group, group, "same")
    assert [one["Body"] for one in receive(sqs, url, MaxNumberOfMessages=10)] == ["a", "b"]


def test_a_batch_keeps_its_order_and_its_duplicates_together(sqs: Any, fifo: str) -> None:
    entries = [
        {
            "Id": str(n),
            "MessageBody": str(n),
            "MessageGroupId": "g",
            "MessageDeduplicationId": str(min(n, 3)),
        }
        for n in range(5)
    ]
    sent = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)["Successful"]
    assert len({one["MessageId"] for one in sent}) == 4
    order = []
    for _ in range(4):
        (got,) = receive(sqs, fifo)
        order.append(got["Body"])
        delete(sqs, fifo, got)
    assert order == ["0", "1", "2", "3"]


def test_an_expired_handle_is_an_error(sqs: Any, fifo: str) -> None:
    send(sqs, fifo, "x", id="1")
    (old,) = receive(sqs, fifo, VisibilityTimeout=0)
    receive(sqs, fifo)
    with refused("InvalidParameterValue"):
        delete(sqs, fifo, old)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "MissingParameter"),
        ({"MessageDeduplicationId": "1"}, "MissingParameter"),
        ({"MessageGroupId": "g"}, "InvalidParameterValue"),
        ({"MessageGroupId": "", "MessageDeduplicationId": "1"}, "InvalidParameterValue"),
        ({"MessageGroupId": "g", "MessageDeduplicationId": "a b"}, "InvalidParameterValue"),
        ({"MessageGroupId": "g" * 129, "MessageDeduplicationId": "1"}, "InvalidParameterValue"),
        (
            {"MessageGroupId": "g", "MessageDeduplicationId": "1", "DelaySeconds": 5},
            "InvalidParameterValue",
        ),
    ],
    ids=str,
)
def test_what_a_fifo_queue_refuses(sqs: Any, fifo: str, options: dict[str, Any], code: str) -> None:
    with refused(code):
        sqs.send_message(QueueUrl=fifo, MessageBody="x", **options)
