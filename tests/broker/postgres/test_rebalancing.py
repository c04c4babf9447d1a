"""Queues move to a broker that has joined, and no call notices."""

import asyncio
from collections.abc import Callable

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Settlement
from penstock.names import QueueName
from tests.conformance.conftest import Heard
from tests.harness.postgres_server import PostgresServer

QUEUES = [QueueName("shop", f"q{number}") for number in range(7)]


def owned(store: PostgresStore) -> int:
    query = "select count(*) from queue where owner = %s"
    number = store.membership.number
    found: int = store.database.read(lambda session: session.one(query, (number,)))[0]
    return found


def test_a_broker_that_joins_gets_its_share_while_calls_go_on(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    options = ClusterOptions(schema=new_schema(), beat_s=1e9, outbox_s=1e9, rebalance_s=1e9)

    async def story() -> None:
        first = PostgresStore(postgres_server.url, options)
        await first.open(Heard())
        for queue in QUEUES:
            await first.create(queue, BrokerSettings().queue_settings())
        assert await first.rebalancing.give_some() == [], "it is alone"
        second = PostgresStore(postgres_server.url, options)
        await second.open(Heard())
        assert await second.rebalancing.give_some() == [], "it has none"
        is_over = asyncio.Event()
        sent: dict[QueueName, list[bytes]] = {queue: [] for queue in QUEUES}

        async def use(store: PostgresStore, queue: QueueName) -> None:
            while not is_over.is_set():
                payload = b"%d" % len(sent[queue])
                sent[queue].append(payload)
                await store.publish(queue, [payload])

        held = await first.lease(QUEUES[0], 1)
        assert not held
        stores = (first, second)
        using = [
            asyncio.create_task(use(stores[number % 2], queue))
            for number, queue in enumerate(QUEUES)
        ]
        moved: list[QueueName] = []
        while given := await first.rebalancing.give_some():
            assert len(given) == 1, "those in use move one by one"
            moved += given
        is_over.set()
        await asyncio.gather(*using)
        assert (owned(first), owned(second)) == (4, 3)
        assert len(set(moved)) == 3
        assert await second.rebalancing.give_some() == [], "they stay where they are"
        for number, queue in enumerate(QUEUES):
            found = await stores[(number + 1) % 2].lease(queue, 10_000)
            assert [one.payload for one in found] == sent[queue]
            done = [Settlement("ack", one.receipt) for one in found]
            outcomes = await stores[number % 2].settle(queue, done)
            assert all(one.status == "done" for one in outcomes)
        await second.close()
        await first.close()

    asyncio.run(story())


def test_a_call_that_waits_is_woken_when_its_queue_has_moved(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    options = ClusterOptions(schema=new_schema(), beat_s=1e9, outbox_s=1e9, rebalance_s=1e9)

    async def story() -> None:
        first, heard = PostgresStore(postgres_server.url, options), Heard()
        await first.open(heard)
        for queue in QUEUES[:2]:
            await first.create(queue, BrokerSettings().queue_settings())
            first.watch(queue)
        second = PostgresStore(postgres_server.url, options)
        await second.open(Heard())
        (moved,) = await first.rebalancing.give_some()
        assert moved in heard.ready, "it looks where the queue is now"
        assert not await first.lease(moved, 1)
        heard.ready.clear()
        await second.publish(moved, [b"news"])
        async with asyncio.timeout(10):
            while moved not in heard.ready:
                await asyncio.sleep(0)
        for queue in QUEUES[:2]:
            first.unwatch(queue)
        await second.close()
        await first.close()

    asyncio.run(story())
