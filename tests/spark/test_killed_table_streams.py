"""Drivers that stream into Delta and Iceberg tables, killed: each message is there exactly once."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

import penstock
import penstock.arrow
from penstock.spark.table_sink import write_files
from tests.spark import in_process
from tests.spark.driver_process import Driver
from tests.spark.finishing import finish
from tests.spark.lake import FORMATS, QUERY, make_catalog, name_of, rows, target_of
from tests.spark.streaming_driver import start

COLUMNS = ("seq", "timestamp", "payload", "key", "headers")
LOT = 60  # messages that come before each life of the driver: three micro-batches
KILLS = 12


@pytest.fixture(autouse=True)
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_catalog(tmp_path, monkeypatch)  # the driver finds it in the environment too


class Streams:
    """A queue, and a driver that streams it into one or several tables."""

    def __init__(self, place: Path, kinds: tuple[str, ...] = FORMATS) -> None:
        self._place = place
        self.queue = place / "queue"
        self.tables = {kind: name_of(kind, place) for kind in kinds}

    def publish(self, count: int = LOT) -> None:
        with penstock.open(str(self.queue)) as queue:
            for n in range(count):
                queue.enqueue(b"%d" % n, key=f"k{n % 3}", headers={"n": str(n)})

    def live(self, until: Callable[[Driver], None]) -> None:
        """Run a driver until something happens, and kill it."""
        place = self._place
        targets = [f"{kind}={table}" for kind, table in self.tables.items()]
        where = str(self.queue), str(place / "checkpoints")
        driver = Driver(place / "log", *where, "on", *targets)
        try:
            until(driver)
        finally:
            driver.kill()

    def finish(self, spark: SparkSession) -> None:
        """Run the streams to the end of the queue, from their checkpoints."""
        for kind, table in self.tables.items():
            checkpoint = str(self._place / "checkpoints" / kind)
            finish(partial(start, spark, str(self.queue), table, checkpoint, kind, once=True))

    def in_a_commit(self, kind: str) -> Callable[[Driver], None]:
        """Return what waits for a further commit of a table."""

        def until(driver: Driver) -> None:
            driver.says("reading")
            before = self._commits(kind)
            self.publish()
            driver.works_until(lambda: not self._commits(kind) <= before)

        return until

    def _commits(self, kind: str) -> set[str]:
        """Return the commits of a table that have begun. Those of Delta are done by then."""
        root, pattern = self._place / "warehouse", "**/*.metadata.json"
        if kind == "delta":
            root, pattern = Path(self.tables[kind]), "_delta_log/*.json"
        return {path.name for path in root.glob(pattern)}


def differences(queue: Path, table: str) -> tuple[list[int], list[int]]:
    """Return the seqs that a table lacks, and those that it has too often or with other values."""

    def counted(found: list[in_process.Row]) -> "Counter[tuple[object, ...]]":
        for row in found:
            row["headers"] = tuple(sorted(dict(row["headers"]).items()))
        return Counter(tuple(row[name] for name in COLUMNS) for row in found)

    wanted = counted(in_process.rows(queue, columns=",".join(COLUMNS), archive="none"))
    there = counted(rows(table).select(COLUMNS).to_pylist())
    missing, extra = wanted - there, there - wanted
    return sorted(int(str(one[0])) for one in missing), sorted(int(str(one[0])) for one in extra)


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
def test_tables_of_a_killed_driver_have_each_message_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    streams = Streams(tmp_path)
    streams.publish()
    # The kill comes when a batch is in the Delta table, and Spark has hardly recorded it. The
    # stream into the Iceberg table is in the midst of some batch.
    streams.live(streams.in_a_commit("delta"))
    streams.finish(spark)
    for table in streams.tables.values():
        assert differences(streams.queue, table) == ([], [])


@pytest.mark.long
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_whose_driver_is_often_killed_has_each_message_once(
    kind: str, tmp_path: Path, spark: SparkSession
) -> None:
    random, streams = Random(kind), Streams(tmp_path, (kind,))

    def at_random(driver: Driver) -> None:
        # Some die while they start, recover or commit; most in the midst of batches.
        if random.random() < 0.8:
            driver.says("reading")
        driver.works(random.random() * 3)

    for number in range(KILLS):
        streams.publish()
        streams.live(streams.in_a_commit(kind) if number % 3 == 2 else at_random)
    streams.finish(spark)
    assert differences(streams.queue, streams.tables[kind]) == ([], [])


@pytest.mark.parametrize("kind", FORMATS)
def test_the_comparison_sees_what_a_table_has_twice_or_lacks(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the record of batches, a repeated one would be there twice."""
    streams = Streams(tmp_path, (kind,))
    streams.publish(5)
    name = streams.tables[kind]
    target = target_of(name)

    def commit(batch_id: int, first: int, end: int) -> None:
        found = penstock.arrow.read(
            str(streams.queue), columns=COLUMNS, first_seq=first, end_seq=end
        ).read_all()
        target.prepare(found.schema)
        files = write_files(target.opened(), found.schema, iter(found.to_batches()))
        target.commit(QUERY, batch_id, batch_id, list(files))

    commit(0, 1, 3)
    commit(1, 3, 5)
    assert differences(streams.queue, name) == ([5], [])
    commit(1, 3, 5)
    assert differences(streams.queue, name) == ([5], [])
    monkeypatch.setattr(f"penstock.spark.{kind}_stream.is_repeated", lambda *_, **__: False)
    commit(1, 3, 5)
    commit(2, 5, 6)
    assert differences(streams.queue, name) == ([], [3, 4])
