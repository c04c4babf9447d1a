"""Brokers that show no sign of life: given up once, with one warning."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from penstock.broker.postgres import ClusterOptions, PostgresStore
from tests.conformance.conftest import Heard
from tests.harness.postgres_server import PostgresServer, free_port


async def beats(store: PostgresStore, count: int) -> None:
    """Wait for some signs of life of a store."""
    renew, is_over, left = store.membership.renew, asyncio.Event(), count
    loop = asyncio.get_running_loop()

    def counted() -> bool:
        nonlocal left
        left -= 1
        if not left:
            loop.call_soon_threadsafe(is_over.set)
        return renew()

    store.membership.renew = counted  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        await is_over.wait()
    store.membership.renew = renew  # type: ignore[method-assign]


def test_a_broker_that_was_never_reached_is_warned_of_once(
    postgres_server: PostgresServer,
    new_schema: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = ClusterOptions(schema=new_schema(), beat_s=0.001, outbox_s=1e9, rebalance_s=1e9)

    async def story() -> None:
        store = PostgresStore(postgres_server.url, options)
        await store.open(Heard())
        try:
            add = (
                "insert into broker (address, server, alive_until) values (%s, '', "
                "now() + interval '1 hour')"
            )
            store.database.transact(lambda session: session.execute(add, (address,)))
            assert await store.ask_others(["anything"]) == []
            remove = "delete from broker where address = %s"
            store.database.transact(lambda session: session.execute(remove, (address,)))
            await beats(store, 5)
        finally:
            await store.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    warnings = [one for one in caplog.messages if address in one]
    assert len(warnings) == 1, warnings
