"""A server for the tests of a module, a client of boto3, and a queue for each test."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.running import RunningServer
from tests.server.sqs.clients import sqs_client
from tests.server.sqs.dead_pairs import Pair, arn_of, policy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("sqs") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def sqs(server: RunningServer) -> Iterator[Any]:
    client = sqs_client(server.url)
    yield client
    client.close()


@pytest.fixture
def url(sqs: Any, queue: str) -> str:
    """The URL of a standard queue that no other test uses."""
    return str(sqs.create_queue(QueueName=queue)["QueueUrl"])


@pytest.fixture
def fifo(sqs: Any, queue: str) -> str:
    """The URL of a FIFO queue that no other test uses."""
    made = sqs.create_queue(QueueName=f"{queue[:50]}.fifo", Attributes={"FifoQueue": "true"})
    return str(made["QueueUrl"])


@pytest.fixture
def pair(sqs: Any, queue: str) -> Pair:
    name = queue[:50]
    dead_url = sqs.create_queue(QueueName=f"{name}-dlq")["QueueUrl"]
    dead_arn = arn_of(sqs, dead_url)
    made = sqs.create_queue(QueueName=name, Attributes=policy(dead_arn, 2))
    return Pair(made["QueueUrl"], dead_url, arn_of(sqs, made["QueueUrl"]), dead_arn)
