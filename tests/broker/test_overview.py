"""All queues at a glance: totals, and the table of queues."""

import asyncio
from typing import Any

import pytest

from penstock.broker.access import Caller
from penstock.broker.broker import Broker
from penstock.broker.store import Settlement
from penstock.errors import InvalidInput, NoSuchNamespace, NotAllowed
from penstock.names import QueueName
from penstock.operations import CreateGroup, Pause, Verb
from tests.broker.conftest import OpenBroker

ANN = Caller("ann")


def queue(name: str, namespace: str = "shop") -> QueueName:
    return QueueName(namespace, name)


async def fill(broker: Broker) -> None:
    for n in range(1, 8):
        await broker.publish(ANN, queue(f"q{n}"), [b"x"] * n)
    await broker.publish(ANN, queue("loans", "bank"), [b"x"] * 3)


async def test_totals_are_those_of_all_queues_and_groups(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await broker.run(ANN, CreateGroup("audit"), queue("q7"))
        await fill(broker)
        await broker.run(ANN, Pause(), queue("q2"))
        (leased,) = await broker.lease(ANN, queue("q7"), group="audit")
        await broker.settle(ANN, [Settlement("nack", leased.receipt, dead=True)])
        await broker.lease(ANN, queue("q5"), n=2)
        await asyncio.sleep(5)
        found = await broker.survey.overview(ANN)
        assert (found.queues, found.paused, found.unknown, found.brokers) == (8, 1, 0, 1)
        assert (found.ready, found.leased, found.dead) == (28 + 3 - 2 + 6, 2, 1)
        assert found.oldest_age_s == pytest.approx(5, abs=0.1)
        assert found.oldest_queue is not None
        assert found.size_bytes > 0 and found.trouble is None
        shop = await broker.survey.overview(ANN, "bank")
        assert (shop.queues, shop.ready) == (1, 3)
        with pytest.raises(NoSuchNamespace):
            await broker.survey.overview(ANN, "nowhere")


async def test_a_caller_sees_the_queues_that_it_may_read(open_broker: OpenBroker) -> None:
    bob = Caller("bob", frozenset({Verb.READ}), frozenset({"bank"}))
    async with open_broker() as broker:
        await fill(broker)
        assert (await broker.survey.overview(bob)).queues == 1
        assert [one.queue.name for one in (await broker.survey.queues(bob)).rows] == ["loans"]
        with pytest.raises(NotAllowed):
            await broker.survey.queues(bob, "shop")


async def listed(broker: Broker, **options: Any) -> list[str]:
    """Return the names on all pages, of two rows each."""
    names: list[str] = []
    after = None
    while True:
        page = await broker.survey.queues(ANN, after=after, limit=2, **options)
        names += [one.queue.name for one in page.rows]
        after = page.next
        if after is None:
            assert page.matched == len(names)
            return names


async def test_queues_are_sorted_filtered_and_paged(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await fill(broker)
        every = [f"q{n}" for n in range(1, 8)]
        assert await listed(broker) == ["loans", *every]
        assert await listed(broker, descending=True) == [*reversed(every), "loans"]
        by_ready = ["q1", "q2", "loans", "q3", "q4", "q5", "q6", "q7"]
        assert await listed(broker, sort="ready") == by_ready
        assert (await listed(broker, sort="ready", descending=True))[:2] == ["q7", "q6"]
        assert await listed(broker, sort="dead") == ["loans", *every]  # all equal: by name
        assert await listed(broker, text="P/Q3") == ["q3"]
        assert await listed(broker, text="no such") == []
        for wrong in ({"sort": "colour"}, {"limit": 0}, {"spark": "colour"}, {"after": ("q1", "")}):
            with pytest.raises(InvalidInput):
                await broker.survey.queues(ANN, **{"sort": "ready", **wrong})  # type: ignore[arg-type]


async def test_rates_and_sparks_show_the_last_minutes(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await broker.create_queue(ANN, queue("q"))
        broker.charts.start()
        await asyncio.sleep(2)
        for _ in range(6):
            await broker.publish(ANN, queue("q"), [b"x"] * 20)
            await asyncio.sleep(5)
        (row,) = (await broker.survey.queues(ANN, spark="published")).rows
        assert row.publish_rate == pytest.approx(4, rel=0.3)
        assert row.ack_rate == 0
        assert (row.published, row.ready) == (120, 120)
        assert len(row.spark) == 60 and row.spark[-3:] == [4.0, 4.0, 4.0]
        assert (await broker.survey.overview(ANN)).publish_rate == row.publish_rate


async def test_looking_opens_no_queue_and_keeps_none_open(open_broker: OpenBroker) -> None:
    async with open_broker(max_open=2, idle_close_s=60) as broker:
        await fill(broker)
        broker.charts.start()
        before = await broker.survey.overview(ANN)
        for _ in range(20):
            await asyncio.sleep(10)
            now = await broker.survey.overview(ANN)
            assert (now.ready, now.unknown) == (before.ready, 0)
        if hasattr(broker.store, "open_queues"):
            assert not broker.store.open_queues


async def test_queues_at_rest_since_a_restart_are_known(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        broker.charts.start()
        await fill(broker)
        await asyncio.sleep(15)
    async with open_broker() as broker:
        broker.charts.start()
        await asyncio.sleep(1)
        found = await broker.survey.overview(ANN)
        assert (found.queues, found.ready) == (8, 31)


async def test_the_counts_are_a_second_old_at_most(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await broker.publish(ANN, queue("q"), [b"x"])
        assert (await broker.survey.overview(ANN)).ready == 1
        await broker.publish(ANN, queue("q"), [b"x"])
        await asyncio.sleep(1.01)
        assert (await broker.survey.overview(ANN)).ready == 2


async def test_the_store_says_how_long_syncs_take(open_broker: OpenBroker) -> None:
    bob = Caller("bob", frozenset({Verb.READ}), frozenset({"bank"}))
    async with open_broker() as broker:
        await fill(broker)
        broker.metrics.committed(0.004, 1)
        found = await broker.survey.storage(ANN)
        assert (found.queues, found.sync.samples, found.trouble) == (8, 1, None)
        assert found.sync.p99 == pytest.approx(0.004, rel=0.13)
        assert found.size_bytes == (await broker.survey.overview(ANN)).size_bytes
        assert (found.database is None) == (found.free_bytes is not None)
        with pytest.raises(NotAllowed):
            await broker.survey.storage(bob)
