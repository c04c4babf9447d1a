"""A settlement whose commit failed did not happen."""

import asyncio
from collections.abc import Callable

import pytest

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Settlement
from penstock.errors import PenstockError
from penstock.names import QueueName
from tests.conformance.conftest import Heard
from tests.harness.postgres_server import PostgresServer

ORDERS = QueueName("shop", "orders")


def test_an_ack_whose_commit_failed_is_not_called_repeated(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    options = ClusterOptions(schema=new_schema(), beat_s=1e9, outbox_s=1e9, rebalance_s=1e9)

    async def main() -> None:
        store = PostgresStore(postgres_server.url, options)
        await store.open(Heard())
        try:
            await story(store)
        finally:
            await store.close()

    async def story(store: PostgresStore) -> None:
        await store.create(ORDERS, BrokerSettings().queue_settings())
        await store.publish(ORDERS, [b"one"])
        take_over = "update queue set token = token + 1"
        (leased,) = await store.lease(ORDERS, 1)
        store.database.transact(lambda session: session.execute(take_over))
        ack = Settlement("ack", leased.receipt)
        with pytest.raises(PenstockError):
            await store.settle(ORDERS, [ack])
        (outcome,) = await store.settle(ORDERS, [ack])  # the queue is opened again
        (again,) = await store.lease(ORDERS, 1)
        assert again.payload == b"one"
        assert outcome.status == "gone", "it is delivered again, so it was not acked"

    asyncio.run(main())
