"""Offsets of a stream: exact, limited, the same after a restart; and a group that follows."""

from pathlib import Path
from shutil import rmtree

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

import penstock
from penstock.clock import ManualClock
from penstock.errors import InvalidInput, LedgerLocked
from penstock.spark import DataLoss
from penstock.spark.options import ReadOptions
from penstock.spark.stream_reader import StreamReader, split_offsets
from tests.spark.in_process import as_rows, source
from tests.spark.random_queues import open_small

Offsets = dict[str, int]


def stream(path: Path, **options: object) -> StreamReader:
    made = source(path, **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    return reader


def seqs(reader: StreamReader, start: Offsets, end: Offsets) -> list[int]:
    tasks = reader.partitions(start, end)
    return [row["seq"] for task in tasks for batch in reader.read(task) for row in as_rows(batch)]


def drained(
    reader: StreamReader, start: Offsets, limit: ReadLimit
) -> tuple[list[list[int]], Offsets]:
    """The micro-batches until nothing is new, and the last offset."""
    batches = []
    while (end := reader.latestOffset(start, limit)) != start:
        batches.append(seqs(reader, start, end))
        start = end
    return batches, start


def flat(batches: list[list[int]]) -> list[int]:
    return [seq for batch in batches for seq in batch]


def test_a_new_stream_starts_at_the_end_unless_told_otherwise(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue_batch([b"x"] * 5)
        queue.sync()
        latest, earliest = stream(tmp_path), stream(tmp_path, startingOffsets="earliest")
        name = tmp_path.name
        assert split_offsets(latest.initialOffset()).seqs == {name: 6}
        found = split_offsets(earliest.initialOffset())
        assert (found.seqs, found.backlog) == ({name: 1}, {name: 6})
        queue.enqueue(b"new")
        assert split_offsets(latest.initialOffset()).seqs == {name: 6}  # asked twice, it stays
        start = latest.initialOffset()
        end = latest.latestOffset(start, ReadAllAvailable())
        assert seqs(latest, start, end) == [6]
        assert latest.latestOffset(end, ReadAllAvailable()) is end


def test_limits_cut_the_stream_into_batches_without_gap_or_overlap(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(10):
            queue.enqueue_batch([b"x" * 50] * 100)
    by_rows = stream(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=300)
    limit = by_rows.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    batches, _ = drained(by_rows, by_rows.initialOffset(), limit)
    assert [len(batch) for batch in batches] == [300, 300, 300, 100]
    assert flat(batches) == list(range(1, 1001))
    by_bytes = stream(tmp_path, startingOffsets="earliest", maxBytesPerTrigger="20k")
    limit = by_bytes.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxBytes)
    batches, _ = drained(by_bytes, by_bytes.initialOffset(), limit)
    assert len(batches) > 3
    assert max(len(batch) * 76 for batch in batches) <= 20 * 1024 + 8192
    assert flat(batches) == list(range(1, 1001))


def test_a_batch_waits_for_enough_but_not_for_ever(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue_batch([b"x"] * 4)
    clock = ManualClock()
    made = source(
        tmp_path, startingOffsets="earliest", minOffsetsPerTrigger=5, maxTriggerDelay="30s"
    )
    reader = StreamReader(made.schema(), ReadOptions.parse(made.options), clock=clock)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) is start
    clock.advance(29)
    assert reader.latestOffset(start, ReadAllAvailable()) is start
    clock.advance(1)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert seqs(reader, start, end) == [1, 2, 3, 4]
    with open_small(tmp_path) as queue:
        queue.enqueue_batch([b"x"] * 5)
    more = reader.latestOffset(end, ReadAllAvailable())  # enough, at once
    assert seqs(reader, end, more) == [5, 6, 7, 8, 9]
    with open_small(tmp_path) as queue:
        queue.enqueue(b"x")
    assert reader.latestOffset(more, ReadAllAvailable()) is more
    reader.prepareForTriggerAvailableNow()  # this run ends with what there is
    assert reader.latestOffset(more, ReadAllAvailable()) != more


def test_a_single_large_message_passes_a_small_limit(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(3):
            queue.enqueue(b"x" * 100_000)
    reader = stream(tmp_path, startingOffsets="earliest", maxBytesPerTrigger=10)
    batches, _ = drained(reader, reader.initialOffset(), reader.getDefaultReadLimit())
    assert flat(batches) == [1, 2, 3]


def test_queues_share_the_limit(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    for name, count in (("a", 900), ("b", 100), ("c", 0)):
        with penstock.open(str(tmp_path / "shop" / name)) as queue:
            if count:
                queue.enqueue_batch([b"x"] * count)
    reader = stream(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    seqs = split_offsets(end).seqs
    assert seqs == {"shop/a": 91, "shop/b": 11, "shop/c": 1}
    assert list(end) == sorted(end)


def test_a_queue_that_comes_later_is_read_from_its_start(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    penstock.open(str(tmp_path / "shop" / "a")).close()
    reader = stream(tmp_path, subscribePattern="shop/.*", startingOffsets="latest", columns="seq")
    start = reader.initialOffset()
    with penstock.open(str(tmp_path / "shop" / "b")) as queue:
        queue.enqueue_batch([b"x"] * 3)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert split_offsets(end).seqs == {"shop/a": 1, "shop/b": 4}
    assert seqs(reader, start, end) == [1, 2, 3]


def test_available_now_ends_where_it_was_when_it_began(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue_batch([b"x"] * 10)
        queue.sync()
        reader = stream(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=4)
        reader.prepareForTriggerAvailableNow()
        queue.enqueue_batch([b"x"] * 10)
        queue.sync()
        batches, end = drained(reader, reader.initialOffset(), reader.getDefaultReadLimit())
        assert batches == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
        assert split_offsets(end).seqs == {tmp_path.name: 11}


def test_a_restarted_stream_reads_the_same_ranges(tmp_path: Path) -> None:
    with open_small(tmp_path, ManualClock()) as queue:
        for _ in range(10):
            queue.enqueue_batch([b"x" * 50] * 100)
        keep = {"startingOffsets": "earliest", "failOnDataLoss": "true"}
        first = stream(tmp_path, **keep)
        start = {tmp_path.name: 401}
        end = {tmp_path.name: 700}
        before = seqs(first, start, end)
        queue.dequeue_batch(300)
        queue.compact()  # bytes have moved, seqs have not
        assert seqs(stream(tmp_path, **keep), start, end) == before == list(range(401, 700))


def test_what_is_gone_is_an_error_or_passed_over(tmp_path: Path) -> None:
    with open_small(tmp_path, ManualClock()) as queue:
        for _ in range(20):
            queue.enqueue_batch([b"x" * 50] * 100)
        queue.dequeue_batch(1500)
        queue.compact()
    start, end = {tmp_path.name: 1}, {tmp_path.name: 2001}
    with pytest.raises(DataLoss, match="retention"):
        stream(tmp_path).partitions(start, end)
    assert seqs(stream(tmp_path, failOnDataLoss="false"), start, end)[-1] == 2000
    with pytest.raises(DataLoss, match="replaced or restored"):
        stream(tmp_path).latestOffset({tmp_path.name: 5000}, ReadAllAvailable())
    with pytest.raises(DataLoss, match="does not exist any more"):
        stream(tmp_path).latestOffset({"other": 1}, ReadAllAvailable())


@pytest.mark.parametrize("count", [5, 3, 9])
def test_a_queue_that_was_created_again_is_an_error_or_read_from_its_beginning(
    tmp_path: Path, count: int
) -> None:
    """Its seqs say nothing: it may have as many messages as the old queue had, or more."""
    path = tmp_path / "orders"
    with open_small(path) as queue:
        queue.enqueue_batch([b"old"] * 5)
    start = stream(path, startingOffsets="earliest").initialOffset()
    end = stream(path).latestOffset(start, ReadAllAvailable())
    rmtree(path)
    with open_small(path) as queue:
        queue.enqueue_batch([b"new"] * count)
    with pytest.raises(DataLoss, match="deleted and created again"):
        stream(path).latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLoss, match="deleted and created again"):
        stream(path).partitions(start, end)
    skipping = stream(path, failOnDataLoss="false")
    assert seqs(skipping, start, end) == []  # the rest of a batch of the old queue
    later = skipping.latestOffset(end, ReadAllAvailable())
    assert later != end
    assert seqs(skipping, end, later) == list(range(1, count + 1))
    assert seqs(stream(path), end, later) == list(range(1, count + 1))
    assert stream(path).latestOffset(later, ReadAllAvailable()) == later


def test_a_checkpoint_without_identities_goes_on(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue_batch([b"x"] * 5)
    reader = stream(tmp_path)
    start = {tmp_path.name: 3}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert seqs(reader, start, end) == [3, 4, 5]
    assert split_offsets(end).seqs == {tmp_path.name: 6}


def test_a_group_follows_the_stream_and_holds_retention_back(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(10):
            queue.enqueue_batch([b"x" * 50] * 100)
    reader = stream(tmp_path, startingOffsets="earliest", group="spark")
    start = reader.initialOffset()
    end = {tmp_path.name: 500}
    with open_small(tmp_path) as queue:
        assert "spark" in queue.groups
        queue.dequeue_batch(1000)
        queue.compact()
    assert seqs(reader, start, end) == list(range(1, 500))
    reader.commit(end)
    with open_small(tmp_path) as queue:
        assert queue.stats().groups["spark"].ready == 501
        queue.compact()
    assert seqs(reader, end, {tmp_path.name: 1001}) == list(range(500, 1001))


def test_a_group_of_a_queue_with_another_writer_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.writers.LOCK_WAIT_S", 0)
    with open_small(tmp_path):
        reader = stream(tmp_path, group="spark")
        with pytest.raises(LedgerLocked):
            reader.initialOffset()


def test_options_that_make_no_sense_for_a_stream_are_refused(tmp_path: Path) -> None:
    open_small(tmp_path).close()
    for options, said in (
        ({"table": "state"}, "cannot be streamed"),
        ({"endingOffsets": "latest"}, "no end"),
        ({"endingTimestamp": "0"}, "no end"),
    ):
        # Spark shows only what is raised once the reader is made.
        made = source(tmp_path, **options)
        refused = made.streamReader(made.schema())
        for call in (refused.initialOffset, lambda it=refused: it.partitions({}, {})):
            with pytest.raises(InvalidInput, match=said):
                call()
    with pytest.raises(InvalidInput, match="not those of a penstock source"):
        stream(tmp_path).latestOffset({"topic": {"0": 1}}, ReadAllAvailable())


def test_events_can_be_streamed(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue(b"x")
        reader = stream(tmp_path, table="events", startingOffsets="earliest")
        start = reader.initialOffset()
        queue.dequeue()
        queue.sync()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert seqs(reader, start, end) == [1]


@pytest.mark.parametrize("limit", ["maxBytesPerTrigger", "maxOffsetsPerTrigger"])
def test_available_now_leaves_out_a_queue_that_is_made_meanwhile(
    tmp_path: Path, limit: str
) -> None:
    with open_small(tmp_path / "shop" / "orders") as queue:
        queue.enqueue_batch([b"x" * 3000] * 5)
    options = {"subscribePattern": "shop/.*", "startingOffsets": "earliest", limit: "4096"}
    reader = stream(tmp_path, **options)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    with open_small(tmp_path / "shop" / "mails") as queue:
        queue.enqueue(b"new")
    batches, end = drained(reader, start, reader.getDefaultReadLimit())
    assert flat(batches) == [1, 2, 3, 4, 5]
    assert "shop/mails" not in end
