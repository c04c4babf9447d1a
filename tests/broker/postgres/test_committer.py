"""Rounds of commits that overlap: answered in order, sent again when an answer is lost."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import uvloop

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.postgres.committer import Committer, Lane
from penstock.broker.postgres.database import Database, is_passing
from penstock.broker.postgres.files import PostgresFiles
from penstock.broker.postgres.schema import migrate
from penstock.broker.settings import BrokerSettings
from penstock.ledger import Damage, read_entry
from penstock.ledger.ledger import Ledger
from penstock.ledger.settings import LedgerSettings
from penstock.names import QueueName
from tests.conformance.conftest import Heard
from tests.harness.cutting_proxy import CuttingProxy
from tests.harness.postgres_server import PostgresServer, new_queue

ORDERS = QueueName("shop", "orders")
# What a server says before it ends at once.
_FIELDS = b"SWARNING\0VWARNING\0C57P02\0Mterminating connection\0\0"
NOTICE = b"N" + (4 + len(_FIELDS)).to_bytes(4, "big") + _FIELDS


class Rig:
    """A queue's ledger in a database, and a lock that keeps its commits waiting."""

    def __init__(self, server: PostgresServer, schema: str, cache: Path) -> None:
        self.database = Database(server.url, schema=schema, patience_s=0.0)
        migrate(self.database)
        self.number = new_queue(self.database)
        files = PostgresFiles(self.database, self.number, 1, str(cache))
        self.ledger = Ledger.open(
            str(cache / "queue"), LedgerSettings(sync="always"), files=files, own_lock=False
        )
        self.ledger.messages.append(b"zero")
        self.ledger.sync()
        core = SimpleNamespace(ledger=self.ledger)
        self.queue: Any = SimpleNamespace(core=core, begin_sync=self.ledger.begin_sync)
        self.done: list[tuple[str, bool]] = []
        self._schema = schema
        self.server = server

    def commit(self, committer: Committer, name: str) -> None:
        self.ledger.messages.append(name.encode())

        def done(index: int, error: Exception | None) -> None:
            self.done.append((name, error is None))

        assert list(committer.start([self.queue], done, few=False)) == []

    @contextmanager
    def held(self) -> Iterator["psycopg.Connection[Any]"]:
        """Hold the row of the queue: commits wait."""
        with psycopg.connect(self.server.url) as admin:
            admin.execute(f"set search_path to {self._schema}")
            admin.execute("select from queue where id = %s for update", (self.number,))
            yield admin

    async def waiting(self, text: str, count: int) -> list[int]:
        """Return the processes that wait for the row, oldest first, when there are enough."""
        with psycopg.connect(self.server.url, autocommit=True) as admin:
            while True:
                rows = admin.execute(
                    "select pid from pg_stat_activity where wait_event_type = 'Lock' and query "
                    "like %s order by query_start",
                    (f"{text}%",),
                ).fetchall()
                if len(rows) == count:
                    return [pid for (pid,) in rows]
                await asyncio.sleep(0)

    def close(self) -> None:
        self.ledger.abandon()
        self.database.close()


@pytest.fixture
def rig(
    postgres_server: PostgresServer, new_schema: Callable[[], str], tmp_path: Path
) -> Iterator[Rig]:
    made = Rig(postgres_server, new_schema(), tmp_path)
    yield made
    made.close()


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0)


def in_committer(rig: Rig, story: Callable[[Committer], Any]) -> None:
    async def main() -> None:
        committer = Committer(rig.database)
        await committer.open()
        try:
            await story(committer)
        finally:
            await committer.close()

    asyncio.run(main())


def test_rounds_overlap_and_are_answered_in_order(rig: Rig) -> None:
    async def story(committer: Committer) -> None:
        with rig.held():
            rig.commit(committer, "one")
            rig.commit(committer, "two")
            await rig.waiting("with fence", 2)
            assert rig.done == []
            assert rig.ledger.messages.durable_next_seq == 2
        await until(lambda: len(rig.done) == 2)
        assert rig.done == [("one", True), ("two", True)]
        assert rig.ledger.messages.durable_next_seq == 4

    in_committer(rig, story)


