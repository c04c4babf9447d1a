"""A queue with a dead-letter queue, and what tests do with both."""

import json
from typing import Any, NamedTuple

from tests.server.sqs.clients import receive


class Pair(NamedTuple):
    """A queue and its dead-letter queue."""

    url: str
    dead_url: str
    arn: str
    dead_arn: str


def arn_of(sqs: Any, url: str) -> str:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return str(found["Attributes"]["QueueArn"])


def counts(sqs: Any, url: str) -> tuple[int, int]:
    """Visible messages, and those that were received and not deleted."""
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    visible, hidden = "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"
    return int(found[visible]), int(found[hidden])


def policy(arn: str, count: int) -> dict[str, str]:
    text = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": count})
    return {"RedrivePolicy": text}


def die(sqs: Any, url: str, body: str) -> str:
    """Send a message and fail it as often as its queue allows."""
    attributes = {"why": {"DataType": "String", "StringValue": "test"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)
    for _ in range(2):
        (got,) = receive(sqs, url)
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
        )
    assert receive(sqs, url) == []
    return str(sent["MessageId"])
