"""pandas, polars and DuckDB read a queue in one line, while another process writes to it."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pytest

import penstock.arrow
from penstock.clock import ManualClock
from penstock.queue import Queue
from tests.spark.random_queues import open_small

START = datetime.fromtimestamp(1_700_000_000, UTC)
Rows = list[tuple[int, bytes]]
Read = Callable[..., Rows]


def with_pandas(path: Path, **options: Any) -> Rows:
    frame = penstock.arrow.read(path, **options).read_pandas()
    assert isinstance(frame, pd.DataFrame)
    return list(zip(frame["seq"].tolist(), frame["payload"].tolist(), strict=True))


def with_polars(path: Path, **options: Any) -> Rows:
    frame = pl.from_arrow(penstock.arrow.read(path, **options))
    assert isinstance(frame, pl.DataFrame)
    return list(frame.select("seq", "payload").iter_rows())


def with_duckdb(path: Path, **options: Any) -> Rows:
    orders = penstock.arrow.read(path, **options)
    assert orders.schema.names
    return duckdb.connect().execute("select seq, payload from orders order by seq").fetchall()


@pytest.fixture(params=[with_pandas, with_polars, with_duckdb], ids=["pandas", "polars", "duckdb"])
def read(request: pytest.FixtureRequest) -> Read:
    found: Read = request.param
    return found


class Orders:
    """A queue that is open for writing, with a message a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(now_s=START.timestamp())
        self.queue: Queue = open_small(path, self.clock)
        self.rows: Rows = []

    def publish(self, count: int) -> None:
        for _ in range(count):
            payload = b"%0100d" % len(self.rows)
            self.queue.enqueue(payload)
            self.rows.append((len(self.rows) + 1, payload))
            self.clock.advance(1)
        self.queue.sync()


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    made = Orders(tmp_path / "orders")
    yield made
    made.queue.close()


def test_a_live_queue_is_read_again_and_again(orders: Orders, read: Read) -> None:
    """Over several segments, beside leases and acks, and after compaction."""
    leased: list[int] = []
    for _ in range(3):
        orders.publish(60)
        assert read(orders.path) == orders.rows
        jobs = orders.queue.lease(20)
        orders.queue.ack(jobs[:10])
        leased = [job.seq for job in jobs[10:]]  # earlier leases have ended
        orders.queue.sync()
        assert read(orders.path) == orders.rows
    assert len(list((orders.path / "messages").glob("*.log"))) > 2
    while jobs := orders.queue.lease(100):
        orders.queue.ack(jobs)
    orders.queue.compact()
    left = read(orders.path)
    assert len(left) < 180
    assert [row for row in orders.rows if row in left] == left
    assert {seq for seq, _ in left} >= {*leased}


def test_a_range_of_a_live_queue(orders: Orders, read: Read) -> None:
    orders.publish(100)
    assert read(orders.path, first_seq=10, end_seq=20) == orders.rows[9:19]
    since, until = START + timedelta(seconds=30), START + timedelta(seconds=40)
    assert read(orders.path, since=since, until=until) == orders.rows[30:40]
    assert read(orders.path, columns="payload,seq", first_seq=99) == orders.rows[98:]
    assert read(orders.path, since=START + timedelta(days=1)) == []


def test_times_are_times_in_each_tool(orders: Orders) -> None:
    orders.publish(3)
    wanted = [START + timedelta(seconds=number) for number in range(3)]
    frame = penstock.arrow.read(orders.path).read_pandas()
    assert [at.to_pydatetime() for at in frame["timestamp"]] == wanted
    table = pl.from_arrow(penstock.arrow.read(orders.path))
    assert isinstance(table, pl.DataFrame)
    assert table["timestamp"].to_list() == wanted
    found = penstock.arrow.read(orders.path)
    assert found.schema.names
    epochs = duckdb.connect().execute("select epoch_us(timestamp) from found").fetchall()
    assert [micros for (micros,) in epochs] == [int(at.timestamp()) * 1_000_000 for at in wanted]
