"""What Spark reads is what the queue's own reader gives, row for row."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, LongType, StructType

import penstock
from penstock.arrow.selection import Table
from penstock.arrow.tables import ALIASES, NEVER_NULL
from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NotALedger
from penstock.ledger import Ledger
from penstock.spark.options import ReadOptions
from penstock.spark.source import BatchReader
from tests.spark.in_process import planned, read, rows, source
from tests.spark.random_queues import COLUMNS, expected, fill, open_small, work


def identity_of(path: Path) -> int:
    with Ledger.open(str(path), read_only=True) as ledger:
        return ledger.identity


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("max_partition_bytes", ["4096", "1m"])
def test_random_queue_reads_as_its_own_reader_does(
    tmp_path: Path, seed: int, max_partition_bytes: str
) -> None:
    random = Random(seed)
    with open_small(tmp_path, ManualClock()) as queue:
        fill(queue, random, 300)
        work(queue, random, 60)
        if seed % 3 == 0:
            queue.compact()  # some segments are gone, others rewritten, with tombstones
        fill(queue, random, 50)
        if seed % 2:
            queue.sync()
            found = rows(tmp_path, columns=COLUMNS, maxPartitionBytes=max_partition_bytes)
            assert found == expected(tmp_path, identity_of(tmp_path))
    found = rows(tmp_path, columns=COLUMNS, maxPartitionBytes=max_partition_bytes)
    assert found == expected(tmp_path, identity_of(tmp_path))
    assert len(found) > 50


@pytest.mark.parametrize("table", ["messages", "events", "state"])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_said_to_be_there_always_is(tmp_path: Path, seed: int, table: Table) -> None:
    random = Random(seed)
    with open_small(tmp_path, ManualClock()) as queue:
        fill(queue, random, 200)
        work(queue, random, 60)
        queue.groups.create("reports")
        queue.dequeue_batch(20, group="reports")
        queue.purge(group="reports")
        queue.compact()
    reader, tasks = planned(tmp_path, table=table, columns="*")
    batches = [batch for task in tasks for batch in reader.read(task)]
    always = NEVER_NULL[table] - ALIASES.keys()
    assert batches
    for batch in batches:
        assert {field.name for field in batch.schema if not field.nullable} == always
        assert [name for name in always if batch.column(name).null_count] == []


def test_ranges_of_tasks_have_neither_gap_nor_overlap(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(20):
            queue.enqueue_batch([b"x" * 50] * 100)
    for size in (4096, 5000, 20000, 1 << 20):
        _, tasks = planned(tmp_path, maxPartitionBytes=size)
        found = [row["seq"] for row in rows(tmp_path, columns="seq", maxPartitionBytes=size)]
        assert found == list(range(1, 2001)), f"{len(tasks)} tasks of {size} bytes"
    _, tasks = planned(tmp_path, minPartitions=7)
    assert len(tasks) >= 7


def test_a_torn_tail_is_not_read(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue_batch([b"one", b"two"])
        queue.enqueue(b"three")
    (tmp_path / "closed.json").unlink()  # as a kill leaves it
    segment = tmp_path / "messages" / f"{1:020d}.log"
    whole = segment.read_bytes()
    closing_checkpoint, last_entry = 42, 26 + 5
    segment.write_bytes(whole[: -closing_checkpoint - last_entry + 10])
    assert [row["payload"] for row in rows(tmp_path)] == [b"one", b"two"]


def test_a_batch_that_is_being_written_is_not_read_in_part(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue(b"zero")
        queue.enqueue_batch([b"one", b"two"])
    (tmp_path / "closed.json").unlink()  # as a kill leaves it
    segment = tmp_path / "messages" / f"{1:020d}.log"
    whole = segment.read_bytes()
    segment.write_bytes(whole[: -42 - 10] + bytes(500))
    assert [row["payload"] for row in rows(tmp_path)] == [b"zero"]


def test_rotation_and_writing_after_planning_change_nothing(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue_batch([b"x" * 50] * 30)
        queue.sync()
        reader, tasks = planned(tmp_path)
        for _ in range(10):
            queue.enqueue_batch([b"y" * 50] * 100)
        assert [row["seq"] for row in read(reader, tasks)] == list(range(1, 31))


def test_compaction_after_planning_is_read_around(tmp_path: Path) -> None:
    with open_small(tmp_path, ManualClock()) as queue:
        keep = queue.enqueue("kept until tomorrow", delay=86400)
        for _ in range(10):
            queue.enqueue_batch([b"x" * 50] * 100)
        queue.sync()
        reader, tasks = planned(tmp_path, columns="seq,id", failOnDataLoss="false")
        before = len(read(reader, tasks))
        queue.dequeue_batch(900)
        queue.compact()
        after = read(reader, tasks)
        assert before == 1001
        assert after[0]["id"] == keep
        assert {row["seq"] for row in after} >= set(range(902, 1002))


def test_an_empty_queue_has_no_rows(tmp_path: Path) -> None:
    penstock.open(str(tmp_path)).close()
    _, tasks = planned(tmp_path)
    assert tasks == []
    assert list(BatchReader(source(tmp_path).schema(), ReadOptions(location="x")).read(None)) == []


def test_compressed_payloads_come_as_they_were_published_or_as_they_are_stored(
    tmp_path: Path,
) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue(b"abc" * 1000, compression="gzip")
        queue.enqueue(b"plain")
    assert [row["payload"] for row in rows(tmp_path)] == [b"abc" * 1000, b"plain"]
    stored = rows(tmp_path, decompress="false", columns="payload,compression")
    assert len(stored[0]["payload"]) < 200
    assert [row["compression"] for row in stored] == ["gzip", None]


def test_several_queues_are_told_apart(tmp_path: Path) -> None:
    for namespace, name in (("shop", "orders"), ("shop", "mails"), ("lab", "orders")):
        (tmp_path / namespace).mkdir(exist_ok=True)
        with penstock.open(str(tmp_path / namespace / name)) as queue:
            queue.enqueue(f"{namespace}/{name}")
    every = rows(tmp_path, columns="namespace,queue,payload")
    assert [(r["namespace"], r["queue"]) for r in every] == [
        ("lab", "orders"),
        ("shop", "mails"),
        ("shop", "orders"),
    ]
    assert all(r["payload"].decode() == f"{r['namespace']}/{r['queue']}" for r in every)
    assert source(tmp_path).schema().fieldNames()[:2] == ["namespace", "queue"]
    assert len(rows(tmp_path, subscribe="shop/orders,lab/orders")) == 2
    assert len(rows(tmp_path, subscribePattern="shop/.*")) == 2
    assert "queue" not in source(tmp_path, queue="shop/orders").schema().fieldNames()


def test_offsets_and_times_choose_the_messages(tmp_path: Path) -> None:
    clock = ManualClock(now_s=1_700_000_000)
    with open_small(tmp_path, clock) as queue:
        for _ in range(100):
            clock.advance(1)
            queue.enqueue(b"x" * 100)
    name = tmp_path.name

    def seqs(**options: Any) -> list[int]:
        return [row["seq"] for row in rows(tmp_path, columns="seq", **options)]

    assert seqs(startingOffsets=f'{{"{name}": 90}}') == list(range(90, 101))
    assert seqs(endingOffsets=f'{{"{name}": 5}}') == [1, 2, 3, 4]
    assert seqs(startingOffsets=f'{{"{name}": -2}}', endingOffsets="latest") == seqs()
    assert seqs(startingOffsets="latest") == []
    assert seqs(startingTimestamp="2023-11-14T22:13:30Z") == list(range(10, 101))
    assert seqs(endingTimestamp=1_700_000_003_000) == [1, 2]
    with pytest.raises(InvalidInput, match="does not name the queue"):
        seqs(startingOffsets="{}")
    with pytest.raises(InvalidInput, match="names the queue 'other'"):
        seqs(startingOffsets=f'{{"{name}": 1, "other": 1}}')
    with pytest.raises(InvalidInput, match="whose next seq is 101"):
        seqs(endingOffsets=f'{{"{name}": 200}}')


def test_a_schema_chooses_columns_and_must_have_their_types(tmp_path: Path) -> None:
    penstock.open(str(tmp_path)).close()
    made = source(tmp_path)
    made.reader(StructType().add("seq", LongType()).add("payload", BinaryType()))
    with pytest.raises(InvalidInput, match="'payload' of messages is binary, not string"):
        made.reader(StructType().add("payload", "string"))
    with pytest.raises(InvalidInput, match="no column 'sequence'"):
        made.reader(StructType().add("sequence", LongType()))
    made.reader(StructType().add("seq", LongType(), nullable=False))
    with pytest.raises(InvalidInput, match="'key' of messages can be null"):
        made.reader(StructType().add("key", "string", nullable=False))


def test_a_place_without_queues_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotALedger, match="does not exist"):
        rows(tmp_path / "nowhere")
    with pytest.raises(NotALedger, match="neither a queue"):
        rows(tmp_path)
    penstock.open(str(tmp_path / "orders")).close()
    with pytest.raises(InvalidInput, match=r"no queue 'mails': the queue at .*orders is"):
        rows(tmp_path / "orders", queue="mails")
