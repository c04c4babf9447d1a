"""Dead-letter queues as SQS's users see them, though dead is a state of a message."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.server.running import RunningServer, queue_path
from tests.server.sqs.clients import receive, refused
from tests.server.sqs.dead_pairs import Pair, counts, die, policy


def test_a_message_that_dies_is_received_from_the_dead_letter_queue(sqs: Any, pair: Pair) -> None:
    id_ = die(sqs, pair.url, "x")
    assert (counts(sqs, pair.url), counts(sqs, pair.dead_url)) == ((0, 0), (1, 0))
    (got,) = receive(sqs, pair.dead_url, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert (got["MessageId"], got["Body"]) == (id_, "x")
    assert got["Attributes"]["DeadLetterQueueSourceArn"] == pair.arn
    assert got["MessageAttributes"] == {"why": {"DataType": "String", "StringValue": "test"}}
    assert counts(sqs, pair.dead_url) == (0, 1)
    assert receive(sqs, pair.dead_url) == []
    sqs.change_message_visibility(
        QueueUrl=pair.dead_url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
    )
    (again,) = receive(sqs, pair.dead_url)
    sqs.delete_message(QueueUrl=pair.dead_url, ReceiptHandle=again["ReceiptHandle"])
    assert (counts(sqs, pair.url), counts(sqs, pair.dead_url)) == ((0, 0), (0, 0))


def test_a_message_whose_visibility_ends_too_often_dies(sqs: Any, pair: Pair) -> None:
    sqs.send_message(QueueUrl=pair.url, MessageBody="x")
    for _ in range(2):
        (got,) = receive(sqs, pair.url, VisibilityTimeout=0, WaitTimeSeconds=20)
    (dead,) = receive(sqs, pair.dead_url, WaitTimeSeconds=20)
    assert dead["MessageId"] == got["MessageId"]


def test_a_receive_from_the_dead_letter_queue_waits(
    server: RunningServer, sqs: Any, pair: Pair
) -> None:
    waiting = server.server.broker.waiting
    with ThreadPoolExecutor() as pool:
        call = pool.submit(receive, sqs, pair.dead_url, WaitTimeSeconds=20)
        server.until(lambda: len(waiting) == 2)  # in the queue, and for dead letters of the source
        die(sqs, pair.url, "x")
        (got,) = call.result(30)
        assert got["Body"] == "x"
        server.until(lambda: len(waiting) == 0)
        call = pool.submit(receive, sqs, pair.dead_url, WaitTimeSeconds=20)
        server.until(lambda: len(waiting) == 2)
        sqs.send_message(QueueUrl=pair.dead_url, MessageBody="sent to it")
        (got,) = call.result(30)
        assert got["Body"] == "sent to it"
    assert counts(sqs, pair.dead_url) == (0, 2)


def test_the_dead_letter_queue_has_own_messages_and_those_of_several_sources(
    sqs: Any, queue: str, pair: Pair
) -> None:
    other = sqs.create_queue(QueueName=f"{queue[:50]}-2", Attributes=policy(pair.dead_arn, 2))
    die(sqs, pair.url, "one")
    die(sqs, other["QueueUrl"], "two")
    sqs.send_message(QueueUrl=pair.dead_url, MessageBody="own")
    assert counts(sqs, pair.dead_url) == (3, 0)
    got = receive(sqs, pair.dead_url, MaxNumberOfMessages=10)
    assert sorted(one["Body"] for one in got) == ["one", "own", "two"]
    entries = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(got)]
    gone = sqs.delete_message_batch(QueueUrl=pair.dead_url, Entries=entries)
    assert len(gone["Successful"]) == 3
    listed = sqs.list_dead_letter_source_queues(QueueUrl=pair.dead_url)["queueUrls"]
    assert listed == [pair.url, other["QueueUrl"]]
    assert sqs.list_dead_letter_source_queues(QueueUrl=pair.url)["queueUrls"] == []


def test_purging_the_dead_letter_queue_discards_the_dead_letters(sqs: Any, pair: Pair) -> None:
    die(sqs, pair.url, "x")
    sqs.send_message(QueueUrl=pair.url, MessageBody="alive")
    sqs.purge_queue(QueueUrl=pair.dead_url)
    assert (counts(sqs, pair.url), counts(sqs, pair.dead_url)) == ((1, 0), (0, 0))


def test_the_policy_is_shown_changed_and_removed(
    server: RunningServer, sqs: Any, queue: str, pair: Pair
) -> None:
    def shown() -> dict[str, Any]:
        found = sqs.get_queue_attributes(QueueUrl=pair.url, AttributeNames=["RedrivePolicy"])
        return dict(json.loads(found.get("Attributes", {}).get("RedrivePolicy", "{}")))

    assert shown() == {"deadLetterTargetArn": pair.dead_arn, "maxReceiveCount": 2}
    sqs.set_queue_attributes(QueueUrl=pair.url, Attributes=policy(pair.dead_arn, 5))
    assert shown()["maxReceiveCount"] == 5
    sqs.create_queue(QueueName=queue[:50], Attributes=policy(pair.dead_arn, 5))  # the same
    with refused("QueueAlreadyExists"):
        sqs.create_queue(QueueName=queue[:50], Attributes=policy(pair.dead_arn, 6))
    sqs.set_queue_attributes(
        QueueUrl=pair.dead_url, Attributes={"MessageRetentionPeriod": "1209600"}
    )
    with server.client() as http:
        settings = http.get(queue_path(queue[:50])).json()["settings"]
    assert (settings["max_attempts"], settings["dead_retention_s"]) == (5, 1209600)
    sqs.set_queue_attributes(QueueUrl=pair.url, Attributes={"RedrivePolicy": ""})
    assert shown() == {}
    assert sqs.list_dead_letter_source_queues(QueueUrl=pair.dead_url)["queueUrls"] == []


def test_without_a_policy_a_message_is_delivered_again_and_again(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    for number in range(30):
        (got,) = receive(sqs, url, AttributeNames=["ApproximateReceiveCount"])
        assert got["Attributes"] == {"ApproximateReceiveCount": str(number + 1)}
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
        )


def test_a_dead_letter_queue_says_which_sources_it_allows(sqs: Any, queue: str, pair: Pair) -> None:
    def allow(**fields: Any) -> None:
        given = {"RedriveAllowPolicy": json.dumps(fields)}
        sqs.set_queue_attributes(QueueUrl=pair.dead_url, Attributes=given)

    allow(redrivePermission="denyAll")
    with refused("InvalidParameterValue"):
        sqs.set_queue_attributes(QueueUrl=pair.url, Attributes=policy(pair.dead_arn, 3))
    allow(redrivePermission="byQueue", sourceQueueArns=[pair.arn])
    sqs.set_queue_attributes(QueueUrl=pair.url, Attributes=policy(pair.dead_arn, 3))
    with refused("InvalidParameterValue"):
        sqs.create_queue(QueueName=f"{queue[:50]}-2", Attributes=policy(pair.dead_arn, 3))
    for wrong in ({"redrivePermission": "byQueue"}, {"redrivePermission": "x"}, {}):
        with refused("InvalidParameterValue"):
            allow(**wrong)


def test_fifo_queues_have_fifo_dead_letter_queues(sqs: Any, fifo: str, pair: Pair) -> None:
    with refused("InvalidParameterValue"):
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes=policy(pair.dead_arn, 2))


def test_handles_of_the_source_work_only_at_its_dead_letter_queue(
    sqs: Any, url: str, pair: Pair
) -> None:
    die(sqs, pair.url, "x")
    (got,) = receive(sqs, pair.dead_url)
    with refused("ReceiptHandleIsInvalid"):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    sqs.delete_message(QueueUrl=pair.dead_url, ReceiptHandle=got["ReceiptHandle"])
    sqs.delete_message(QueueUrl=pair.dead_url, ReceiptHandle=got["ReceiptHandle"])  # again
