"""Two brokers of one database: what one creates and changes, the other knows."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import QueueName
from tests.server.running import RunningServer
from tests.server.sqs.clients import receive, sqs_client


@pytest.mark.timeout(300)
def test_clients_of_two_brokers_share_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_STORE", "postgres")
    with RunningServer(tmp_path / "data") as first, RunningServer(tmp_path / "data") as second:
        one, two = sqs_client(first.url), sqs_client(second.url)
        dead = one.create_queue(QueueName="dead")["QueueUrl"]
        arn = one.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
        policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": 1}
        url = two.create_queue(
            QueueName="orders", Attributes={"RedrivePolicy": json.dumps(policy)}, tags={"a": "1"}
        )["QueueUrl"]
        one.send_message(QueueUrl=url, MessageBody="x")
        (got,) = receive(two, url, WaitTimeSeconds=20)
        one.change_message_visibility(
            QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
        )
        # Both show the dead letter, whichever owns its queue.
        for sqs in (one, two):
            (letter,) = receive(sqs, dead, WaitTimeSeconds=20, VisibilityTimeout=0)
            assert letter["MessageId"] == got["MessageId"]
        two.delete_queue(QueueUrl=url)
        _until_gone(first, one)
        url = one.create_queue(QueueName="orders")["QueueUrl"]
        assert "Tags" not in one.list_queue_tags(QueueUrl=url)
        one.close()
        two.close()


def _until_gone(server: RunningServer, sqs: Any) -> None:
    """The other broker is told of the deletion soon after."""
    server.until(lambda: not server.server.broker.has_queue(QueueName("default", "orders")))
    assert "orders" not in str(sqs.list_queues()["QueueUrls"])
