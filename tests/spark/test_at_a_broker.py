"""Queues read at a broker: the same rows as from its files, whatever the broker does meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import penstock
from penstock.broker import Verb
from penstock.clock import ManualClock
from penstock.errors import KeyRefused, NoSuchQueue, NotAllowed
from penstock.queue import Queue
from penstock.spark import DamagedSegment, DataLoss
from penstock.spark.stream_reader import StreamReader, split_offsets
from tests.server.running import RunningServer
from tests.spark.in_process import as_rows, planned, read, rows, source
from tests.spark.random_queues import COLUMNS, fill, open_small, work

QUEUE = "shop/orders"
TABLES = {
    "messages": f"{COLUMNS},timestamp,expires_at,deliver_at,dedup,attributes,segment,offset,size",
    "events": "*",
    "state": "seq,state,attempts,reason,due_at",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data" / "shop").mkdir(parents=True)
    return tmp_path / "data"


@contextmanager
def small_queue(data: Path, name: str = "orders", **options: Any) -> Iterator[Queue]:
    with open_small(data / "shop" / name, **options) as queue:
        yield queue


def seqs(found: list[dict[str, Any]]) -> list[int]:
    return [row["seq"] for row in found]


@pytest.mark.parametrize("seed", range(3))
def test_every_table_is_as_it_is_in_the_files(data: Path, seed: int) -> None:
    random = Random(seed)
    with small_queue(data, clock=ManualClock()) as queue:
        fill(queue, random, 300)
        queue.groups.create("audit")
        work(queue, random, 60)
        queue.dequeue_batch(20, group="audit")
        queue.compact()
        fill(queue, random, 50)
    with RunningServer(data) as server:
        for table, columns in TABLES.items():
            options: dict[str, Any] = {"queue": QUEUE, "table": table, "columns": columns}
            wanted = rows(data, **options)
            assert len(wanted) > 50
            for size in ("4096", "1m"):
                found = rows(server.url, maxPartitionBytes=size, **options)
                assert found == wanted, (table, size)


def test_offsets_times_and_patterns_choose_the_same(data: Path) -> None:
    clock = ManualClock()
    for name in ("orders", "mails"):
        with small_queue(data, name, clock=clock) as queue:
            for number in range(100):
                clock.advance(1)
                queue.enqueue(f"{number}" * 20)
    with RunningServer(data) as server:
        choices: list[dict[str, Any]] = [
            {"subscribePattern": "shop/.*"},
            {"subscribe": "shop/mails,shop/orders", "startingTimestamp": "1700000050500"},
            {"queue": QUEUE, "endingTimestamp": "1700000150500"},
            {"queue": QUEUE, "startingOffsets": '{"shop/orders": 42}', "minPartitions": "5"},
            {"queue": QUEUE, "endingOffsets": '{"shop/orders": 42}', "maxPartitionBytes": "4096"},
            {},
        ]
        for options in choices:
            wanted = rows(data, **options)
            assert rows(server.url, **options) == wanted
        in_the_url = rows(f"{server.url}/shop/orders")
        assert in_the_url == rows(data, queue=QUEUE)
        assert in_the_url == rows(f"{server.url}/shop/orders", queue=QUEUE)  # said twice


def test_what_is_published_is_seen_at_once_and_batches_whole(data: Path) -> None:
    with RunningServer(data) as server, penstock.open(f"{server.url}/shop/orders") as queue:
        queue.enqueue_batch([b"x"] * 7)
        for number in range(2, 6):
            found = rows(server.url, queue=QUEUE)
            assert seqs(found) == list(range(1, 7 * number - 6))
            queue.enqueue_batch([b"x"] * 7)


def test_rewriting_and_rotation_after_planning_are_read_around(data: Path) -> None:
    with small_queue(data) as queue:
        queue.enqueue_batch([b"x" * 50] * 1000)
        keep = queue.enqueue(b"keep", priority=9)
        for leased in queue.lease(900):
            if leased.id != keep:
                queue.ack(leased)
    with RunningServer(data) as server, penstock.open(f"{server.url}/shop/orders") as queue:
        reader, tasks = planned(
            server.url, queue=QUEUE, maxPartitionBytes=4096, failOnDataLoss="false"
        )
        queue.enqueue_batch([b"new" * 50] * 200)
        assert queue.compact().bytes_freed > 0
        found = seqs(read(reader, tasks))
        assert found == sorted(set(found)), "each once, in order"
        assert set(found) >= {1001, *range(902, 1001)}
        assert max(found) == 1001
        strict, planned_before = planned(server.url, queue=QUEUE, maxPartitionBytes=4096)
        queue.purge()
        queue.compact()
        with pytest.raises(DataLoss, match="were removed by retention or compaction"):
            read(strict, planned_before)


def test_damage_is_told_as_from_files(data: Path) -> None:
    with small_queue(data) as queue:
        for number in range(60):
            queue.enqueue(f"message {number:03}" * 10)
    victim = sorted((data / "shop" / "orders" / "messages").glob("*.log"))[1]
    content = bytearray(victim.read_bytes())
    content[1000] ^= 0xFF
    victim.write_bytes(content)
    with RunningServer(data) as server:
        with pytest.raises(DamagedSegment, match="can be read and 1 are lost"):
            rows(server.url, queue=QUEUE)
        found = rows(server.url, queue=QUEUE, verify="false")
        assert found == rows(data, queue=QUEUE, verify="false")
        assert len(found) == 59


def test_keys_are_asked_for_and_never_told(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_queue(data) as queue:
        queue.enqueue(b"x")
    with RunningServer(data) as server:
        reader = server.new_key(Verb.READ, namespaces=["shop"])
        other = server.new_key(Verb.READ, namespaces=["other"])
        with pytest.raises(KeyRefused):
            rows(server.url, queue=QUEUE)
        with pytest.raises(NotAllowed):
            rows(server.url, queue=QUEUE, key=other)
        made, tasks = planned(server.url, queue=QUEUE, key=reader)
        assert len(read(made, tasks)) == 1
        assert reader not in repr([task.__dict__ for task in tasks]) + repr(made.__dict__)
        monkeypatch.setenv("PENSTOCK_KEY", reader)
        assert len(rows(server.url, queue=QUEUE)) == 1
        assert len(rows(server.url)) == 1  # of all queues, those that the key may read
        with pytest.raises(NoSuchQueue):
            rows(server.url, queue="shop/nowhere")


# -- streams ---------------------------------------------------------------------------------------


def stream(url: str, **options: Any) -> StreamReader:
    made = source(url, queue=QUEUE, **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    return reader


def micro_batch(reader: StreamReader, start: dict[str, int]) -> tuple[list[int], dict[str, int]]:
    end = reader.latestOffset(start, ReadAllAvailable())
    tasks = reader.partitions(start, end)
    found = [row for task in tasks for batch in reader.read(task) for row in as_rows(batch)]
    return seqs(found), end


def test_a_stream_follows_and_moves_its_group_through_the_broker(data: Path) -> None:
    with RunningServer(data) as server, penstock.open(f"{server.url}/shop/orders") as queue:
        queue.enqueue_batch([b"x"] * 5)
        reader = stream(server.url, startingOffsets="earliest", group="spark")
        start = reader.initialOffset()
        assert split_offsets(start).seqs == {QUEUE: 1}
        assert queue.stats().groups["spark"].ready == 5
        first, end = micro_batch(reader, start)
        assert first == [1, 2, 3, 4, 5]
        queue.enqueue(b"new")
        reader.commit(end)
        assert queue.stats().groups["spark"].ready == 1
        second, end = micro_batch(reader, end)
        assert second == [6]
        assert reader.latestOffset(end, ReadAllAvailable()) is end


def test_a_group_is_moved_through_the_broker_that_has_the_files(data: Path) -> None:
    """By path: the broker is found by its lock."""
    with RunningServer(data) as server, penstock.open(f"{server.url}/shop/orders") as queue:
        queue.enqueue_batch([b"x"] * 5)
        reader = stream(str(data), startingOffsets="earliest", group="spark")
        start = reader.initialOffset()
        found, end = micro_batch(reader, start)
        assert found == [1, 2, 3, 4, 5]
        reader.commit(end)
        assert queue.stats().groups["spark"].ready == 0
