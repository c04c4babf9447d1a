"""What readiness and metrics say of the database."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.broker.postgres.database import Database
from penstock.broker.postgres.health import Health, read_state
from penstock.broker.postgres.schema import migrate
from penstock.broker.store import DatabaseState
from tests.harness.postgres_server import PostgresPair, PostgresServer
from tests.server.running import RunningServer


@pytest.fixture
def database(postgres_server: PostgresServer, new_schema: Callable[[], str]) -> Iterator[Database]:
    found = Database(postgres_server.url, schema=new_schema())
    migrate(found)
    yield found
    found.close()


def look(database: Database) -> DatabaseState:
    with database.session() as session:
        return read_state(session, database.name)


def test_a_lone_primary_is_well(database: Database) -> None:
    state = look(database)
    assert state.name == database.name
    assert "secret" not in state.name
    assert (state.is_primary, state.needs_standby, state.standbys) == (True, False, ())
    assert state.problem is None
    assert {"chunk", "queue", "outbox"} <= {table.name for table in state.tables}


def test_the_oldest_snapshot_of_any_session_is_seen(database: Database) -> None:
    with psycopg.connect(postgres_url(database)) as foreign:
        foreign.execute("set transaction isolation level repeatable read")
        foreign.execute("select pg_sleep(0.01)")
        assert look(database).oldest_snapshot_s >= 0.01


def postgres_url(database: Database) -> str:
    where, _, name = database.name.partition("/")
    return f"postgresql://penstock:secret@{where}/{name}"


def test_waiting_and_refused_rows_of_the_outbox_are_counted(database: Database) -> None:
    with database.session() as session:
        session.execute("select publish('q', 'one'), publish('q', 'two')")
        session.execute("update outbox set error = 'no' where id = (select max(id) from outbox)")
    state = look(database)
    assert (state.outbox_waiting, state.outbox_refused) == (1, 1)


def test_a_read_only_database_is_a_problem(database: Database) -> None:
    with database.session() as session:
        session.execute("set default_transaction_read_only = on")
        state = read_state(session, database.name)
        session.connection.close()
    assert not state.is_primary
    assert state.problem == "it is read-only"


def test_a_synchronous_standby_is_named_and_missed() -> None:
    pair = PostgresPair().start()
    try:
        database = Database(pair.url, schema="health")
        migrate(database)
        state = look(database)
        assert state.needs_standby
        assert [(one.name, one.sync_state) for one in state.standbys] == [("standby", "sync")]
        assert state.problem is None
        pair.standby.stop()
        with psycopg.connect(pair.primary.url, autocommit=True) as admin:
            while admin.execute("select from pg_stat_replication").fetchone() is not None:
                pass  # until the primary has noticed
        state = look(database)
        assert state.problem == "commits wait for a synchronous standby, and none is connected"
        assert state.is_primary
        database.close()
    finally:
        pair.remove()


async def state_of_hung_database() -> DatabaseState:
    with socket.create_server(("127.0.0.1", 0)) as hung:  # it accepts, and never answers
        port = hung.getsockname()[1]
        database = Database(f"postgresql://penstock:secret@127.0.0.1:{port}/x")
        state = await Health(database, wait_s=0.05).state()
    database.close()
    return state


def test_a_database_that_hangs_does_not_hang_the_answer() -> None:
    state = asyncio.run(state_of_hung_database())
    assert state.problem == "it does not answer"
    assert not state.is_primary


def test_a_look_that_fails_says_why(database: Database) -> None:
    async def ask() -> tuple[DatabaseState, DatabaseState]:
        health = Health(database)
        well = await health.state()
        with database.session() as session:
            session.execute("drop table outbox")
        fresh = await health.state()
        assert fresh is well, "a state is read at most every two seconds"
        return well, await Health(database).state()

    well, broken = asyncio.run(ask())
    assert well.problem is None
    assert 'relation "outbox" does not exist' in str(broken.problem)


# -- over HTTP -------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    monkeypatch.setenv("PENSTOCK_TEST_STORE", "postgres")
    with RunningServer(tmp_path / "data") as running:
        yield running


def test_readiness_shows_the_database_and_metrics_have_its_series(server: RunningServer) -> None:
    with server.client() as http:
        answer = http.get("/readyz").json()
        assert answer["status"] == "ready"
        found = answer["database"]
        assert found["primary"] is True
        assert found["standbys"] == []
        assert "secret" not in str(answer)
        page = http.get("/metrics").text
    assert 'penstock_database_dead_rows{table="chunk"}' in page
    assert "penstock_database_up 1.0" in page


def test_with_keys_readiness_shows_the_database_to_a_key_that_may_read(
    server: RunningServer,
) -> None:
    reader, writer = server.new_key("read"), server.new_key("publish")
    with server.client() as http:
        answers = {
            key: http.get("/readyz", headers={"authorization": f"Bearer {key}"} if key else {})
            for key in ("", reader, writer, "ps_wrong")
        }
    assert {answer.status_code for answer in answers.values()} == {200}
    assert [key for key, answer in answers.items() if "database" in answer.json()] == [reader]


def test_a_database_that_takes_no_writes_is_not_ready(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def state() -> DatabaseState:
        return DatabaseState("db1/shop", problem="it is read-only")

    monkeypatch.setattr(server.server.broker.store, "database_state", state)
    with server.client() as http:
        answer = http.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "trouble")
        assert answer.json()["reason"] == "PostgreSQL (db1/shop): it is read-only"
        assert answer.json()["database"]["primary"] is False
