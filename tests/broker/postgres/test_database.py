"""Errors of the database in one clear sentence each, and the schema's version."""

import asyncio
import select
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.postgres.database import Database, DatabaseRefused, is_passing
from penstock.broker.postgres.schema import MIGRATIONS, SchemaMismatch, check, migrate, pending
from penstock.broker.postgres.tables import Tables
from penstock.broker.stores import KeyAdmin
from penstock.checking import without_password
from penstock.errors import InvalidInput, PenstockError, Unavailable
from tests.harness.postgres_server import PostgresServer, free_port


def refused(url: str, *, schema: str = "penstock", do_migrate: bool = True) -> PenstockError:
    """Return the error of opening a store."""
    options = ClusterOptions(schema=schema, patience_s=0.1, migrate=do_migrate)
    with pytest.raises(PenstockError) as error:
        asyncio.run(PostgresStore(url, options).claim())
    assert "secret" not in str(error.value), "a password is not shown"
    assert "\n" not in str(error.value)
    return error.value


def test_a_bad_url_is_refused() -> None:
    error = refused("postgresql://user:secret@host:port:port/x")
    assert isinstance(error, InvalidInput)
    assert "write postgresql://" in str(error)


def test_a_wrong_password_is_refused(postgres_server: PostgresServer) -> None:
    error = refused(postgres_server.url.replace("secret", "wrong"))
    assert isinstance(error, DatabaseRefused)
    assert "refused the user or the password" in str(error)


def test_a_missing_role_is_refused_at_once(postgres_server: PostgresServer) -> None:
    error = refused(postgres_server.url.replace("penstock:", "nobody_here:"))
    assert isinstance(error, DatabaseRefused)
    assert "refused the user or the password" in str(error)


def test_a_missing_database_is_named(postgres_server: PostgresServer) -> None:
    error = refused(postgres_server.url.replace("/postgres", "/nowhere"))
    assert isinstance(error, DatabaseRefused)
    assert "createdb" in str(error)


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    error = refused(f"postgresql://penstock@127.0.0.1:{free_port()}/postgres")
    assert isinstance(error, Unavailable)
    assert "cannot be used now" in str(error)


def test_missing_rights_are_named(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    schema = new_schema()
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(f"create role {schema} login password 'secret'")
    error = refused(postgres_server.url.replace("penstock:", f"{schema}:"), schema=schema)
    assert isinstance(error, DatabaseRefused)
    assert "lacks a right" in str(error)


def test_a_schema_that_is_newer_or_missing_is_refused(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    database = Database(postgres_server.url, schema=new_schema())
    with pytest.raises(SchemaMismatch, match="run `penstock migrate`"):
        check(database)
    assert isinstance(
        refused(postgres_server.url, schema=database.schema, do_migrate=False), SchemaMismatch
    )
    assert database.read(lambda session: pending(session, database.schema)) == list(MIGRATIONS)
    assert migrate(database) == len(MIGRATIONS)
    assert migrate(database) == 0
    check(database)
    newer = "insert into migration (version) values (%s)"
    database.transact(lambda session: session.execute(newer, (len(MIGRATIONS) + 1,)))
    error = refused(postgres_server.url, schema=database.schema)
    assert isinstance(error, SchemaMismatch)
    assert "upgrade Penstock" in str(error)
    database.close()


def test_brokers_that_start_together_migrate_once(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    schema = new_schema()

    async def claim_all() -> None:
        stores = [PostgresStore(postgres_server.url, ClusterOptions(schema)) for _ in range(4)]
        await asyncio.gather(*(store.claim() for store in stores))
        for store in stores:
            await store.close()

    asyncio.run(claim_all())


def test_keys_are_managed_in_a_database(postgres_server: PostgresServer, tmp_path: Path) -> None:
    keys = KeyAdmin(postgres_server.url)
    key, _ = keys.create("ci", ["publish"])
    assert [one.id for one in keys.list()] == [key.id]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:s3@db1:1,db2:2/shop", "postgresql://ann@db1:1,db2:2/shop"),
        ("postgres://db/shop?user=ann&password=s3&x=1", "postgres://db/shop?user=ann&&x=1"),
        ("postgresql://ann@db:5432/shop", "postgresql://ann@db:5432/shop"),
        ("./data", "./data"),
    ],
)
def test_a_location_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_old_changes_are_forgotten_and_new_ones_stay(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    database = Database(postgres_server.url, schema=new_schema())
    migrate(database)
    tables = Tables(database, None)
    assert tables.replace_document("old", None, b"1")
    database.transact(
        lambda session: session.execute("update change set at = at - interval '2 hours'")
    )
    assert tables.replace_document("new", None, b"1")
    tables.forget_old_changes()
    assert [change.name for change in tables.changes_since(0)[1]] == ["new"]
    database.close()


def test_a_rollback_leaves_prepared_statements_usable(postgres_server: PostgresServer) -> None:
    database = Database(postgres_server.url)
    try:
        with database.session() as session:
            session.insert("select $1::bytea", [b"a"])
            with pytest.raises(KeyError), session.transaction():
                raise KeyError
            assert session.insert("select $1::bytea", [b"b"]) == 1
    finally:
        database.close()


def test_a_process_that_hangs_in_a_transaction_does_not_keep_its_locks(
    postgres_server: PostgresServer,
) -> None:
    database = Database(postgres_server.url)
    shown = database.read(lambda one: one.one("show idle_in_transaction_session_timeout")[0])
    assert shown == "10s"
    with (
        pytest.raises(psycopg.Error, match="idle-in-transaction|closed the connection") as ended,
        database.session() as session,
        session.transaction(),
    ):
        session.execute("set local idle_in_transaction_session_timeout = 1")
        while True:
            session.one("select pg_sleep(0)")
            select.select([session.connection], [], [])
    assert is_passing(ended.value), "the transaction is repeated"
    database.close()
