"""The queue in a database against its reference, while connections die and answers are lost."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from penstock.broker.postgres.database import Database
from penstock.broker.postgres.files import PostgresFiles
from penstock.broker.postgres.schema import migrate
from penstock.queue.queue import Queue
from tests.harness.cutting_proxy import CuttingProxy
from tests.harness.postgres_server import PostgresServer, new_queue
from tests.harness.queue_life import Life
from tests.harness.queue_machine import QueueMachine
from tests.harness.queue_store import QueueStore


class Site:
    """A database behind a proxy that can lose answers."""

    def __init__(self, server: PostgresServer, schema: str, directory: Path) -> None:
        self.proxy = CuttingProxy(server.port)
        url = server.url.replace(str(server.port), str(self.proxy.port))
        self.database = Database(url, schema=schema)
        migrate(self.database)
        self.admin = psycopg.connect(server.url, autocommit=True)
        self.admin.execute(f"set search_path to {schema}")
        self._directory = directory
        self._numbers = count()

    def new_cache(self) -> Path:
        path = self._directory / str(next(self._numbers))
        path.mkdir()
        return path

    def close(self) -> None:
        self.database.close()
        self.proxy.close()
        self.admin.close()


class QueueInDatabase(QueueStore):
    """Each opening is a takeover by another broker, with an empty cache."""

    def __init__(self, settings: Mapping[str, Any], site: Site) -> None:
        super().__init__(settings, path=site.new_cache())
        self.site = site
        self._number = new_queue(site.database, token=0)
        self._cache: Path | None = None

    @property
    def files(self) -> PostgresFiles:
        assert isinstance(self._files, PostgresFiles)
        return self._files

    def kill(self, **settings: Any) -> Queue:
        self.queue.core.ledger.abandon()
        return self._restart(settings)

    def cut_power(self, seed: int = 0, **settings: Any) -> Queue:
        return self.kill(**settings)  # what was not committed is lost

    def _core(self) -> Any:
        if self._cache is not None:
            shutil.rmtree(self._cache)
        self._cache = self.site.new_cache()
        update = "update queue set token = token + 1 where id = %s returning token"
        row = self.site.admin.execute(update, (self._number,)).fetchone()
        assert row is not None
        self._files = PostgresFiles(self.site.database, self._number, row[0], str(self._cache))
        self.path = str(self._cache / "queue")
        return super()._core()


class MachineInDatabase(QueueMachine):
    """The commands of a queue, and the accidents of a database."""

    recorded = True  # synced before every answer
    site: Site

    def make_store(self, settings: Mapping[str, Any]) -> QueueStore:
        return QueueInDatabase(settings, self.site)

    @property
    def files(self) -> PostgresFiles:
        assert isinstance(self.store, QueueInDatabase)
        return self.store.files

    @rule()
    def connections_die(self) -> None:
        self.site.admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> "
            "pg_backend_pid() and application_name = 'penstock'"
        )

    @rule(number=st.integers(1, 2))
    def answers_are_lost(self, number: int) -> None:
        """The next transactions are committed, perhaps, and the connection breaks."""
        self.site.proxy.swallow_answers(number)

    @rule()
    def files_are_sealed(self) -> None:
        self.files.seal_complete()

    @rule()
    def copies_are_dropped(self) -> None:
        for _, _, node in self.files.cached():
            self.files.evict(node)


@pytest.fixture
def machine(
    postgres_server: PostgresServer, new_schema: Callable[[], str], tmp_path: Path
) -> Iterator[type[MachineInDatabase]]:
    found = Site(postgres_server, new_schema(), tmp_path)

    class Machine(MachineInDatabase):
        site = found

    yield Machine
    found.close()


def live(machine: MachineInDatabase, seed: str, steps: int) -> None:
    life, random = Life(machine, seed), Random(seed)
    accidents = [
        machine.connections_die,
        machine.files_are_sealed,
        machine.copies_are_dropped,
        lambda: machine.answers_are_lost(random.randint(1, 2)),
    ]
    for _ in range(steps // 10):
        life.live(10)
        random.choice(accidents)()
    machine.teardown()


def test_short_runs_in_a_database_agree_with_the_reference(
    machine: type[MachineInDatabase],
) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def test_a_long_life_in_a_database_agrees_with_the_reference(
    machine: type[MachineInDatabase],
) -> None:
    live(machine(), "database", 600)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [f"database {number}" for number in range(8)])
def test_many_lives_in_a_database_agree_with_the_reference(
    machine: type[MachineInDatabase], seed: str
) -> None:
    live(machine(), seed, 3_000)
