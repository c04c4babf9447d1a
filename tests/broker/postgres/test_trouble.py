"""A database in trouble: read-only, full, set to another time, with conflicting transactions."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import psycopg
import pytest

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.postgres.database import Database, Session
from penstock.broker.postgres.schema import migrate
from penstock.broker.postgres.tables import Tables
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Settlement
from penstock.errors import DiskFull, PenstockError
from penstock.names import QueueName
from tests.conformance.conftest import Heard
from tests.harness.postgres_server import PostgresServer
from tests.harness.power_mounts import tmpfs

ORDERS = QueueName("shop", "orders")
QUIET = ClusterOptions(beat_s=1e9, outbox_s=1e9, rebalance_s=1e9)
Story = Callable[[PostgresStore, "psycopg.Connection[Any]"], Coroutine[Any, Any, None]]


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server whose settings a test may change."""
    server = PostgresServer().create().start()
    yield server
    server.remove()


def run(server: PostgresServer, options: ClusterOptions, story: Story) -> None:
    """Open a store with a queue, and beside it a connection of an administrator."""

    async def main() -> None:
        store = PostgresStore(server.url, options)
        await store.open(Heard())
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("set default_transaction_read_only = off")
            admin.execute(f"set search_path to {options.schema}")
            try:
                await store.create(ORDERS, BrokerSettings().queue_settings())
                await story(store, admin)
            finally:
                await store.close()

    asyncio.run(main())


async def payloads(store: PostgresStore) -> list[bytes]:
    return [one.payload for one in await store.lease(ORDERS, 1000)]


def set_read_only(admin: "psycopg.Connection[Any]", value: str) -> None:
    admin.execute(f"alter system set default_transaction_read_only = {value}")
    admin.execute("select pg_reload_conf()")
    with psycopg.connect(admin.info.dsn, password="secret", autocommit=True) as other:
        while other.execute("show default_transaction_read_only").fetchone() != (value,):
            pass


def test_calls_wait_while_the_primary_is_read_only(own_server: PostgresServer) -> None:
    async def story(store: PostgresStore, admin: "psycopg.Connection[Any]") -> None:
        await store.publish(ORDERS, [b"before"])
        set_read_only(admin, "on")
        publishing = asyncio.ensure_future(store.publish(ORDERS, [b"meanwhile"]))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.shield(publishing)
        set_read_only(admin, "off")
        await publishing
        assert await payloads(store) == [b"before", b"meanwhile"]

    run(own_server, QUIET, story)


def test_a_primary_that_stays_read_only_fails_the_call_and_not_the_queue(
    own_server: PostgresServer,
) -> None:
    async def story(store: PostgresStore, admin: "psycopg.Connection[Any]") -> None:
        await store.publish(ORDERS, [b"before"])
        set_read_only(admin, "on")
        with pytest.raises(PenstockError, match="read-only"):
            await store.publish(ORDERS, [b"refused"])
        set_read_only(admin, "off")
        await store.publish(ORDERS, [b"after"])
        assert await payloads(store) == [b"before", b"after"]

    run(own_server, QUIET._replace(patience_s=0.3), story)


@pytest.mark.root
def test_a_full_disk_of_the_database_is_named_and_loses_nothing(
    own_server: PostgresServer,
) -> None:
    async def story(store: PostgresStore, admin: "psycopg.Connection[Any]") -> None:
        admin.execute(f"create tablespace small location '{directory}'")
        admin.execute("alter table chunk set tablespace small")
        answered = []
        with pytest.raises(DiskFull, match="No space left on device.*nothing was written"):
            for number in range(1000):
                await store.publish(ORDERS, [b"%d" % number + bytes(200_000)])
                answered.append(number)
        assert answered
        admin.execute("alter table chunk set tablespace pg_default")  # room is made
        await store.publish(ORDERS, [b"after"])
        *found, after = [one.rstrip(b"\0") for one in await payloads(store)]
        assert after == b"after"
        assert [int(one) for one in found] == answered

    with tmpfs(own_server.directory / "small", size_bytes=8 << 20) as directory:
        shutil.chown(directory, own_server.directory.owner())
        run(own_server, QUIET, story)
        own_server.stop()  # before its tablespace is unmounted


