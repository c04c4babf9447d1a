"""Messages of a user's own transaction: there if it commits, once, in order."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
import penstock.postgres
from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.postgres.outbox import Outbox
from penstock.errors import InvalidInput
from penstock.names import QueueName
from penstock.queue.settings import QueueSettings
from tests.conformance.conftest import Heard
from tests.harness.postgres_server import PostgresServer

ORDERS = QueueName("shop", "orders")


class Shop:
    """A store whose outbox is moved when a test says so."""

    def __init__(self, server: PostgresServer, schema: str, cache: Path) -> None:
        self.url, self.schema = server.url, schema
        options = ClusterOptions(schema=schema, cache=str(cache), outbox_s=1e9)
        self.store = PostgresStore(server.url, options)
        self.outbox = Outbox(
            self.store.database, self.store, 1e9, lambda _: QueueSettings.of({"sync": "always"})
        )

    async def __aenter__(self) -> "Shop":
        await self.store.open(Heard())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.store.close()

    async def payloads(self) -> list[bytes]:
        return [one.payload for one in await self.store.lease(ORDERS, 100)]


@pytest.fixture
def shop(postgres_server: PostgresServer, new_schema: Callable[[], str], tmp_path: Path) -> Shop:
    return Shop(postgres_server, new_schema(), tmp_path)


def test_a_message_is_published_if_the_transaction_commits(shop: Shop) -> None:
    async def life() -> None:
        async with shop:
            with psycopg.connect(shop.url) as connection:
                for number in (1, 2):
                    penstock.postgres.publish(
                        connection, "shop/orders", {"order": number}, schema=shop.schema
                    )
            with psycopg.connect(shop.url) as connection:
                penstock.postgres.publish(connection, "shop/orders", b"no", schema=shop.schema)
                connection.rollback()
            await shop.outbox.move()
            assert await shop.payloads() == [b'{"order":1}', b'{"order":2}']
            assert await shop.outbox.move() == 0

    asyncio.run(life())


def test_the_sql_function_takes_options(shop: Shop) -> None:
    async def life() -> None:
        async with shop:
            with psycopg.connect(shop.url) as connection:
                call = f"select {shop.schema}.publish('shop/orders', %s::text, %s::jsonb)"
                connection.execute(call, ("late", "{}"))
                connection.execute(call, ("urgent", json.dumps({"priority": 9, "key": "k"})))
            await shop.outbox.move()
            leased = await shop.store.lease(ORDERS, 10)
            assert [(one.payload, one.priority) for one in leased] == [(b"urgent", 9), (b"late", 5)]

    asyncio.run(life())


def test_a_row_that_was_published_and_not_deleted_is_not_published_twice(shop: Shop) -> None:
    async def life() -> None:
        async with shop:
            with psycopg.connect(shop.url) as connection:
                penstock.postgres.publish(connection, "shop/orders", b"once", schema=shop.schema)
                connection.commit()
                row = connection.execute(f"select * from {shop.schema}.outbox").fetchone()
                assert row is not None
                await shop.outbox.move()
                connection.execute(  # as if the broker had died before it deleted the row
                    f"insert into {shop.schema}.outbox overriding system value "
                    "values (%s, %s, %s, %s, %s, %s)",
                    row,
                )
                connection.commit()
                await shop.outbox.move()
            assert await shop.payloads() == [b"once"]

    asyncio.run(life())


def test_a_refused_message_stays_with_the_reason_and_blocks_no_other(shop: Shop) -> None:
    async def life() -> None:
        async with shop:
            with psycopg.connect(shop.url) as connection:
                call = f"select {shop.schema}.publish(%s, 'x'::text, %s::jsonb)"
                connection.execute(call, ("shop/orders", '{"colour": "red"}'))
                connection.execute(call, ("no name!", "{}"))
                connection.execute(call, ("shop/orders", "[]"))
                connection.execute(call, ("shop/orders", "{}"))
                connection.commit()
                await shop.outbox.move()
                assert await shop.payloads() == [b"x"]
                query = f"select error from {shop.schema}.outbox order by id"
                (first,), (second,), (third,) = connection.execute(query).fetchall()
                assert "there is no option 'colour'; the options are after, " in first
                assert "not a" in second
                assert third == "the options are []; they must be a JSON object"

    asyncio.run(life())


def test_a_message_comes_after_others_of_its_queue_only(shop: Shop) -> None:
    async def life() -> None:
        async with shop:
            await shop.store.create(ORDERS, QueueSettings.of({"sync": "always"}))
            (first,) = await shop.store.publish(ORDERS, [b"1"])
            unknown = "00000" + first.id[5:]
            with psycopg.connect(shop.url) as connection:
                call = f"select {shop.schema}.publish('shop/orders', 'x'::text, %s::jsonb)"
                for after in ([first.id], [0], [unknown], ["0" * 26]):
                    connection.execute(call, (json.dumps({"after": after}),))
                connection.commit()
                await shop.outbox.move()
                assert await shop.payloads() == [b"1"], "the other one is blocked"
                query = f"select error from {shop.schema}.outbox order by id"
                errors = [error for (error,) in connection.execute(query).fetchall()]
            wanted = ("item 0", "never published", "another queue")
            assert all(part in error for part, error in zip(wanted, errors, strict=True)), errors

    asyncio.run(life())


def test_unknown_connections_and_options_are_refused(shop: Shop) -> None:
    with pytest.raises(InvalidInput, match="psycopg, asyncpg"):
        penstock.postgres.publish(object(), "orders", b"x")
    with pytest.raises(TypeError, match="colour"):
        penstock.postgres.publish(object(), "orders", b"x", colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 10},
        {"delay": -1},
        {"ttl": -1},
        {"max_attempts": 0},
        {"dedup_id": "d" * 2000},
        {"dedup_id": "a", "dedup_window_s": 0},
        {"key": "k" * 2000},
        {"headers": {"a": 1}},
        {"compression": "rar"},
        {"content_type": "t" * 300},
        {"delay": 1, "deliver_at": 2_000_000_000},
    ],
)
def test_bad_options_are_refused_at_the_call_with_the_words_of_enqueue(
    shop: Shop, tmp_path: Path, options: Any
) -> None:
    with penstock.open(str(tmp_path / "queue")) as queue, pytest.raises(InvalidInput) as expected:
        queue.enqueue(b"x", **options)
    with pytest.raises(InvalidInput) as found:
        penstock.postgres.publish(None, "shop/orders", b"x", schema=shop.schema, **options)
    assert str(found.value) == str(expected.value)


def test_times_are_datetimes_or_numbers_as_with_enqueue(shop: Shop) -> None:
    async def life() -> None:
        async with shop:
            with psycopg.connect(shop.url) as connection:
                past, hour = datetime.now(UTC) - timedelta(seconds=1), timedelta(hours=1)
                for name, options in {
                    b"past": {"deliver_at": past, "ttl": hour},
                    b"later": {"delay": hour},
                    b"soon": {"delay": 0.0, "dedup_id": "1", "dedup_window_s": hour},
                }.items():
                    publish = penstock.postgres.publish
                    publish(connection, "shop/orders", name, schema=shop.schema, **options)  # type: ignore[arg-type]
            await shop.outbox.move()
            assert sorted(await shop.payloads()) == [b"past", b"soon"]

    asyncio.run(life())


def test_an_asynchronous_connection_is_awaited(shop: Shop) -> None:
    async def life() -> None:
        async with shop:
            async with await psycopg.AsyncConnection.connect(shop.url) as connection:
                await penstock.postgres.publish(
                    connection, "shop/orders", "text", schema=shop.schema, headers={"a": "b"}
                )
            await shop.outbox.move()
            (leased,) = await shop.store.lease(ORDERS, 10)
            assert (leased.payload, leased.headers) == (b"text", {"a": "b"})

    asyncio.run(life())
