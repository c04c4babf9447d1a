"""Move tasks: dead letters go back to their queues."""

import asyncio
import json
from base64 import b64decode
from typing import Any

import pytest

from penstock.broker import QueueName
from penstock.broker.access import INSIDE
from tests.server.running import RunningServer
from tests.server.sqs.clients import receive, refused
from tests.server.sqs.dead_pairs import Pair, arn_of, counts, die, policy


def tasks(sqs: Any, arn: str) -> list[dict[str, Any]]:
    return list(sqs.list_message_move_tasks(SourceArn=arn, MaxResults=10)["Results"])


def wait_for_end(server: RunningServer, sqs: Any, pair: Pair) -> None:
    """The paced redrives run in the background of the broker."""
    broker = server.server.broker
    queue = QueueName("default", pair.url.rpartition("/")[2])

    async def ended() -> None:
        while await broker.redrives.list(INSIDE, queue):
            await asyncio.sleep(0.01)

    server.call(ended())


def test_a_task_moves_dead_letters_back(server: RunningServer, sqs: Any, pair: Pair) -> None:
    ids = {die(sqs, pair.url, str(number)) for number in range(3)}
    sqs.send_message(QueueUrl=pair.dead_url, MessageBody="own")  # has no source, and stays
    made = sqs.start_message_move_task(SourceArn=pair.dead_arn)
    assert json.loads(b64decode(made["TaskHandle"]))["sourceArn"]
    wait_for_end(server, sqs, pair)
    assert (counts(sqs, pair.url), counts(sqs, pair.dead_url)) == ((3, 0), (1, 0))
    got = receive(sqs, pair.url, MaxNumberOfMessages=10, AttributeNames=["All"])
    assert {one["MessageId"] for one in got} == ids
    assert {one["Attributes"]["ApproximateReceiveCount"] for one in got} == {"1"}
    (task,) = tasks(sqs, pair.dead_arn)
    assert task.pop("StartedTimestamp") > 1_000_000_000_000
    assert task == {
        "Status": "COMPLETED",
        "SourceArn": pair.dead_arn,
        "ApproximateNumberOfMessagesMoved": 3,
        "ApproximateNumberOfMessagesToMove": 3,
    }
    with refused("ResourceNotFoundException"):
        sqs.cancel_message_move_task(TaskHandle=made["TaskHandle"])


def test_a_task_is_cancelled(sqs: Any, pair: Pair) -> None:
    for number in range(3):
        die(sqs, pair.url, str(number))
    made = sqs.start_message_move_task(
        SourceArn=pair.dead_arn, DestinationArn=pair.arn, MaxNumberOfMessagesPerSecond=1
    )
    (task,) = tasks(sqs, pair.dead_arn)
    assert (task["Status"], task["TaskHandle"]) == ("RUNNING", made["TaskHandle"])
    assert (task["DestinationArn"], task["MaxNumberOfMessagesPerSecond"]) == (pair.arn, 1)
    with refused("AWS.SimpleQueueService.UnsupportedOperation"):
        sqs.start_message_move_task(SourceArn=pair.dead_arn)
    moved = sqs.cancel_message_move_task(TaskHandle=made["TaskHandle"])
    assert moved["ApproximateNumberOfMessagesMoved"] < 3
    (task,) = tasks(sqs, pair.dead_arn)
    assert task["Status"] == "CANCELLED"
    assert sum(counts(sqs, pair.dead_url)) + sum(counts(sqs, pair.url)) == 3
    again = sqs.start_message_move_task(SourceArn=pair.dead_arn, MaxNumberOfMessagesPerSecond=1)
    assert [one["Status"] for one in tasks(sqs, pair.dead_arn)] == ["RUNNING", "CANCELLED"]
    sqs.cancel_message_move_task(TaskHandle=again["TaskHandle"])


def test_what_a_task_refuses(sqs: Any, pair: Pair) -> None:
    url = sqs.create_queue(QueueName="not-dead")["QueueUrl"]
    with refused("InvalidParameterValue"):
        sqs.start_message_move_task(SourceArn=arn_of(sqs, url))  # no dead-letter queue
    with refused("ResourceNotFoundException"):
        sqs.start_message_move_task(SourceArn=f"{pair.arn}-none")
    with refused("InvalidParameterValue"):
        sqs.start_message_move_task(SourceArn="nonsense")
    with refused("AWS.SimpleQueueService.UnsupportedOperation"):
        sqs.start_message_move_task(SourceArn=pair.dead_arn, DestinationArn=arn_of(sqs, url))
    for rate in (0, 501):
        with refused("InvalidParameterValue"):
            sqs.start_message_move_task(SourceArn=pair.dead_arn, MaxNumberOfMessagesPerSecond=rate)
    for handle in ("nonsense", "e30=", "bnVsbA=="):
        with refused("InvalidParameterValue"):
            sqs.cancel_message_move_task(TaskHandle=handle)
    with refused("InvalidParameterValue"):
        sqs.list_message_move_tasks(SourceArn=pair.dead_arn, MaxResults=11)
    assert tasks(sqs, pair.dead_arn) == []


@pytest.mark.parametrize("with_letters", [False, True])
def test_two_sources(
    server: RunningServer, sqs: Any, queue: str, pair: Pair, with_letters: bool
) -> None:
    other = sqs.create_queue(QueueName=f"{queue[:50]}-2", Attributes=policy(pair.dead_arn, 2))
    if with_letters:
        die(sqs, pair.url, "one")
        die(sqs, other["QueueUrl"], "two")
    with refused("AWS.SimpleQueueService.UnsupportedOperation"):
        sqs.start_message_move_task(SourceArn=pair.dead_arn, DestinationArn=pair.arn)
    sqs.start_message_move_task(SourceArn=pair.dead_arn)
    wait_for_end(server, sqs, pair)
    wait_for_end(server, sqs, pair._replace(url=other["QueueUrl"]))
    (task,) = tasks(sqs, pair.dead_arn)
    assert task["ApproximateNumberOfMessagesMoved"] == (2 if with_letters else 0)
    assert counts(sqs, pair.dead_url) == (0, 0)
