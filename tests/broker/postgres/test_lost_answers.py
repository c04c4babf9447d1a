"""The answer of an owner to another broker is lost: the outcome of the call is unknown."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Settlement
from penstock.errors import Unavailable
from penstock.model import NewMessage
from penstock.names import QueueName
from penstock.operations import GetStats
from tests.conformance.conftest import Heard
from tests.harness.cutting_proxy import CuttingProxy
from tests.harness.postgres_server import PostgresServer

ORDERS = QueueName("shop", "orders")
Story = Callable[[PostgresStore, CuttingProxy], Coroutine[Any, Any, None]]


def run(server: PostgresServer, schema: str, story: Story) -> None:
    """Open an owner of a queue, and a broker that reaches it through a proxy."""
    options = ClusterOptions(schema=schema, beat_s=1e9, outbox_s=1e9, rebalance_s=1e9)

    async def main() -> None:
        owner, other = PostgresStore(server.url, options), PostgresStore(server.url, options)
        proxies: list[CuttingProxy] = []
        await owner.open(Heard())
        try:
            await owner.create(ORDERS, BrokerSettings().queue_settings())
            find = "select address from broker"
            address = owner.database.read(lambda session: session.one(find)[0])
            proxy = CuttingProxy(int(address.rpartition(":")[2]))
            proxies.append(proxy)
            move = f"update broker set address = '127.0.0.1:{proxy.port}'"
            owner.database.transact(lambda session: session.execute(move))
            await other.open(Heard())
            await other.publish(ORDERS, [b"one", b"two"])
            await story(other, proxy)
        finally:
            await other.close()
            await owner.close()
            for one in proxies:
                one.close()

    asyncio.run(main())


@pytest.mark.parametrize("verdict", ["nack", "release"])
def test_a_settlement_that_was_carried_out_is_not_called_gone(
    postgres_server: PostgresServer, new_schema: Callable[[], str], verdict: Any
) -> None:
    async def story(other: PostgresStore, proxy: CuttingProxy) -> None:
        (leased,) = await other.lease(ORDERS, 1)
        proxy.swallow_answers(1)
        with pytest.raises(Unavailable, match="may have been carried out"):
            await other.settle(ORDERS, [Settlement(verdict, leased.receipt)])
        assert (await other.run(ORDERS, GetStats())).leased == 0, "it was"
        (again,) = await other.settle(ORDERS, [Settlement(verdict, leased.receipt)])
        assert again.status == "gone", "it is the caller who repeats it now"

    run(postgres_server, new_schema(), story)


def test_an_ack_that_was_carried_out_is_done(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    async def story(other: PostgresStore, proxy: CuttingProxy) -> None:
        (leased,) = await other.lease(ORDERS, 1)
        proxy.swallow_answers(1)
        (outcome,) = await other.settle(ORDERS, [Settlement("ack", leased.receipt)])
        assert outcome.status == "repeated"

    run(postgres_server, new_schema(), story)


def test_a_publish_is_sent_again_only_under_a_dedup_id(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    async def story(other: PostgresStore, proxy: CuttingProxy) -> None:
        proxy.swallow_answers(1)
        with pytest.raises(Unavailable, match="broke"):
            await other.publish(ORDERS, [b"three"])
        proxy.swallow_answers(1)
        await other.publish(ORDERS, [NewMessage(payload=b"four", dedup_id="4")])
        found = [one.payload for one in await other.lease(ORDERS, 10)]
        assert found == [b"one", b"two", b"three", b"four"]

    run(postgres_server, new_schema(), story)


def test_a_receipt_of_a_queue_that_another_broker_deleted_is_gone(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    async def story(other: PostgresStore, proxy: CuttingProxy) -> None:
        (leased,) = await other.lease(ORDERS, 1)
        owner = PostgresStore(postgres_server.url, ClusterOptions(schema=schema))
        await owner.open(Heard())
        await owner.delete(ORDERS)
        (outcome,) = await other.settle(ORDERS, [Settlement("ack", leased.receipt)])
        assert outcome.status == "gone"
        await owner.close()

    schema = new_schema()
    run(postgres_server, schema, story)
