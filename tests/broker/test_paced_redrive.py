"""Redriving at a limited rate, on a virtual clock."""

import asyncio

import pytest

from penstock.broker.access import Caller
from penstock.broker.broker import Broker
from penstock.broker.store import Settlement
from penstock.errors import InvalidInput, NoSuchQueue
from penstock.names import QueueName
from penstock.operations import Discard, GetStats, Redrive
from tests.broker.conftest import OpenBroker

ANN = Caller("ann")
QUEUE = QueueName("shop", "orders")


async def kill(broker: Broker, count: int) -> list[str]:
    published = await broker.publish(ANN, QUEUE, [b"x"] * count)
    leased = await broker.lease(ANN, QUEUE, n=count)
    await broker.settle(ANN, [Settlement("nack", one.receipt, dead=True) for one in leased])
    return [one.id for one in published]


async def ready(broker: Broker) -> int:
    return (await broker.run(ANN, GetStats(), QUEUE)).ready


async def test_no_more_than_so_many_a_second_are_ready_again(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await kill(broker, 50)
        assert await broker.redrive_paced(ANN, QUEUE, Redrive(), 10) == 50
        for second in range(1, 5):
            await asyncio.sleep(1)
            assert 10 * second <= await ready(broker) <= 10 * second + 1
        await asyncio.sleep(2)
        assert await ready(broker) == 50


@pytest.mark.parametrize("rate", [2, 25])
async def test_those_named_are_redriven_but_for_what_is_dead_no_more(
    open_broker: OpenBroker, rate: float
) -> None:
    async with open_broker() as broker:
        ids = await kill(broker, 9)
        assert await broker.redrive_paced(ANN, QUEUE, Redrive(ids[:6]), rate) == 6
        await broker.run(ANN, Discard(ids=ids[4:5]), QUEUE)
        await asyncio.sleep(60)
        stats = await broker.run(ANN, GetStats(), QUEUE)
        assert (stats.ready, stats.dead, stats.redriven) == (5, 3, 5)


async def test_a_dry_run_and_a_bad_rate_change_nothing(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await kill(broker, 3)
        assert await broker.run(ANN, Redrive(dry_run=True), QUEUE) == 3
        for rate in (-1, 1e10, float("nan")):
            with pytest.raises(InvalidInput):
                await broker.redrive_paced(ANN, QUEUE, Redrive(), rate)
        await asyncio.sleep(10)
        assert await ready(broker) == 0


async def test_a_deleted_queue_or_a_stop_ends_it(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await kill(broker, 10)
        await broker.redrive_paced(ANN, QUEUE, Redrive(), 1)
        await broker.delete_queue(ANN, QUEUE)
        await asyncio.sleep(20)
        with pytest.raises(NoSuchQueue):
            await broker.run(ANN, GetStats(), QUEUE)
        await kill(broker, 10)
        await broker.redrive_paced(ANN, QUEUE, Redrive(), 1)
        await asyncio.sleep(3)
    async with open_broker() as broker:
        await asyncio.sleep(20)
        assert 3 <= await ready(broker) <= 4
