"""Ranges of seqs and times: by options, and by `penstock.spark.read`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.spark import read
from tests.spark.in_process import planned, rows
from tests.spark.random_queues import open_small

START = datetime.fromtimestamp(1_700_000_000, UTC)
COUNT = 500


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[datetime]]:
    """A queue, and when each of its messages came: some at the same time, with pauses between."""
    path = tmp_path_factory.mktemp("ranges") / "orders"
    clock, random, left = ManualClock(now_s=1_700_000_000), Random(7), COUNT
    with open_small(path, clock) as queue:
        while left:
            clock.advance(random.choice((0.000_001, 1, 60)))
            many = min(random.randint(1, 9), left)
            queue.enqueue_batch([b"x" * 60] * many)
            left -= many
    return path, [row["timestamp"] for row in rows(path, columns="timestamp")]


def test_any_range_has_the_rows_of_the_model(data: tuple[Path, list[datetime]]) -> None:
    path, times = data
    random, everything = Random(3), range(1, COUNT + 1)

    def moment() -> datetime:
        near = random.choice((*times, START, times[-1] + timedelta(days=1)))
        return near + timedelta(microseconds=random.choice((-1, 0, 0, 1)))

    for _ in range(150):
        options: dict[str, Any] = {"columns": "seq"}
        first, end = sorted(random.choices(range(1, COUNT + 50), k=2))
        since, until = sorted((moment(), moment()))
        kept: set[int] = set(everything)
        match random.randrange(3):
            case 0:
                options["startingOffsets"] = first
                kept &= set(range(first, COUNT + 1))
            case 1:
                options["startingTimestamp"] = since.isoformat()
                kept &= {seq for seq in everything if times[seq - 1] >= since}
        match random.randrange(3):
            case 0:
                options["endingOffsets"] = end
                kept &= set(range(1, end))
            case 1:
                options["endingTimestamp"] = until.isoformat()
                kept &= {seq for seq in everything if times[seq - 1] < until}
        found = [row["seq"] for row in rows(path, **options)]
        assert found == sorted(kept), options


def test_a_narrow_range_reads_a_small_part(data: tuple[Path, list[datetime]]) -> None:
    path, times = data
    _, every = planned(path, maxPartitionBytes=4096)
    for narrow in (
        {"startingOffsets": 250, "endingOffsets": 255},
        {"startingTimestamp": times[250].isoformat(), "endingTimestamp": times[262].isoformat()},
    ):
        options: dict[str, Any] = {"maxPartitionBytes": 4096, **narrow}
        _, some = planned(path, **options)
        assert 1 <= len(some) <= 2 < len(every)


def test_a_seq_holds_for_each_of_several_queues(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    for name, count in (("a", 10), ("b", 3), ("c", 0)):
        with open_small(tmp_path / "shop" / name) as queue:
            if count:
                queue.enqueue_batch([b"x"] * count)
    twice = rows(tmp_path, subscribe="shop/b,shop/b", columns="seq")
    assert [row["seq"] for row in twice] == [1, 2, 3], "named twice, read once"
    found = rows(tmp_path, startingOffsets=3, endingOffsets=5)
    assert [(row["queue"], row["seq"]) for row in found] == [("a", 3), ("a", 4), ("b", 3)]


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_read_takes_ranges_columns_and_tables(
    spark: SparkSession, data: tuple[Path, list[datetime]], tmp_path: Path
) -> None:
    path, times = data
    few = read(spark, path, first_seq=10, end_seq=13, columns=["seq", "payload"])
    assert few.columns == ["seq", "payload"]
    assert [row.seq for row in few.collect()] == [10, 11, 12]
    since, until = times[100], times[200]
    wanted = [seq for seq in range(1, COUNT + 1) if since <= times[seq - 1] < until]
    between = read(spark, str(path), since=since, until=until.isoformat(), columns="seq")
    assert sorted(row.seq for row in between.collect()) == wanted
    # The same by filters, which Spark applies: no row more, none less, whatever its time zone.
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        whole = read(spark, path, columns=["seq", "timestamp"])
        filtered = whole.where((whole.timestamp >= since) & (whole.timestamp < until))
        assert sorted(row.seq for row in filtered.collect()) == wanted
        again = read(spark, path, since=since, until=until, columns=["seq", "timestamp"])
        assert sorted(row.seq for row in again.collect()) == wanted
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert read(spark, path, table="state", end_seq=5).where("state = 'ready'").count() == 4
    assert read(spark, path, table="events").count() == 0
    open_small(tmp_path / "empty").close()
    assert read(spark, tmp_path / "empty", since=START, columns="*").limit(1).collect() == []


def test_read_refuses_what_makes_no_sense() -> None:
    nobody: Any = None  # it is seen before Spark is asked
    for options, said in (
        ({"first_seq": 1, "since": START}, "first_seq or since, not both"),
        ({"end_seq": 1, "until": START}, "end_seq or until, not both"),
        ({"first_seq": -1}, "first_seq is -1"),
        ({"end_seq": "5"}, "end_seq is '5'"),
        ({"since": datetime(2026, 1, 1)}, "has no time zone"),
        ({"since": "2026"}, "must be a time such as"),
        ({"until": "yesterday"}, "must be a time such as"),
        ({"columns": []}, "columns is "),
        ({"group": "mails"}, "group applies to the table state"),
    ):
        arguments: dict[str, Any] = dict(options)
        with pytest.raises(InvalidInput, match=said):
            read(nobody, "orders", **arguments)