def test_a_takeover_fails_all_rounds_under_way(rig: Rig) -> None:
    async def story(committer: Committer) -> None:
        with rig.held() as admin:
            rig.commit(committer, "one")
            rig.commit(committer, "two")
            await rig.waiting("with fence", 2)
            admin.execute("update queue set token = 2 where id = %s", (rig.number,))
        await until(lambda: len(rig.done) == 2)
        assert rig.done == [("one", False), ("two", False)]
        assert rig.ledger.is_stopped

    in_committer(rig, story)


def test_a_round_behind_one_that_failed_is_not_confirmed(rig: Rig, tmp_path: Path) -> None:
    """The log has a hole there: a takeover cuts the later round off."""

    async def story(committer: Committer) -> None:
        with rig.held(), psycopg.connect(rig.server.url, autocommit=True) as killer:
            rig.commit(committer, "one")
            (first,) = await rig.waiting("with fence", 1)
            rig.commit(committer, "two")
            await rig.waiting("with fence", 2)
            killer.execute("select pg_terminate_backend(%s)", (first,))
            (again,) = await rig.waiting("update queue set repeats", 1)
            killer.execute("select pg_terminate_backend(%s)", (again,))
            await until(lambda: rig.ledger.root.files.journal.failure is not None)  # type: ignore[attr-defined]
        await until(lambda: len(rig.done) == 2)
        assert rig.done == [("one", False), ("two", False)]

    in_committer(rig, story)
    damage: list[Damage] = []
    rig.database.transact(
        lambda session: session.execute("update queue set token = 2 where id = %s", (rig.number,))
    )
    (tmp_path / "second").mkdir()
    files = PostgresFiles(rig.database, rig.number, 2, str(tmp_path / "second"))
    again = Ledger.open(
        str(tmp_path / "second" / "queue"), files=files, own_lock=False, on_damage=damage.append
    )
    assert again.messages.next_seq == 2
    assert read_entry(again.messages, 1).payload == b"zero"
    assert all(one.torn for one in damage), "an unfinished write, as after a power cut"
    again.close()


def test_a_blocking_sync_covers_the_rounds_under_way(rig: Rig) -> None:
    async def story(committer: Committer) -> None:
        with rig.held():
            rig.commit(committer, "one")
            await rig.waiting("with fence", 1)
            rig.ledger.messages.append(b"two")
            syncing = asyncio.ensure_future(asyncio.to_thread(rig.ledger.sync))
            await rig.waiting("update queue set repeats", 1)
        await syncing
        assert rig.ledger.messages.durable_next_seq == 4
        await until(lambda: len(rig.done) == 1)
        assert rig.done == [("one", True)]

    in_committer(rig, story)


