"""Two brokers on one database: each records its own queues, and both show all of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker import Broker
from penstock.broker.access import Caller
from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.names import QueueName
from tests.harness.postgres_server import PostgresServer
from tests.harness.virtual_loop import LoopClock, LoopThreads

ANN = Caller("ann")
ORDERS, LOANS = QueueName("shop", "orders"), QueueName("bank", "loans")
START = 1_700_000_000
Join = Callable[[], AbstractAsyncContextManager[Broker]]


@pytest.fixture
def joined(
    postgres_server: PostgresServer, new_schema: Callable[[], str], tmp_path: Path, clock: LoopClock
) -> Join:
    """`async with joined() as broker`: one more broker of the cluster."""
    options = ClusterOptions(
        schema=new_schema(),
        beat_s=1e9,
        rebalance_s=1e9,
        outbox_s=1e9,
        locks_clock=clock,
        cache=str(tmp_path),
    )

    @asynccontextmanager
    async def join() -> AsyncIterator[Broker]:
        store = PostgresStore(postgres_server.url, options, clock=clock, sync_threads=LoopThreads)
        broker = Broker(store, clock=clock)
        await broker.start()
        broker.charts.start()
        await asyncio.sleep(0.5)
        try:
            yield broker
        finally:
            await broker.stop()

    return join


async def told(*brokers: Broker) -> None:
    """Let each broker know the queues that the other one made."""
    for broker in brokers:
        await broker.store.refresh()  # type: ignore[attr-defined]


async def test_both_show_the_queues_of_both(joined: Join) -> None:
    async with joined() as first, joined() as second:
        await first.publish(ANN, ORDERS, [b"x"] * 30)
        await second.publish(ANN, LOANS, [b"x"] * 70)
        await told(first, second)
        await asyncio.sleep(12)
        for broker in (first, second):
            found = await broker.survey.overview(ANN)
            assert (found.queues, found.ready, found.unknown, found.brokers) == (2, 100, 0, 2)
            rows = {one.queue: one for one in (await broker.survey.queues(ANN)).rows}
            assert (rows[ORDERS].ready, rows[LOANS].ready) == (30, 70)
            for queue, rate in ((ORDERS, 3.0), (LOANS, 7.0)):
                chart = await broker.survey.chart(ANN, queue, since=START)
                assert chart.series["published"][0] == rate
                assert chart.series["ready"][0] == 10 * rate
            overall = await broker.survey.chart(ANN, since=START)
            assert overall.series["published"][0] == 10.0
            assert overall.series["ready"][0] == 100


async def test_the_history_of_a_queue_stays_when_its_owner_dies(
    joined: Join,
) -> None:
    async with joined() as second:
        async with joined() as first:
            await first.publish(ANN, ORDERS, [b"x"] * 30)
            await asyncio.sleep(12)
        await told(second)
        found = await second.survey.overview(ANN)
        assert (found.queues, found.brokers) == (1, 1)
        await asyncio.sleep(70)  # it saves, and learns what the other saved
        assert (await second.survey.overview(ANN)).ready == 30, "no broker has it open"
        chart = await second.survey.chart(ANN, ORDERS, since=START)
        assert chart.series["published"][0] == 3.0
        await second.publish(ANN, ORDERS, [b"x"] * 10)  # it owns the queue now
        await asyncio.sleep(20)
        chart = await second.survey.chart(ANN, ORDERS, since=START)
        assert chart.series["published"][0] == 3.0
        assert sum(one or 0 for one in chart.series["published"]) == pytest.approx(4.0)
        assert chart.series["ready"][-1] == 40
        found = await second.survey.overview(ANN)
        assert (found.ready, found.unknown) == (40, 0)
