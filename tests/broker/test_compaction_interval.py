"""The broker compacts queues at their interval, also those that nobody uses."""

import asyncio
from typing import Any

from penstock.broker import Broker, Caller, QueueName, Settlement
from penstock.operations import GetStats
from tests.broker.conftest import OpenBroker, in_this_process

ANN = Caller("ip:ann")
QUEUE = QueueName("shop", "orders")
SETTINGS: dict[str, Any] = {
    "sync": "always",
    "segment_entries": 10,
    "segment_age_s": 60,
    "compact_interval_s": 3600,
}


async def use_up(broker: Broker, count: int) -> None:
    await broker.publish(ANN, QUEUE, [b"x"] * count)
    leased = await broker.lease(ANN, QUEUE, n=count)
    await broker.settle(ANN, [Settlement("ack", one.receipt) for one in leased])


async def first_seq(broker: Broker) -> int:
    return (await broker.run(ANN, GetStats(), QUEUE)).first_seq


@in_this_process
async def test_an_idle_queue_is_compacted_though_it_was_closed(open_broker: OpenBroker) -> None:
    async with open_broker(idle_close_s=100, queues=SETTINGS) as broker:
        await use_up(broker, 25)
        await asyncio.sleep(3500)
        assert await first_seq(broker) == 1
        await asyncio.sleep(200)
        assert await first_seq(broker) == 26
        await use_up(broker, 5)
        await asyncio.sleep(3600)
        assert await first_seq(broker) == 31


@in_this_process
async def test_a_new_interval_counts_from_when_it_is_set(open_broker: OpenBroker) -> None:
    async with open_broker(queues=SETTINGS) as broker:
        await use_up(broker, 25)
        await broker.change_queue(ANN, QUEUE, {"compact_interval_s": 0})
        await asyncio.sleep(8000)
        assert await first_seq(broker) == 1
        await broker.change_queue(ANN, QUEUE, {"compact_interval_s": 100})
        await asyncio.sleep(110)
        assert await first_seq(broker) == 26


@in_this_process
async def test_a_queue_that_was_deleted_is_left_alone(open_broker: OpenBroker) -> None:
    async with open_broker(queues=SETTINGS) as broker:
        await use_up(broker, 25)
        await broker.delete_queue(ANN, QUEUE)
        await asyncio.sleep(8000)
        assert not broker.has_queue(QUEUE)
