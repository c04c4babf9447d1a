"""Publishing in a transaction of the user's own, with real connections of each kind."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from django.db import connections as django_connections
from django.db import transaction as django_transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import penstock
from penstock.errors import InvalidInput
from tests.broker.postgres.test_outbox import Shop
from tests.harness.postgres_server import PostgresServer

Use = Callable[[Any], Any]  # calls `publish` with a connection, once or several times
Kind = Callable[[str, Use, bool], Awaitable[None]]  # a URL, the use, and whether to commit


class RolledBack(Exception):
    """The user's own code failed."""


def end(commit: bool) -> None:
    """End a block: normally, or by an error, which rolls back."""
    if not commit:
        raise RolledBack


async def with_psycopg(url: str, use: Use, commit: bool) -> None:
    with psycopg.connect(url) as connection:
        use(connection)
        end(commit)


async def with_psycopg_async(url: str, use: Use, commit: bool) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await use(connection)
        end(commit)


async def with_asyncpg(url: str, use: Use, commit: bool) -> None:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await use(connection)
            end(commit)
    finally:
        await connection.close()


@contextmanager
def _engine(url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        yield engine
    finally:
        engine.dispose()


async def with_sqlalchemy(url: str, use: Use, commit: bool) -> None:
    with _engine(url) as engine, engine.begin() as connection:
        use(connection)
        end(commit)


async def with_sqlalchemy_session(url: str, use: Use, commit: bool) -> None:
    with _engine(url) as engine, Session(engine) as session, session.begin():
        use(session)
        end(commit)


def _asynchronous(driver: str) -> Kind:
    async def work(url: str, use: Use, commit: bool) -> None:
        engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
        try:
            async with engine.begin() as connection:
                await use(connection)
                end(commit)
        finally:
            await engine.dispose()

    return work


def _asynchronous_session(driver: str) -> Kind:
    async def work(url: str, use: Use, commit: bool) -> None:
        engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
        try:
            async with AsyncSession(engine) as session, session.begin():
                await use(session)
                end(commit)
        finally:
            await engine.dispose()

    return work


async def with_django(url: str, use: Use, commit: bool) -> None:
    """In a thread: Django refuses to be called in an event loop."""
    await asyncio.to_thread(_with_django, url, use, commit)


def _with_django(url: str, use: Use, commit: bool) -> None:
    given = psycopg.conninfo.conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": given["host"],
        "PORT": given["port"],
        "USER": given["user"],
        "PASSWORD": given["password"],
        "NAME": given["dbname"],
    }
    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": database}, USE_TZ=True)
        django.setup()
    connection = django_connections["default"]
    connection.settings_dict.update(database)
    try:
        with django_transaction.atomic():
            use(connection)
            end(commit)
    finally:
        connection.close()


KINDS: dict[str, Kind] = {
    "psycopg": with_psycopg,
    "psycopg, asynchronous": with_psycopg_async,
    "asyncpg": with_asyncpg,
    "SQLAlchemy": with_sqlalchemy,
    "SQLAlchemy, session": with_sqlalchemy_session,
    "SQLAlchemy, psycopg, asynchronous": _asynchronous("psycopg"),
    "SQLAlchemy, asyncpg": _asynchronous("asyncpg"),
    "SQLAlchemy, psycopg, asynchronous session": _asynchronous_session("psycopg"),
    "SQLAlchemy, asyncpg, session": _asynchronous_session("asyncpg"),
    "Django": with_django,
}


@pytest.fixture
def shop(postgres_server: PostgresServer, new_schema: Callable[[], str], tmp_path: Path) -> Shop:
    return Shop(postgres_server, new_schema(), tmp_path)


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_a_commit_publishes_and_a_rollback_does_not(shop: Shop, kind: Kind) -> None:
    def publish(payload: Any, **options: Any) -> Use:
        return lambda connection: penstock.postgres.publish(
            connection, "shop/orders", payload, schema=shop.schema, **options
        )

    async def life() -> None:
        async with shop:
            await kind(shop.url, publish({"order": 1}, headers={"a": "100 %"}, key="k"), True)
            with pytest.raises(RolledBack):
                await kind(shop.url, publish(b"never"), False)
            await kind(shop.url, publish(b"\x00\xff", priority=9), True)
            assert await shop.outbox.move() == 2
            second, first = await shop.store.lease(penstock.names.QueueName("shop", "orders"), 10)
            assert (first.payload, dict(first.headers), first.key) == (
                b'{"order":1}',
                {"a": "100 %"},
                "k",
            )
            assert (second.payload, second.priority) == (b"\x00\xff", 9)

    asyncio.run(life())


def test_a_bad_option_is_refused_clearly_and_the_transaction_goes_on(
    shop: Shop, kind: Kind
) -> None:
    def use(connection: Any) -> Any:
        def publish(payload: Any, **options: Any) -> Any:
            return penstock.postgres.publish(
                connection, "shop/orders", payload, schema=shop.schema, **options
            )

        with pytest.raises(InvalidInput, match="priority is 1000; it must be"):
            publish(b"bad", priority=1000)
        with pytest.raises(TypeError, match="colour"):
            publish(b"bad", colour="red")
        return publish(b"good")

    async def life() -> None:
        async with shop:
            await kind(shop.url, use, True)
            await shop.outbox.move()
            assert await shop.payloads() == [b"good"]

    asyncio.run(life())
