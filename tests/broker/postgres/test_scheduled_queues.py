"""A queue with schedules is open at some broker, also if its owner dies, stops or gives it away."""

import asyncio
from collections.abc import Callable

import pytest

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.postgres.scheduled_queues import DOCUMENT, as_document, listed_in
from penstock.broker.settings import BrokerSettings
from penstock.names import QueueName
from penstock.operations import ListSchedules, PauseSchedule, PutSchedule, RemoveSchedule, Schedule
from tests.conformance.conftest import Heard
from tests.harness.postgres_server import PostgresServer

QUEUES = [QueueName("shop", f"q{number}") for number in range(4)]
BEAT = PutSchedule(Schedule("beat", b"x", every_s=60))

MakeStore = Callable[[], PostgresStore]


@pytest.fixture
def make(postgres_server: PostgresServer, new_schema: Callable[[], str]) -> MakeStore:
    options = ClusterOptions(schema=new_schema(), beat_s=1e9, outbox_s=1e9, rebalance_s=1e9)
    return lambda: PostgresStore(postgres_server.url, options)


async def opened(make: MakeStore) -> PostgresStore:
    store = make()
    await store.open(Heard())
    return store


def test_the_queues_of_a_broker_that_stopped_or_died_are_opened_by_another(make: MakeStore) -> None:
    async def story() -> None:
        first, second = await opened(make), await opened(make)
        for queue in QUEUES[:2]:
            await first.create(queue, BrokerSettings().queue_settings())
        await second.run(QUEUES[0], BEAT)  # through another broker than the owner
        await second.scheduled_queues.tend()
        assert first.direct(QUEUES[0]) is not None
        assert second.direct(QUEUES[0]) is None, "its owner is alive"
        await first.close()
        await second.scheduled_queues.tend()
        assert second.direct(QUEUES[0]) is not None
        assert second.direct(QUEUES[1]) is None, "it has no schedule"
        third = await opened(make)
        second.membership.drop()  # it dies; PostgreSQL may take a moment to notice
        async with asyncio.timeout(60):
            while third.direct(QUEUES[0]) is None:
                await third.scheduled_queues.tend()
        assert [one.name for one in (await third.run(QUEUES[0], ListSchedules())).schedules] == [
            "beat"
        ]
        await third.close()
        await second.close()

    asyncio.run(story())


def test_a_queue_that_was_given_away_is_opened_by_the_new_owner(make: MakeStore) -> None:
    async def story() -> None:
        first, second = await opened(make), await opened(make)
        for queue in QUEUES:
            await first.create(queue, BrokerSettings().queue_settings())
            await first.run(queue, BEAT)
        given = await first.rebalancing.give_some()
        assert given
        await second.refresh()
        for store in (first, second):
            await store.scheduled_queues.tend()
        for queue in QUEUES:
            assert (second if queue in given else first).direct(queue) is not None
        await second.close()
        await first.close()

    asyncio.run(story())


def test_the_list_has_the_queues_that_have_schedules(make: MakeStore) -> None:
    async def story() -> None:
        store = await opened(make)

        async def listed() -> set[QueueName]:
            await store.scheduled_queues.tend()
            return listed_in(await store.load_document(DOCUMENT))

        for queue in QUEUES:
            await store.create(queue, BrokerSettings().queue_settings())
            await store.run(queue, BEAT)
        assert await listed() == set(QUEUES)
        await store.run(QUEUES[0], RemoveSchedule("beat"))
        await store.run(QUEUES[1], PauseSchedule("beat"))
        await store.delete(QUEUES[2])
        assert await listed() == {QUEUES[1], QUEUES[3]}
        # A document that is lost, damaged or out of date is mended.
        for content in (None, b"{", as_document([QUEUES[0], QUEUES[2]])):
            before = await store.load_document(DOCUMENT)
            assert await store.replace_document(DOCUMENT, before, content)
            assert await listed() == {QUEUES[1], QUEUES[3]}
        await store.close()

    asyncio.run(story())
