"""Queues as Arrow tables: the same rows as on Spark, without Spark."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import penstock
import penstock.arrow
from penstock.arrow.loss import DamagedSegment
from penstock.arrow.tables import COLUMNS, DEFAULT_COLUMNS
from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NotALedger, PenstockError, Unreachable
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.model import NS
from tests.server.running import RunningServer
from tests.spark.in_process import rows
from tests.spark.random_queues import fill, open_small, work


def seqs(reader: pa.RecordBatchReader) -> list[int]:
    return [row["seq"] for row in reader.read_all().to_pylist()]


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """A queue of 100 messages, one a second."""
    clock = ManualClock()
    with open_small(tmp_path / "orders", clock) as queue:
        for number in range(100):
            queue.enqueue(b"%0100d" % number)
            clock.advance(1)
    return tmp_path / "orders"


@pytest.mark.parametrize("table", ["messages", "events", "state"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_spark(tmp_path: Path, table: Any, seed: int) -> None:
    random, clock = Random(seed), ManualClock()
    with open_small(tmp_path, clock) as queue:
        fill(queue, random, 300)
        work(queue, random, 60)
        if seed % 2:
            queue.compact()
        fill(queue, random, 50)
        queue.sync()
        found = penstock.arrow.read(tmp_path, table=table, columns="*").read_all().to_pylist()
        on_spark = rows(tmp_path, table=table, columns="*")
    maps = [name for name, kind in COLUMNS[table].items() if pa.types.is_map(kind)]
    for row in found:
        for name in maps:
            row[name] = dict(row[name])
    assert len(found) > 50
    assert found == on_spark


def test_blocked_messages_and_their_events_are_shown(tmp_path: Path) -> None:
    with open_small(tmp_path, ManualClock()) as queue:
        first = queue.enqueue(b"1", max_attempts=1)
        queue.enqueue(b"2", after=[first])
        queue.enqueue(b"3", after=[first], after_failed="run")
        queue.enqueue(b"4", after=[queue.enqueue(b"5")])
        queue.nack(queue.lease(), "boom")
        queue.sync()
        found = penstock.arrow.read(tmp_path, table="state", columns="*").read_all().to_pylist()
        events = penstock.arrow.read(tmp_path, table="events", columns="*").read_all().to_pylist()
    states = [row["state"] for row in found]
    assert states == ["dead", "dead", "ready", "ready", "blocked"]
    assert found[1]["reason"] == f"it comes after {first}, which is dead"
    assert [row["event"] for row in events if row["seq"] == 3] == ["resolved"]


def test_a_range_of_seqs(hundred: Path) -> None:
    assert seqs(penstock.arrow.read(hundred, first_seq=10, end_seq=20)) == list(range(10, 20))
    assert seqs(penstock.arrow.read(hundred, first_seq=90)) == list(range(90, 101))
    assert seqs(penstock.arrow.read(hundred, end_seq=1000)) == list(range(1, 101))
    assert seqs(penstock.arrow.read(hundred, first_seq=50, end_seq=50)) == []


def test_a_range_of_times(hundred: Path) -> None:
    times = penstock.arrow.read(hundred, columns="timestamp_ns").read_all()["timestamp_ns"]
    start = datetime.fromtimestamp(times[0].as_py() // NS, UTC)
    since, until = start + timedelta(seconds=10), start + timedelta(seconds=20)
    assert seqs(penstock.arrow.read(hundred, since=since, until=until)) == list(range(11, 21))
    assert seqs(penstock.arrow.read(hundred, since=since.isoformat())) == list(range(11, 101))


def test_times_in_text_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_small(tmp_path, clock) as queue:
        clock.advance(0.123456789)
        queue.enqueue(b"x")
    (at_ns,) = penstock.arrow.read(tmp_path, columns="timestamp_ns").read_all()["timestamp_ns"]
    second, fraction = divmod(at_ns.as_py(), NS)
    assert fraction == 123_456_789
    whole = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    for at, is_later in ((f"{whole}.123456789", False), (f"{whole},123456790Z", True)):
        found = seqs(penstock.arrow.read(tmp_path, since=at))
        before = seqs(penstock.arrow.read(tmp_path, until=at))
        assert (found, before) == (([], [1]) if is_later else ([1], []))
        assert [row["seq"] for row in rows(tmp_path, startingTimestamp=at)] == found
        assert [row["seq"] for row in rows(tmp_path, endingTimestamp=at)] == before


def test_only_the_segments_of_the_range_are_opened(hundred: Path) -> None:
    """Damage elsewhere is not even looked at."""
    segments = sorted((hundred / "messages").glob("*.log"))
    assert len(segments) > 2
    segments[0].write_bytes(segments[0].read_bytes()[:64] + b"\xff" * 64)
    assert seqs(penstock.arrow.read(hundred, first_seq=95)) == list(range(95, 101))
    with pytest.raises(penstock.arrow.DamagedSegment):
        penstock.arrow.read(hundred).read_all()
    rest = seqs(penstock.arrow.read(hundred, verify=False))
    assert rest == list(range(rest[0], 101))


def test_default_columns_and_chosen_ones(hundred: Path) -> None:
    assert penstock.arrow.read(hundred).schema.names == list(DEFAULT_COLUMNS["messages"])
    for columns in ("payload,seq", ["payload", "seq"]):
        assert penstock.arrow.read(hundred, columns=columns).schema.names == ["payload", "seq"]


def test_several_queues_have_their_names(tmp_path: Path) -> None:
    for name in ("orders", "refunds"):
        with open_small(tmp_path / "shop" / name) as queue:
            queue.enqueue(name.encode())
    table = penstock.arrow.read(tmp_path).read_all()
    assert table["queue"].to_pylist() == ["orders", "refunds"]
    one = penstock.arrow.read(tmp_path, queue="shop/refunds").read_all()
    assert one["payload"].to_pylist() == [b"refunds"]
    assert "queue" not in one.column_names


def test_an_empty_queue_has_its_columns(tmp_path: Path) -> None:
    open_small(tmp_path).close()
    table = penstock.arrow.read(tmp_path).read_all()
    assert (table.num_rows, table.column_names) == (0, list(DEFAULT_COLUMNS["messages"]))


def test_what_is_read_is_what_was_there_at_the_call(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue(b"before")
        queue.sync()
        reader = penstock.arrow.read(tmp_path)
        queue.enqueue(b"after")
        queue.sync()
        assert reader.read_all()["payload"].to_pylist() == [b"before"]


def test_removed_messages_are_reported_or_skipped(
    hundred: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_small(hundred) as queue:
        assert len(queue.dequeue_batch(100)) == 100
        queue.enqueue(b"last")
        queue.compact()
    with pytest.raises(penstock.arrow.DataLoss, match="fail_on_data_loss"):
        penstock.arrow.read(hundred, first_seq=1).read_all()
    left = seqs(penstock.arrow.read(hundred, first_seq=1, fail_on_data_loss=False))
    assert left[-1] == 101
    assert "fail_on_data_loss=False" in caplog.records[-1].getMessage()
    assert seqs(penstock.arrow.read(hundred)) == left


def test_damage_is_reported_or_skipped(hundred: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = sorted(hundred.rglob("*.log"))[0]
    data = bytearray(segment.read_bytes())
    data[1000] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(penstock.arrow.DamagedSegment, match="verify=False"):
        penstock.arrow.read(hundred).read_all()
    assert 90 < len(seqs(penstock.arrow.read(hundred, verify=False))) < 100
    assert "verify=False" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"table": "message"}, "one of messages"),
        ({"columns": "sequence"}, "did you mean"),
        ({"columns": []}, "columns"),
        ({"queue": "nothing"}, "there is no queue 'nothing'"),
        ({"first_seq": -1}, "first_seq"),
        ({"first_seq": 1, "since": "2026-01-01"}, "not both"),
        ({"end_seq": 1, "until": "2026-01-01"}, "not both"),
        ({"since": "yesterday"}, "since is 'yesterday'"),
        ({"since": datetime(2026, 1, 1)}, "no time zone"),
        ({"group": "reports"}, "table state only"),
        ({"table": "state", "group": ""}, "group is ''"),
        ({"since": pd.NaT}, "since is NaT; it must be a datetime"),
        ({"first_seq": 20, "end_seq": 10}, "first_seq is 20, which is after end_seq, 10"),
        ({"since": "2026-01-02", "until": "2026-01-01"}, "since is '2026-01-02', which is later"),
        ({"since": "2026-01-01T00:00:00.1234567891Z"}, "at most 9 digits"),
        ({"since": "3000-01-01"}, "since is '3000-01-01', which is after 2262"),
        ({"until": datetime(3000, 1, 1, tzinfo=UTC)}, "until is .*, which is after 2262"),
        ({"since": 1_700_000_000}, "since is 1700000000; it must be a datetime"),
        ({"queue": b"orders"}, "queue is b'orders'; it must be text"),
        ({"queue": 5}, "queue is 5; it must be text"),
        ({"queue": ["orders", 5]}, r"queue is \['orders', 5\]; it must be text"),
        ({"columns": [5]}, r"columns is \[5\]; it must be text"),
        ({"columns": [b"seq"]}, "it must be text"),
        ({"verify": "false"}, "verify is 'false'; it must be true or false"),
        ({"fail_on_data_loss": "no"}, "fail_on_data_loss is 'no'; it must be true or false"),
        ({"archive": ""}, "archive is '', which is empty"),
        ({"archive": None}, "archive is None; it must be text"),
    ],
)
def test_bad_arguments(hundred: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        penstock.arrow.read(hundred, **arguments)


def test_a_directory_that_is_no_queue(tmp_path: Path) -> None:
    with pytest.raises(NotALedger):
        penstock.arrow.read(tmp_path)
    with pytest.raises(PenstockError):
        penstock.arrow.read(tmp_path / "nowhere")


def test_pandas_polars_and_duckdb_read_it(hundred: Path) -> None:
    frame = penstock.arrow.read(hundred).read_pandas()
    assert frame["seq"].sum() == 5050
    lazy = pl.from_arrow(penstock.arrow.read(hundred, columns="seq,payload"))
    assert isinstance(lazy, pl.DataFrame)
    assert lazy["seq"].sum() == 5050
    orders = penstock.arrow.read(hundred)
    assert orders.schema.names
    found = duckdb.connect().execute("select count(*), sum(seq) from orders").fetchall()
    assert found == [(100, 5050)]


def test_it_needs_nothing_but_its_own_extra(hundred: Path) -> None:
    code = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("pyspark", "pandas", "httpx2", "msgspec", "click"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import penstock.arrow
print(penstock.arrow.read(sys.argv[1]).read_all().num_rows)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(hundred)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("100\n", "")


def test_a_broker_serves_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    with open_small(tmp_path / "shop" / "orders") as queue:
        fill(queue, Random(1), 200)
    wanted = penstock.arrow.read(tmp_path, queue="shop/orders").read_all()
    with RunningServer(tmp_path) as server:
        assert penstock.arrow.read(server.url, queue="shop/orders").read_all() == wanted
        assert penstock.arrow.read(f"{server.url}/shop/orders").read_all() == wanted
    with pytest.raises(Unreachable):
        penstock.arrow.read(server.url)


# -- files that are not as they were written -------------------------------------------------------


def test_an_index_of_another_segment_is_not_used(tmp_path: Path) -> None:
    with penstock.open(tmp_path, segment_entries=20) as queue:
        for _ in range(60):
            queue.enqueue(b"x" * 1000)
    indexes = sorted((tmp_path / "messages").glob("*.idx"))
    indexes[1].write_bytes(indexes[0].read_bytes())
    found = penstock.arrow.read(tmp_path, columns="seq", first_seq=15, end_seq=23)
    assert seqs(found) == list(range(15, 23))


@pytest.mark.parametrize("way", ["a segment", "first of a segment", "last of a segment"])
def test_a_range_of_times_reports_lost_messages_that_may_be_in_it(
    hundred: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = penstock.arrow.read(hundred, columns=["timestamp", "segment"]).read_all()
    segments = found["segment"].to_pylist()
    first = segments[50]  # the seq with which a segment in the midst begins
    last = first + segments.count(first) - 1
    times = {seq: at.isoformat() for seq, at in enumerate(found["timestamp"].to_pylist(), 1)}
    segment = hundred / "messages" / f"{first:020d}.log"
    if way == "a segment":
        segment.unlink()
        lost = first + 2
    else:
        data = bytearray(segment.read_bytes())
        data[HEADER_BYTES + 40 if way == "first of a segment" else -10] ^= 1
        segment.write_bytes(data)
        lost = first if way == "first of a segment" else last
    for low, high in ((lost, 101), (lost, lost + 1), (1, lost + 1)):
        since, until = times[low], times.get(high)
        with pytest.raises(DamagedSegment, match="are lost"):
            penstock.arrow.read(hundred, since=since, until=until).read_all()
        with pytest.raises(DamagedSegment):
            until = until or "2100-01-01"
            rows(hundred, startingTimestamp=since, endingTimestamp=until)
    assert seqs(penstock.arrow.read(hundred, since=times[last + 2])) == list(range(last + 2, 101))
    assert seqs(penstock.arrow.read(hundred, until=times[first - 1])) == list(range(1, first - 1))
    rest = seqs(penstock.arrow.read(hundred, since=times[lost], verify=False))
    assert rest == list(range((last if way == "a segment" else lost) + 1, 101))
    assert "skipped" in caplog.text


def test_events_of_several_messages_are_read_behind_damage(tmp_path: Path) -> None:
    with open_small(tmp_path, ManualClock()) as queue:
        queue.enqueue_batch([b"x"] * 5)
        queue.ack(queue.lease(5))
        queue.enqueue(b"x")
        queue.ack(queue.lease())
        queue.sync()
        whole = penstock.arrow.read(tmp_path, table="events", columns="*").read_all().to_pylist()
    events = tmp_path / "events" / f"{1:020d}.log"
    data = bytearray(events.read_bytes())
    data[HEADER_BYTES + 20] ^= 1  # in the first event
    events.write_bytes(data)
    reader = penstock.arrow.read(tmp_path, table="events", columns="*", verify=False)
    left = reader.read_all().to_pylist()
    assert 5 < len(left) < len(whole)
    assert left == whole[-len(left) :]
