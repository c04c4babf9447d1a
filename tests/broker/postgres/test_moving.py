"""Moving a store: ids and seqs stay, every row is compared, a killed move is run again."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from penstock.broker import Broker, BrokerSettings
from penstock.broker.access import INSIDE
from penstock.broker.moving import MARK, Copy, DirectorySite, Moved, MoveFailed, Site, move_store
from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.postgres.scheduled_queues import DOCUMENT, listed_in
from penstock.broker.postgres.site import DatabaseSite
from penstock.broker.store import Settlement, Store
from penstock.broker.stores import KeyAdmin, open_store
from penstock.codec import parse_id
from penstock.errors import BrokerError, InvalidInput, LedgerLocked, NotALedger, NotEmpty
from penstock.ledger.files import Files
from penstock.model import NewMessage
from penstock.names import QueueName
from penstock.operations import Browse, GetStats, ListSchedules, PutSchedule, Schedule
from tests.harness.postgres_server import PostgresServer

QUEUES = [QueueName("shop", "orders"), QueueName("shop", "mail"), QueueName("default", "other")]
MESSAGES = 500


class Place(NamedTuple):
    """A store that can be opened again and again."""

    site: Callable[[], Site]
    store: Callable[[], Store]


@pytest.fixture
def directory(tmp_path: Path) -> Place:
    path = str(tmp_path / "data")
    return Place(lambda: DirectorySite(path), lambda: open_store(path))


@pytest.fixture
def database(postgres_server: PostgresServer, new_schema: Callable[[], str]) -> Place:
    schema = new_schema()
    return Place(
        lambda: DatabaseSite(postgres_server.url, schema=schema),
        lambda: PostgresStore(postgres_server.url, ClusterOptions(schema=schema)),
    )


async def with_broker(place: Place, work: Callable[[Broker], Any]) -> Any:
    broker = Broker(place.store(), BrokerSettings())
    await broker.start()
    try:
        return await work(broker)
    finally:
        await broker.stop()


async def fill(broker: Broker) -> None:
    """Publish; lease and ack some; leave some leased, some dead, some delayed."""
    for queue in QUEUES:
        messages = [NewMessage(payload=b"%d" % n, key=f"k{n % 7}") for n in range(MESSAGES)]
        await broker.publish(INSIDE, queue, messages)
        await broker.publish(INSIDE, queue, [NewMessage(payload=b"late", delay=3600)])
        leased = await broker.lease(INSIDE, queue, n=7, lease_s=3600)
        acks = [Settlement("ack", one.receipt) for one in leased[:3]]
        await broker.store.settle(queue, acks)


async def state(broker: Broker) -> dict[str, Any]:
    """Return what a client sees of all queues."""
    found: dict[str, Any] = {}
    for queue in QUEUES:
        stats = await broker.store.run(queue, GetStats())
        page = await broker.store.run(queue, Browse(limit=1000))
        found[str(queue)] = (
            stats.groups["main"]._replace(oldest_ready_age_s=0.0),
            [(row.message, row.state, row.attempts) for row in page.rows],
            (await broker.store.info(queue)).settings,
        )
    return found


def no_report(queue: QueueName, moved: Moved) -> None:
    """Do not care how far it is."""


def test_there_and_back_nothing_changes(directory: Place, database: Place, tmp_path: Path) -> None:
    asyncio.run(with_broker(directory, fill))
    before = asyncio.run(with_broker(directory, state))
    found = move_store(directory.site(), database.site(), no_report)
    assert set(found) == set(QUEUES)
    assert {moved.messages for moved in found.values()} == {MESSAGES + 1}
    assert asyncio.run(with_broker(database, state)) == before
    path = str(tmp_path / "back")
    back = Place(lambda: DirectorySite(path), lambda: open_store(path))
    move_store(database.site(), back.site(), no_report)
    assert asyncio.run(with_broker(back, state)) == before


def test_namespaces_and_documents_are_moved(directory: Place, database: Place) -> None:
    async def prepare(broker: Broker) -> None:
        await broker.namespaces.create(INSIDE, "full", defaults={"max_attempts": 3}, max_queues=1)
        await broker.publish(INSIDE, QueueName("full", "one"), [b"x"])

    asyncio.run(with_broker(directory, prepare))
    move_store(directory.site(), database.site(), no_report)
    source, target = directory.site(), database.site()
    source.open(create=False)
    target.open(create=False)
    try:
        assert source.namespaces() == target.namespaces()
        documents = target.documents()
        assert listed_in(documents.pop(DOCUMENT)) == {QueueName("full", "one")}
        assert source.documents() == documents
        assert source.documents(), "the broker's secret at least"
    finally:
        source.close()
        target.close()


def test_schedules_go_on_in_the_target_without_any_call(
    directory: Place, database: Place, tmp_path: Path
) -> None:
    put = PutSchedule(Schedule("beat", b"x", every_s=3600))

    async def prepare(broker: Broker) -> Any:
        await broker.publish(INSIDE, QUEUES[1], [b"a queue without schedules"])
        await broker.publish(INSIDE, QUEUES[0], [b"x"])
        return await broker.run(INSIDE, put, QUEUES[0])

    async def look(broker: Broker) -> Any:
        assert isinstance(broker.store, PostgresStore)
        await broker.store.scheduled_queues.tend()
        assert broker.store.direct(QUEUES[0]) is not None, "no broker has it open"
        await broker.store.scheduled_queues.tend()
        assert listed_in(await broker.store.load_document(DOCUMENT)) == {QUEUES[0]}
        return (await broker.run(INSIDE, ListSchedules(), QUEUES[0])).schedules

    state = asyncio.run(with_broker(directory, prepare))
    move_store(directory.site(), database.site(), no_report)
    assert asyncio.run(with_broker(database, look)) == [state]
    path = str(tmp_path / "back")
    back = Place(lambda: DirectorySite(path), lambda: open_store(path))
    move_store(database.site(), back.site(), no_report)

    async def show(broker: Broker) -> Any:
        return (await broker.run(INSIDE, ListSchedules(), QUEUES[0])).schedules

    assert asyncio.run(with_broker(back, show)) == [state]


def test_receipts_and_new_seqs_go_on_in_the_target(directory: Place, database: Place) -> None:
    async def lease(broker: Broker) -> Any:
        await broker.publish(INSIDE, QUEUES[0], [b"one", b"two"])
        return await broker.lease(INSIDE, QUEUES[0], n=1, lease_s=3600)

    (leased,) = asyncio.run(with_broker(directory, lease))
    move_store(directory.site(), database.site(), no_report)

    async def go_on(broker: Broker) -> Any:
        (outcome,) = await broker.store.settle(QUEUES[0], [Settlement("ack", leased.receipt)])
        (published,) = await broker.publish(INSIDE, QUEUES[0], [b"three"])
        return outcome.ok, parse_id(published.id)[2]

    assert asyncio.run(with_broker(database, go_on)) == (True, 3)


# -- refusals --------------------------------------------------------------------------------------


def test_a_target_that_holds_something_is_refused(directory: Place, database: Place) -> None:
    asyncio.run(with_broker(directory, fill))
    asyncio.run(with_broker(database, fill))
    before = asyncio.run(with_broker(database, state))
    with pytest.raises(NotEmpty, match="is not empty \\(it holds 3 queues"):
        move_store(directory.site(), database.site(), no_report)
    with pytest.raises(NotEmpty, match="is not empty \\(it holds 3 queues"):
        move_store(database.site(), directory.site(), no_report)
    assert asyncio.run(with_broker(database, state)) == before


def test_a_database_on_which_a_broker_was_started_is_refused_with_what_to_do(
    directory: Place, database: Place
) -> None:
    async def nothing(broker: Broker) -> None: ...

    asyncio.run(with_broker(directory, fill))
    asyncio.run(with_broker(database, nothing))
    with pytest.raises(NotEmpty, match=r"\(a broker has been started on it\): .* \(--schema\)"):
        move_store(directory.site(), database.site(), no_report)


def test_a_directory_in_use_is_refused(directory: Place, tmp_path: Path) -> None:
    async def move(broker: Broker) -> None:
        target = DirectorySite(str(tmp_path / "target"))
        await asyncio.to_thread(move_store, directory.site(), target, no_report)

    with pytest.raises(LedgerLocked):
        asyncio.run(with_broker(directory, move))


def test_a_database_in_use_is_refused_before_its_brokers_see_a_member(
    database: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would give queues to it."""

    def joined(*arguments: Any) -> None:
        pytest.fail("it joined")

    async def move(broker: Broker) -> None:
        monkeypatch.setattr("penstock.broker.postgres.membership.Membership.join", joined)
        target = DirectorySite(str(tmp_path / "target"))
        await asyncio.to_thread(move_store, database.site(), target, no_report)

    with pytest.raises(BrokerError, match="1 brokers use .*: stop them first"):
        asyncio.run(with_broker(database, move))