def test_a_clock_set_forward_lets_another_broker_take_over_and_loses_nothing(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    """By the database's clock the owner is dead, yet it goes on: it is fenced off."""
    options = QUIET._replace(schema=new_schema())

    async def story(first: PostgresStore, admin: "psycopg.Connection[Any]") -> None:
        await first.publish(ORDERS, [b"one"])
        admin.execute("update broker set alive_until = alive_until - interval '1 hour'")
        second = PostgresStore(postgres_server.url, options)
        await second.open(Heard())
        await second.publish(ORDERS, [b"two"])
        await asyncio.to_thread(second.membership.renew)
        with pytest.raises(PenstockError, match="took the queue over"):
            await first.publish(ORDERS, [b"refused"])
        await first.publish(ORDERS, [b"three"])  # forwarded to the new owner
        assert await payloads(first) == [b"one", b"two", b"three"]
        await second.close()

    run(postgres_server, options, story)


def test_a_clock_set_back_keeps_no_dead_broker_alive(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    options = QUIET._replace(schema=new_schema(), patience_s=1.0)

    async def story(first: PostgresStore, admin: "psycopg.Connection[Any]") -> None:
        await first.publish(ORDERS, [b"one"])
        admin.execute("update broker set alive_until = alive_until + interval '1 day'")
        await asyncio.to_thread(first.membership.drop)  # as when the process dies
        second = PostgresStore(postgres_server.url, options)
        await second.open(Heard())
        assert await payloads(second) == [b"one"]
        await second.close()

    run(postgres_server, options, story)


def test_a_lock_of_before_a_clock_was_set_back_is_not_waited_for(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    database = Database(postgres_server.url, schema=new_schema())
    migrate(database)
    tables = Tables(database, None)
    assert tables.acquire_lock("hook", "dead", 30)
    assert not tables.acquire_lock("hook", "other", 30)
    update = "update lock set ends_at = ends_at + interval '1 hour'"
    database.transact(lambda session: session.execute(update))
    assert tables.acquire_lock("hook", "other", 30)
    assert not tables.acquire_lock("hook", "third", 30)
    database.close()


def test_a_transaction_that_deadlocks_is_repeated(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    schema = new_schema()
    # This side notices the deadlock first, and is the victim.
    url = f"{postgres_server.url}?options=-cdeadlock_timeout%3D20ms"
    database = Database(url, schema=schema)
    migrate(database)
    add = "insert into document values ('a', ''), ('b', '')"
    database.transact(lambda session: session.execute(add))
    lock = "select from document where name = %s for update"
    attempts: list[int] = []

    with psycopg.connect(postgres_server.url) as other:
        other.execute(f"set search_path to {schema}")
        other.execute("set deadlock_timeout = '60s'")
        other.execute(lock, ("b",))

        def work(session: Session) -> None:
            attempts.append(1)
            session.execute(lock, ("a",))
            if len(attempts) == 1:
                closing.start()
            session.execute(lock, ("b",))

        def close_the_circle() -> None:
            other.execute(lock, ("a",))
            other.rollback()

        closing = threading.Thread(target=close_the_circle)
        database.transact(work)
        closing.join(30)
    assert len(attempts) > 1
    database.close()


def test_a_transaction_that_cannot_be_serialized_is_repeated(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    schema = new_schema()
    url = f"{postgres_server.url}?options=-cdefault_transaction_isolation%3Dserializable"
    database = Database(url, schema=schema)
    migrate(database)
    add = "insert into document values ('a', '0')"
    database.transact(lambda session: session.execute(add))
    attempts: list[int] = []

    def work(session: Session) -> None:
        attempts.append(1)
        session.one("select content from document")
        if len(attempts) == 1:
            with psycopg.connect(postgres_server.url, autocommit=True) as other:
                other.execute(f"update {schema}.document set content = '1'")
        session.execute("update document set content = content || '2'::bytea")

    database.transact(work)
    content = database.read(lambda session: session.one("select content from document"))
    assert bytes(content[0]) == b"12"
    assert len(attempts) == 2
    database.close()


def test_a_transaction_that_cannot_be_serialized_at_its_commit_is_repeated(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    schema = new_schema()
    url = f"{postgres_server.url}?options=-cdefault_transaction_isolation%3Dserializable"
    database = Database(url, schema=schema)
    migrate(database)
    add = "insert into document values ('a', '0'), ('b', '0')"
    database.transact(lambda session: session.execute(add))
    attempts: list[int] = []

    def work(session: Session) -> None:
        """Read a and write b, while another transaction reads b and writes a."""
        attempts.append(1)
        session.one("select content from document where name = 'a'")
        session.execute("update document set content = '1' where name = 'b'")
        if len(attempts) == 1:
            with psycopg.connect(postgres_server.url) as other:
                other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
                other.execute(f"select content from {schema}.document where name = 'b'").fetchone()
                other.execute(f"update {schema}.document set content = '1' where name = 'a'")

    database.transact(work)
    assert len(attempts) == 2
    database.close()


def test_a_store_works_where_transactions_are_serializable(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    url = f"{postgres_server.url}?options=-cdefault_transaction_isolation%3Dserializable"
    options = QUIET._replace(schema=new_schema())

    async def story() -> None:
        store = PostgresStore(url, options)
        await store.open(Heard())
        queues = [QueueName("shop", f"q{number}") for number in range(4)]
        await asyncio.gather(
            *(store.create(queue, BrokerSettings().queue_settings()) for queue in queues)
        )
        for _ in range(5):
            await asyncio.gather(
                *(store.publish(queue, [b"x"]) for queue in queues for _ in range(5))
            )
        for queue in queues:
            found = await store.lease(queue, 100)
            assert len(found) == 25
            done = [Settlement("ack", one.receipt) for one in found]
            assert all(one.ok for one in await store.settle(queue, done))
        await store.close()

    asyncio.run(story())
