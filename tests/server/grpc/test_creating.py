"""Creating a queue that another client deletes at the same time."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from penstock.broker import Caller, QueueInfo, QueueName
from penstock.errors import AlreadyExists, NoSuchQueue
from penstock.protobuf.descriptors import METHODS
from penstock.queue.settings import QueueSettings
from penstock.server.grpc.call import GrpcCall
from penstock.server.grpc.queue_service import create_queue


class DeletedInBetween:
    """A broker whose queue exists when it is first created, and not when it is looked at."""

    def __init__(self) -> None:
        self.created = 0

    async def create_queue(
        self, caller: Caller, queue: QueueName, settings: Mapping[str, Any]
    ) -> QueueInfo:
        self.created += 1
        if self.created == 1:
            raise AlreadyExists(f"queue {queue} exists")
        return QueueInfo(queue, 1, 1, QueueSettings())

    async def queue_info(self, caller: Caller, queue: QueueName) -> QueueInfo:
        raise NoSuchQueue(f"there is no queue {queue}")


def test_a_queue_deleted_while_it_is_compared_is_created_again() -> None:
    broker = DeletedInBetween()
    call = cast(GrpcCall, SimpleNamespace(broker=broker, caller=Caller("ip:192.0.2.1")))
    made = asyncio.run(create_queue(call, METHODS["CreateQueue"].request(queue="orders")))
    assert (made.queue, broker.created) == ("orders", 2)
