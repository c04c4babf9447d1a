"""Bad bytes and removed ranges are told, with numbers, and passed over only when asked for."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.arrow.locations import Directory
from penstock.arrow.logs import watcher_of
from penstock.arrow.planning import Partition, plan_ranges
from penstock.arrow.ranges import NOTHING_REQUIRED
from penstock.arrow.reading import read_partition
from penstock.arrow.selection import Selection
from penstock.arrow.tables import schema_of
from penstock.clock import ManualClock
from penstock.spark import DamagedSegment, DataLoss
from penstock.spark.stream_reader import StreamReader, split_offsets
from tests.spark.in_process import as_rows, planned, read, rows, source
from tests.spark.random_queues import open_small


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A queue with many segments; in the second of them a byte was changed."""
    with open_small(tmp_path) as queue:
        for _ in range(10):
            queue.enqueue_batch([b"x" * 50] * 20)
    second = sorted((tmp_path / "messages").glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[1000] ^= 0xFF
    second.write_bytes(data)
    return tmp_path


def test_damage_is_an_error_that_counts_what_can_be_read_and_what_is_lost(damaged: Path) -> None:
    with pytest.raises(DamagedSegment) as error:
        rows(damaged)
    said = str(error.value)
    assert "1 are lost" in said
    assert "can be read" in said
    assert "verify=false" in said
    assert "penstock verify" in said


def test_without_verify_reading_goes_on_behind_the_damage(damaged: Path) -> None:
    found = [row["seq"] for row in rows(damaged, verify="false")]
    assert len(found) == 199
    assert len(set(range(1, 201)) - set(found)) == 1


@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_tasks_whose_range_is_sound_are_not_disturbed(damaged: Path, size: int) -> None:
    reader, tasks = planned(
        damaged, maxPartitionBytes=size, endingOffsets=f'{{"{damaged.name}": 10}}'
    )
    assert len(read(reader, tasks)) == 9


def test_a_damaged_header_loses_nothing(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(10):
            queue.enqueue_batch([b"x" * 50] * 20)
    second = sorted((tmp_path / "messages").glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[20] ^= 0xFF
    second.write_bytes(data)
    assert [row["seq"] for row in rows(tmp_path)] == list(range(1, 201))


def test_a_segment_that_is_missing_is_told(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(10):
            queue.enqueue_batch([b"x" * 50] * 20)
    sorted((tmp_path / "messages").glob("*.log"))[2].unlink()
    with pytest.raises(DamagedSegment, match="lost"):
        rows(tmp_path)
    assert len(rows(tmp_path, verify="false")) < 200


def test_an_index_that_lies_is_not_believed(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(30):
            queue.enqueue_batch([b"x" * 50] * 20)
    indexes = sorted((tmp_path / "messages").glob("*.idx"))
    assert len(indexes) > 3
    first = indexes[0].read_bytes()
    for number, index in enumerate(indexes):
        if number % 2:
            index.write_bytes(first)
        else:
            index.unlink()
    assert [row["seq"] for row in rows(tmp_path, maxPartitionBytes=4096)] == list(range(1, 601))


def test_a_range_that_retention_removed_is_an_error_that_names_it(tmp_path: Path) -> None:
    with open_small(tmp_path, ManualClock()) as queue:
        for _ in range(20):
            queue.enqueue_batch([b"x" * 50] * 100)
        queue.dequeue_batch(1500)
        queue.compact()
        first = queue.stats().first_seq
    assert first > 1
    wanted: dict[str, Any] = {"startingOffsets": f'{{"{tmp_path.name}": 1}}'}
    with pytest.raises(DataLoss, match=rf"seq 1 to {first - 1} of messages .* retention"):
        rows(tmp_path, **wanted)
    found = rows(tmp_path, **wanted, failOnDataLoss="false")
    assert found[0]["seq"] >= first
    assert found[-1]["seq"] == 2000
    assert rows(tmp_path) == found  # "earliest" is what is there: no loss


def test_retention_after_planning_is_an_error_too(tmp_path: Path) -> None:
    with open_small(tmp_path, ManualClock()) as queue:
        for _ in range(20):
            queue.enqueue_batch([b"x" * 50] * 100)
        queue.sync()
        reader, tasks = planned(tmp_path, maxPartitionBytes=4096)
        queue.dequeue_batch(1500)
        queue.compact()
        with pytest.raises(DataLoss, match="retention"):
            read(reader, tasks)


@pytest.mark.parametrize("ways", [{}, {"startingTimestamp": "2020-01-01"}, {"startingOffsets": 1}])
@pytest.mark.parametrize("table", ["messages", "state"])
def test_compaction_after_planning_is_an_error_and_not_a_shorter_table(
    tmp_path: Path, ways: dict[str, Any], table: str
) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(30):
            queue.enqueue_batch([b"x" * 50] * 20)
        queue.sync()
        options = {"table": table, "columns": "seq", "maxPartitionBytes": 4096, **ways}
        reader, tasks = planned(tmp_path, **options)
        lenient = planned(tmp_path, **options, failOnDataLoss="false")
        queue.ack([job for job in queue.lease(600) if job.seq % 40 != 1])
        assert queue.compact().segments_rewritten > 0
        with pytest.raises(DataLoss, match="a new read returns what the queue has now"):
            read(reader, tasks)
        left = [row["seq"] for row in rows(tmp_path, columns="seq")]
        assert 1 < len(left) < 600
        assert [row["seq"] for row in read(*lenient)] == left


def test_a_segment_that_is_removed_while_a_read_is_planned_is_loss(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(30):
            queue.enqueue_batch([b"x" * 50] * 20)
        queue.sync()
        view = watcher_of(Directory(str(tmp_path)).queues()[0], "messages").view()
        queue.purge()
        queue.compact()
    for index in (tmp_path / "messages").glob("*.idx"):
        index.unlink()
    selection = Selection(location=str(tmp_path), max_partition_bytes=4096)
    ranges = plan_ranges(view, 5, view.next_seq, NOTHING_REQUIRED, selection)
    schema = schema_of("messages", ["seq"], several_queues=False, include_headers=False)
    with pytest.raises(DataLoss, match="seq 5 to "):
        list(read_partition(Partition(ranges), schema, selection))


# -- compaction that rewrites segments -------------------------------------------------------------


def compacted(path: Path, random: Random, *, keep: float) -> list[int]:
    """A queue of 600 messages, many done and compacted away; the seqs that are left."""
    with open_small(path, ManualClock()) as queue:
        for _ in range(30):
            queue.enqueue_batch([b"x" * 50] * 20)
        leased = queue.lease(600)
        lucky = {job.seq for job in leased if random.random() < keep}
        lucky -= set(range(200, 350))  # a stretch of which nothing is left, not even a segment
        lucky |= set(range(450, 500))  # and one of which all is
        queue.ack([job for job in leased if job.seq not in lucky])
        queue.compact()
    return [row["seq"] for row in rows(path, columns="seq")]


@pytest.mark.parametrize("seed", range(6))
def test_a_named_range_is_read_whole_or_is_an_error(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    there = set(compacted(tmp_path, random, keep=random.choice((0.1, 0.2, 0.4))))
    assert there < set(range(1, 601)), "compaction left gaps"
    low = min(there)
    for _ in range(30):
        first, end = sorted(random.sample(range(low, 602), 2))
        if random.random() < 0.5:  # a range without a gap, if there is one
            end = first
            while end in there:
                end += 1
        wanted: dict[str, Any] = {
            "startingOffsets": json.dumps({tmp_path.name: first}),
            "endingOffsets": json.dumps({tmp_path.name: end}),
            "columns": random.choice(("seq", "*")),
            "maxPartitionBytes": random.choice((4096, 1 << 20)),
            "minPartitions": random.choice((1, 4)),
        }
        kept = [seq for seq in range(first, end) if seq in there]
        if len(kept) == end - first:
            assert [row["seq"] for row in rows(tmp_path, **wanted)] == kept
        else:
            with pytest.raises(DataLoss, match="removed by retention or compaction"):
                rows(tmp_path, **wanted)
            found = rows(tmp_path, **wanted, failOnDataLoss="false")
            assert [row["seq"] for row in found] == kept


def test_a_read_that_names_no_seq_is_of_what_is_there(tmp_path: Path) -> None:
    there = compacted(tmp_path, Random(1), keep=0.3)
    earliest = json.dumps({tmp_path.name: -2})
    ways: list[dict[str, Any]] = [
        {},
        {"startingOffsets": "earliest"},
        {"startingTimestamp": "0"},
        {"startingOffsets": earliest},
    ]
    for options in ways:
        assert [row["seq"] for row in rows(tmp_path, **options)] == there


def streamed(path: Path, **options: object) -> StreamReader:
    made = source(path, columns="seq", **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    return reader


def batch(reader: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    tasks = reader.partitions(start, end)
    return [row["seq"] for task in tasks for part in reader.read(task) for row in as_rows(part)]


def test_a_stream_passes_over_gaps_from_before_it_began_and_no_others(tmp_path: Path) -> None:
    there = compacted(tmp_path, Random(2), keep=0.3)
    reader = streamed(tmp_path, startingOffsets="earliest")
    offset, seen = reader.initialOffset(), []
    while True:
        # Restarted each time: what the query knows is in its offsets.
        reader = streamed(tmp_path, startingOffsets="earliest")
        end = json.loads(json.dumps(reader.latestOffset(offset, ReadMaxRows(100))))
        if end == offset:
            break
        seen += batch(reader, offset, end)
        offset = end
    assert seen == there
    assert split_offsets(offset).seqs == {tmp_path.name: 601}
    with open_small(tmp_path, ManualClock()) as queue:
        for _ in range(30):
            queue.enqueue_batch([b"y" * 50] * 20)
        leased = queue.lease(1200)
        queue.ack([job for job in leased if job.seq % 4])
        queue.compact()
    end = reader.latestOffset(offset, ReadAllAvailable())
    with pytest.raises(DataLoss, match="seq 601 to 603 of messages"):
        batch(reader, offset, end)
    going_on = streamed(tmp_path, failOnDataLoss="false")
    assert batch(going_on, offset, end)[0] == 604


def test_a_stream_from_a_named_seq_finds_what_compaction_removed(tmp_path: Path) -> None:
    there = compacted(tmp_path, Random(3), keep=0.3)
    first = there[0]
    reader = streamed(tmp_path, startingOffsets=json.dumps({tmp_path.name: first}))
    start = reader.initialOffset()
    assert split_offsets(start).seqs == {tmp_path.name: first}
    with pytest.raises(DataLoss, match="compaction"):
        batch(reader, start, reader.latestOffset(start, ReadAllAvailable()))