def test_a_source_that_is_none_is_refused(database: Place, tmp_path: Path) -> None:
    with pytest.raises(NotALedger, match="is not the data directory of a broker"):
        move_store(DirectorySite(str(tmp_path / "none")), database.site(), no_report)
    assert not (tmp_path / "none").exists()
    with pytest.raises(BrokerError, match="lacks"):
        move_store(database.site(), DirectorySite(str(tmp_path / "new")), no_report)
    same = str(tmp_path / "same")
    with pytest.raises(InvalidInput, match="the same store"):
        move_store(DirectorySite(same), DirectorySite(same), no_report)


def test_messages_in_the_outbox_are_not_left_behind(
    database: Place, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    asyncio.run(with_broker(database, fill))
    schema = database.site().name.rpartition(" ")[2].rstrip(")")
    with psycopg.connect(postgres_server.url) as connection:
        connection.execute(f"select {schema}.publish('q', 'x')")
    with pytest.raises(NotEmpty, match="1 messages are in the outbox"):
        move_store(database.site(), DirectorySite(str(tmp_path / "new")), no_report)


# -- interruptions ---------------------------------------------------------------------------------


class Interrupted(BaseException):
    """Stands for the end of the process."""


class CutSite:
    """A site whose `keep` ends the move after some calls."""

    def __init__(self, site: Site, calls: int) -> None:
        self._site = site
        self._left = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

    def keep(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Interrupted


@pytest.mark.parametrize("to_database", [True, False])
def test_an_interrupted_move_is_run_again_and_no_broker_serves_its_target(
    directory: Place, database: Place, to_database: bool
) -> None:
    source, target = (directory, database) if to_database else (database, directory)
    asyncio.run(with_broker(source, fill))
    before = asyncio.run(with_broker(source, state))
    refused = 0
    for calls in range(0, 1000, 4):
        try:
            cut: Any = CutSite(source.site(), calls)
            move_store(cut, target.site(), no_report)
            break
        except Interrupted:
            with pytest.raises(BrokerError, match="was interrupted"):
                asyncio.run(with_broker(target, state))
            refused += 1
    assert refused > 3
    assert asyncio.run(with_broker(target, state)) == before


def test_an_unfinished_target_takes_no_other_source(
    directory: Place, database: Place, tmp_path: Path
) -> None:
    asyncio.run(with_broker(directory, fill))
    cut: Any = CutSite(directory.site(), 2)
    with pytest.raises(Interrupted):
        move_store(cut, database.site(), no_report)
    path = str(tmp_path / "second")
    asyncio.run(with_broker(Place(lambda: DirectorySite(path), lambda: open_store(path)), fill))
    with pytest.raises(NotEmpty, match="holds a part of"):
        move_store(DirectorySite(path), database.site(), no_report)


class ChangingSite:
    """A target that does not keep what it is given: one byte of a log differs."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

    def add(self, queue: QueueName, identity: int, copy: Copy) -> None:
        def spoiled(path: str, files: Files) -> int:
            size = copy(path, files)
            name = files.join(path, "messages")
            segment = files.join(name, next(n for n in files.names(name) if n.endswith(".log")))
            fd = files.open(segment, "write")
            files.pwrite(fd, b"\xff", files.pread(fd, 1 << 20, 0).rfind(b"499"))
            files.fdatasync(fd)
            files.close(fd)
            return size

        self._site.add(queue, identity, spoiled)


def test_a_row_that_differs_is_found(directory: Place, database: Place) -> None:
    asyncio.run(with_broker(directory, fill))
    spoiled: Any = ChangingSite(database.site())
    with pytest.raises(MoveFailed, match="default/other: seq 500 differs"):
        move_store(directory.site(), spoiled, no_report)
    assert MARK in _documents(database.site())


def _documents(site: Site) -> dict[str, bytes]:
    site.open(create=False)
    try:
        return site.documents()
    finally:
        site.close()


# -- the command -----------------------------------------------------------------------------------


def test_a_killed_command_is_run_again(
    tmp_path: Path, postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    path, schema = str(tmp_path / "data"), new_schema()
    asyncio.run(with_broker(Place(lambda: DirectorySite(path), lambda: open_store(path)), fill))
    KeyAdmin(path).create("app", ["read"])
    command = [sys.executable, "-m", "penstock", "migrate-store", path, postgres_server.url]
    command += ["--schema", schema]
    killed = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert killed.stderr is not None
    assert "messages" in killed.stderr.readline()  # the first queue was compared
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stderr.close()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("moved 3 queues with 1503 messages and")
    assert "secret" not in done.stderr + done.stdout
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert again.returncode == 1
    assert "is not empty (it holds 3 queues" in again.stderr