def test_messages_whose_commit_lost_its_answer_are_published_once(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    schema = new_schema()
    proxy = CuttingProxy(postgres_server.port)
    options = ClusterOptions(schema=schema, beat_s=1e9, outbox_s=1e9)
    url = postgres_server.url.replace(str(postgres_server.port), str(proxy.port))

    async def story() -> None:
        store = PostgresStore(url, options)
        await store.open(Heard())
        await store.create(ORDERS, BrokerSettings().queue_settings())
        sent = [b"%d" % number for number in range(60)]
        for start in range(0, 60, 20):
            proxy.swallow_answers(2)
            await asyncio.gather(
                *(store.publish(ORDERS, [one]) for one in sent[start : start + 20])
            )
        assert proxy.cuts == 6
        await store.close()
        again = PostgresStore(postgres_server.url, options)
        await again.open(Heard())
        found = [one.payload for one in await again.lease(ORDERS, 100)]
        assert found == sent
        await again.close()

    try:
        asyncio.run(story())
    finally:
        proxy.close()


def test_many_calls_at_once_find_the_owner_of_a_queue(
    postgres_server: PostgresServer,
    new_schema: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ClusterOptions(schema=new_schema(), beat_s=1e9, outbox_s=1e9)
    asked: list[QueueName] = []

    async def story() -> None:
        owner, other = (PostgresStore(postgres_server.url, options) for _ in range(2))
        await owner.open(Heard())
        await owner.create(ORDERS, BrokerSettings().queue_settings())
        await other.open(Heard())
        take = other.membership.take

        def counted(queue: QueueName) -> tuple[int, int, int]:
            asked.append(queue)
            return take(queue)

        monkeypatch.setattr(other.membership, "take", counted)
        for _ in range(3):
            await asyncio.gather(*(other.publish(ORDERS, [b"x"]) for _ in range(30)))
        assert len(await owner.lease(ORDERS, 100)) == 90
        await other.close()
        await owner.close()

    asyncio.run(story())
    assert asked == [ORDERS]


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_connection_that_is_reset_fails_its_statement(
    postgres_server: PostgresServer, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """A server that dies with unread data resets the connection. uvloop tells no reader of it."""
    proxy = CuttingProxy(postgres_server.port)
    url = postgres_server.url.replace(str(postgres_server.port), str(proxy.port))
    database = Database(url)

    async def story() -> None:
        session = database.connect()
        session.prepare("select pg_sleep(60)")
        lane = Lane(asyncio.get_running_loop(), session)
        answers: asyncio.Queue[int | psycopg.Error] = asyncio.Queue()
        lane.send("select pg_sleep(60)", [], answers.put_nowait)
        await asyncio.sleep(0)
        await asyncio.to_thread(proxy.reset_all, NOTICE)
        async with asyncio.timeout(20):
            outcome = await answers.get()
        assert isinstance(outcome, psycopg.Error)
        assert is_passing(outcome)
        lane.close()

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(story())
    finally:
        database.close()
        proxy.close()


def test_a_connection_that_stays_silent_fails_its_statement(
    postgres_server: PostgresServer,
) -> None:
    database = Database(postgres_server.url)

    async def story() -> None:
        session = database.connect()
        session.prepare("select pg_sleep(60)")
        lane = Lane(asyncio.get_running_loop(), session, answer_s=0.1)
        answers: asyncio.Queue[int | psycopg.Error] = asyncio.Queue()
        lane.send("select pg_sleep(60)", [], answers.put_nowait)
        async with asyncio.timeout(20):
            outcome = await answers.get()
        assert isinstance(outcome, psycopg.Error)
        assert is_passing(outcome)
        lane.close()

    asyncio.run(story())
    database.close()


class WatchedLoop(asyncio.SelectorEventLoop):
    """Counts how often a reader was added and removed, and called."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[int] = []
        self.removed: list[int] = []
        self.calls = 0

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        def counted(*args: Any) -> None:
            self.calls += 1
            callback(*args)

        self.added.append(fd)
        super().add_reader(fd, counted, *args)

    def remove_reader(self, fd: Any) -> bool:
        self.removed.append(fd)
        return super().remove_reader(fd)


def test_a_connection_is_watched_from_one_statement_to_the_next(
    postgres_server: PostgresServer,
) -> None:
    database = Database(postgres_server.url)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WatchedLoop)
        session = database.connect()
        session.prepare("select")
        lane = Lane(loop, session)
        loop.added.clear()
        answers: asyncio.Queue[int | psycopg.Error] = asyncio.Queue()
        for _ in range(5):
            lane.send("select", [], answers.put_nowait)
            assert await answers.get() == 1
        assert len(loop.added) == 1
        assert loop.added[0] not in loop.removed
        lane.close()
        assert loop.added[0] in loop.removed

    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        runner.run(story())
    database.close()


def test_a_connection_that_breaks_between_two_statements_fails_the_next_one(
    postgres_server: PostgresServer,
) -> None:
    proxy = CuttingProxy(postgres_server.port)
    url = postgres_server.url.replace(str(postgres_server.port), str(proxy.port))
    database = Database(url)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WatchedLoop)
        session = database.connect()
        session.prepare("select")
        lane = Lane(loop, session)
        answers: asyncio.Queue[int | psycopg.Error] = asyncio.Queue()
        lane.send("select", [], answers.put_nowait)
        assert await answers.get() == 1
        watched = loop.added[-1]
        await asyncio.to_thread(proxy.reset_all, NOTICE)
        await until(lambda: watched in loop.removed)  # else the loop would call it without end
        called = loop.calls
        for _ in range(5):
            await asyncio.sleep(0)
        assert loop.calls - called < 5
        lane.send("select", [], answers.put_nowait)
        async with asyncio.timeout(20):
            outcome = await answers.get()
        assert isinstance(outcome, psycopg.Error)
        assert is_passing(outcome)
        lane.close()

    try:
        with asyncio.Runner(loop_factory=WatchedLoop) as runner:
            runner.run(story())
    finally:
        database.close()
        proxy.close()
