"""What one broker changes is seen by the others at their next beat, which comes every second."""

import asyncio
from collections.abc import Callable

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.settings import BrokerSettings
from penstock.names import QueueName
from tests.conformance.conftest import Heard
from tests.harness.postgres_server import PostgresServer

ORDERS = QueueName("shop", "orders")


def test_a_beat_comes_twice_within_two_seconds() -> None:
    assert ClusterOptions().beat_s <= 1.0


def test_changes_are_seen_without_a_call(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    options = ClusterOptions(schema=new_schema(), beat_s=0.05, outbox_s=1e9, rebalance_s=1e9)

    async def until(is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not is_so():
                await asyncio.sleep(0.01)

    async def story() -> None:
        first = PostgresStore(postgres_server.url, options)
        second, heard = PostgresStore(postgres_server.url, options), Heard()
        await first.open(Heard())
        await second.open(heard)
        try:
            assert await first.replace_document("keys.json", None, b"{}")
            await until(lambda: "keys.json" in heard.documents)
            await first.create(ORDERS, BrokerSettings().queue_settings())
            await until(lambda: ORDERS in heard.queues)
            namespace = heard.namespaces["shop"]
            smaller = namespace._replace(max_queues=7)
            assert await first.replace_namespace(namespace, smaller)
            await until(lambda: heard.namespaces["shop"].max_queues == 7)
            changed = await first.change(ORDERS, {"max_attempts": 3})
            assert changed.settings.max_attempts == 3
            assert (await second.info(ORDERS)).settings.max_attempts == 3
            await first.delete(ORDERS)
            await until(lambda: ORDERS not in heard.queues)
        finally:
            await second.close()
            await first.close()

    asyncio.run(story())
