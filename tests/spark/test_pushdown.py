"""Filters that Spark hands down narrow what is read, and never leave out a row that fits."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

import penstock
from penstock.arrow.selection import Bounds
from penstock.clock import ManualClock
from penstock.spark.pushdown import bounds_of
from tests.spark.in_process import planned, rows
from tests.spark.random_queues import open_small

START = datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.fixture
def queue_path(tmp_path: Path) -> Path:
    clock = ManualClock(now_s=1_700_000_000)
    with open_small(tmp_path, clock) as queue:
        for _ in range(1000):
            clock.advance(1)
            queue.enqueue(b"x" * 60)
    return tmp_path


def seqs(path: Path, *filters: Filter) -> list[int]:
    return [row["seq"] for row in rows(path, filters=filters, columns="seq,timestamp")]


SEQ, TIME = ("seq",), ("timestamp",)


@pytest.mark.parametrize(
    ("filters", "first", "last"),
    [
        ([GreaterThan(SEQ, 990)], 991, 1000),
        ([GreaterThanOrEqual(SEQ, 990)], 990, 1000),
        ([LessThan(SEQ, 5)], 1, 4),
        ([LessThanOrEqual(SEQ, 5)], 1, 5),
        ([EqualTo(SEQ, 500)], 500, 500),
        ([In(SEQ, (10, 12, 11))], 10, 12),
        ([GreaterThan(SEQ, 100), LessThan(SEQ, 104), IsNotNull(SEQ)], 101, 103),
        ([GreaterThanOrEqual(TIME, START + timedelta(seconds=700))], 700, 1000),
        ([LessThan(TIME, START + timedelta(seconds=3))], 1, 3),
        ([EqualTo(TIME, START + timedelta(seconds=42))], 42, 42),
    ],
)
def test_filters_choose_the_range(
    queue_path: Path, filters: list[Filter], first: int, last: int
) -> None:
    assert seqs(queue_path, *filters) == list(range(first, last + 1))


def test_filters_that_nothing_can_fit_read_nothing(queue_path: Path) -> None:
    _, tasks = planned(queue_path, filters=[GreaterThan(SEQ, 10), LessThan(SEQ, 5)])
    assert tasks == []


def test_a_narrow_filter_reads_a_small_part(queue_path: Path) -> None:
    _, every = planned(queue_path, maxPartitionBytes=4096)
    _, some = planned(queue_path, maxPartitionBytes=4096, filters=[EqualTo(SEQ, 500)])
    assert len(some) == 1 < len(every)


def test_a_time_that_does_not_say_where_leaves_nothing_out() -> None:
    naive = datetime(2026, 1, 1)
    assert bounds_of([GreaterThan(TIME, naive)], "messages") == Bounds()


def test_the_seq_of_an_event_row_is_not_its_place_in_the_log() -> None:
    assert bounds_of([GreaterThan(SEQ, 10)], "events") == Bounds()
    assert bounds_of([GreaterThan(("event_seq",), 10)], "events").first_seq == 11


def test_queues_are_left_out_by_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "shop").mkdir(exist_ok=True)
        with penstock.open(str(tmp_path / "shop" / name)) as queue:
            queue.enqueue(name)
    found = rows(tmp_path, filters=[EqualTo(("queue",), "b"), EqualTo(("namespace",), "shop")])
    assert [row["payload"] for row in found] == [b"b"]
    assert rows(tmp_path, filters=[In(("namespace",), ("lab", "x"))]) == []
