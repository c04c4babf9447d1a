"""A queue is read on into its archive: no gap, no overlap, one schema; streams as well."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from shutil import move, rmtree
from typing import Any

import pytest
from pyarrow import fs
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

import penstock
import penstock.arrow
from penstock.archive import ArchivedFile, ArchiveError, ArchiveManifest, archive_at
from penstock.archive.keeping import merge, merges_of, replace_merged
from penstock.arrow.locations import Directory
from penstock.arrow.logs import watcher_of
from penstock.arrow.segments import LogView
from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.spark import DataLoss, read
from penstock.spark.jobs import archive as archive_job
from penstock.spark.jobs import check_restore
from penstock.spark.jobs.archive import archive_schema
from penstock.spark.stream_reader import StreamReader
from tests.server.running import RunningServer
from tests.spark.in_process import as_rows, planned, rows, source
from tests.spark.in_process import read as read_planned
from tests.spark.random_queues import fill, open_small

COLUMNS = (
    "namespace,queue,seq,id,timestamp,timestamp_ns,priority,key,headers,payload,value,expires_at,"
    "expires_at_ns,deliver_at,deliver_at_ns,dedup,attributes,content_type,max_attempts"
)
QUEUE = "shop/orders"


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the archive job in this process: its tasks need no JVM."""

    def run_waves(
        _: object, work: Callable[[Any], Any], tasks: Sequence[Any], *, tasks_per_core: int
    ) -> Iterator[list[Any]]:
        yield [work(task) for task in tasks]

    module = importlib.import_module("penstock.spark.jobs.archive")
    monkeypatch.setattr(module, "run_waves", run_waves)
    monkeypatch.setattr(module, "archive_of", lambda _, location: archive_at(location))


def archive(path: Path | str, target: Path, **options: Any) -> int:
    """Run the archive job. Return where the archive ends."""
    job = importlib.import_module("penstock.spark.jobs.archive").archive
    (result,) = job(None, str(path), str(target), **options)
    end: int = result.next_seq
    return end


def seqs(found: Sequence[dict[str, Any]]) -> list[int]:
    return [row["seq"] for row in found]


def view_of(path: Path) -> LogView:
    return watcher_of(Directory(str(path)).queues()[0], "messages").view()


def empty(path: Path, clock: ManualClock | None = None) -> None:
    """Be done with all messages, and give the space of sealed segments back."""
    with open_small(path, clock) as queue:
        queue.purge()
        queue.compact()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data" / "shop").mkdir(parents=True)
    return tmp_path / "data"


@pytest.fixture
def orders(data: Path) -> Path:
    return data / "shop" / "orders"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def history(data: Path, orders: Path, target: Path) -> list[int]:
    """A queue of 400 messages, of which the live log has only the end. Return all seqs."""
    with open_small(orders, clock=ManualClock()) as queue:
        fill(queue, Random(1), 400)
    found = seqs(rows(data, queue=QUEUE))
    archive(data, target, queue=QUEUE)
    empty(orders)
    assert view_of(orders).low > 300
    return found


def test_archived_messages_have_the_rows_that_the_live_log_had(
    data: Path, orders: Path, target: Path
) -> None:
    with open_small(orders) as queue:
        fill(queue, Random(1), 100)
        queue.enqueue(b"one", dedup_id="x", max_attempts=3, content_type="text/plain", ttl=1e6)
        fill(queue, Random(2), 100)
    before = rows(data, queue=QUEUE, columns=COLUMNS)
    end = archive(data, target, queue=QUEUE)
    view = view_of(orders)
    assert (view.archive, view.archived_as) == (str(target), QUEUE)
    assert rows(data, queue=QUEUE, columns=COLUMNS) == before, "while the live log has it all"
    empty(orders)
    assert len(rows(data, queue=QUEUE, archive="none")) < 100 < end
    assert rows(data, queue=QUEUE, columns=COLUMNS) == before
    assert seqs(rows(orders)) == seqs(before), "by the directory of the queue"
    assert penstock.arrow.read(orders, columns="seq").read_all()["seq"].to_pylist() == seqs(before)
    found = rows(orders, columns="seq,segment,offset,size,compression")
    assert found[0]["offset"] is None and found[-1]["offset"] is not None
    assert [row["seq"] for row in found] == seqs(before)


def test_ranges_by_seq_and_time_cross_into_the_archive(
    data: Path, orders: Path, target: Path, history: list[int]
) -> None:
    boundary = view_of(orders).first_seq
    for first, end in ((1, 401), (17, 18), (boundary - 3, boundary + 3), (boundary, 401), (50, 90)):
        found = rows(data, queue=QUEUE, startingOffsets=first, endingOffsets=end)
        assert seqs(found) == list(range(first, end))
    times = {row["seq"]: row["timestamp_ns"] for row in rows(data, columns="seq,timestamp_ns")}
    for seq in (1, 40, boundary, 399):
        since = rows(data, startingTimestamp=times[seq])
        assert seqs(since) == [one for one in history if times[one] >= times[seq]]
        until = rows(data, endingTimestamp=times[seq])
        assert seqs(until) == [one for one in history if times[one] < times[seq]]
    assert seqs(rows(data, minPartitions=7, maxPartitionBytes="4k")) == history


def test_messages_that_compaction_took_out_of_segments_are_read_from_the_archive(
    data: Path, orders: Path, target: Path
) -> None:
    with open_small(orders) as queue:
        for _ in range(400):
            queue.enqueue(b"x" * 100)
    archive(data, target, queue=QUEUE)
    with open_small(orders) as queue:
        queue.dequeue_batch(200)
        assert len(queue.lease(1)) == 1  # keeps a message in the middle
        queue.dequeue_batch(199)
        queue.compact()
    live = seqs(rows(data, queue=QUEUE, archive="none"))
    assert live[0] == 201 and len(live) < 200, "there is a hole behind it"
    assert seqs(rows(data, queue=QUEUE)) == list(range(1, 401))
    assert seqs(rows(data, queue=QUEUE, startingOffsets=200)) == list(range(200, 401))


@pytest.mark.parametrize("kept", [0, 40])  # whole segments are removed, or some are rewritten
@pytest.mark.parametrize("at_broker", [False, True])
def test_what_compaction_removes_after_planning_is_read_from_the_archive(
    data: Path, orders: Path, target: Path, kept: int, at_broker: bool
) -> None:
    with open_small(orders) as queue:
        for _ in range(30):
            queue.enqueue_batch([b"x" * 50] * 20)
    end = archive(data, target, queue=QUEUE)
    assert end > 500

    def check(location: Path | str, writer: Any) -> None:
        plans = [
            planned(location, queue=QUEUE, columns="seq", maxPartitionBytes=4096, **ways)
            for ways in ({}, {"startingTimestamp": "2020-01-01"}, {"startingOffsets": 1})
        ]
        # Columns of positions are null for archived messages, which this schema allows.
        plans.append(planned(location, queue=QUEUE, columns="seq,offset"))
        table = penstock.arrow.read(location, queue=QUEUE, columns="seq")
        reader = stream(location, queue=QUEUE, columns="seq", startingOffsets="earliest")
        start = reader.initialOffset()
        tasks = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        for job in writer.lease(600):
            if not kept or job.seq % kept != 1:
                writer.ack(job)
        writer.compact()
        for plan in plans:
            assert seqs(read_planned(*plan)) == list(range(1, 601))
        assert table.read_all()["seq"].to_pylist() == list(range(1, 601))
        found = [row for task in tasks for part in reader.read(task) for row in as_rows(part)]
        assert seqs(found) == list(range(1, 601))

    if at_broker:
        with RunningServer(data) as server, penstock.open(f"{server.url}/{QUEUE}") as remote:
            check(server.url, remote)
    else:
        with open_small(orders) as queue:
            check(data, queue)


@pytest.mark.parametrize("max_gaps", [100, 2])
def test_messages_that_compaction_took_out_before_they_were_archived_are_a_gap(
    data: Path, orders: Path, target: Path, max_gaps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("penstock.spark.jobs.archive")
    monkeypatch.setattr(module, "MAX_GAPS", max_gaps)
    with open_small(orders) as queue:
        for _ in range(30):
            queue.enqueue_batch([b"x" * 50] * 20)
        queue.ack([job for job in queue.lease(500) if job.seq % 15 != 1])
        queue.compact()
    live = seqs(rows(data, queue=QUEUE))
    assert live[0] == 1 and len(live) < 600
    with pytest.raises(DataLoss, match=r"messages from seq 2 to .*\(--accept-gap"):
        archive(data, target, queue=QUEUE)
    assert not (target / "_manifests").exists()
    end = archive(data, target, queue=QUEUE, accept_gap=True)
    (manifest,) = archive_at(str(target)).manifests()
    removed = sorted(set(range(1, end)) - set(live))
    noted = [seq for gap in manifest.gaps for seq in range(gap.first_seq, gap.end_seq)]
    assert set(noted) >= set(removed)
    assert len(manifest.gaps) <= max_gaps * len(manifest.files)
    assert (noted == removed) == (max_gaps == 100), "many gaps are on record as fewer, wider ones"
    with pytest.raises(DataLoss, match="were requested"):
        rows(data, queue=QUEUE, startingOffsets=1)
    with pytest.raises(DataLoss, match="were requested"):
        check_restore(str(target), queue=QUEUE, first_seq=1, end_seq=101)
    assert seqs(rows(data, queue=QUEUE, failOnDataLoss="false")) == live


def test_a_lost_manifest_is_told_and_not_read_around(
    data: Path, orders: Path, target: Path
) -> None:
    for _ in range(2):
        with open_small(orders) as queue:
            queue.enqueue_batch([b"x" * 100] * 300)
        archive(data, target, queue=QUEUE)
    empty(orders)
    newest = max((target / "_manifests").rglob("*.json"))
    newest.unlink()
    for ways in ({}, {"startingTimestamp": "2020-01-01"}, {"startingOffsets": 250}):
        for options in (ways, {**ways, "archive": str(target)}):
            with pytest.raises(ArchiveError, match="newest manifest is missing"):
                rows(data, queue=QUEUE, **options)
    with (
        RunningServer(data) as server,
        pytest.raises(ArchiveError, match="newest manifest is missing"),
    ):
        rows(server.url, queue=QUEUE)


def test_a_gap_between_archive_and_live_log_is_loss(
    data: Path, orders: Path, target: Path, history: list[int]
) -> None:
    with open_small(orders) as queue:
        queue.enqueue_batch([b"x" * 100] * 200)
    empty(orders)  # not archived
    end = view_of(orders).first_seq
    with pytest.raises(DataLoss, match="were removed"):
        rows(data, queue=QUEUE)
    found = seqs(rows(data, queue=QUEUE, failOnDataLoss="false"))
    assert found[0] == 1 and found[-1] == 600 and len(found) < 600 and end in found
    assert seqs(rows(data, queue=QUEUE, archive="none")) == list(range(end, 601))


def test_an_archive_goes_on_behind_a_gap_if_asked_and_readers_name_it(
    data: Path, orders: Path, target: Path, history: list[int]
) -> None:
    with open_small(orders) as queue:
        queue.enqueue_batch([b"x" * 100] * 200)
    before = archive_at(str(target)).manifests()
    empty(orders)  # not archived
    with open_small(orders) as queue:
        queue.enqueue_batch([b"x" * 100] * 200)
    with pytest.raises(DataLoss, match="--accept-gap"):
        archive(data, target, queue=QUEUE)
    assert archive_at(str(target)).manifests() == before
    low = view_of(orders).low
    end = archive(data, target, queue=QUEUE, accept_gap=True)
    (manifest,) = archive_at(str(target)).manifests()
    (gap,) = manifest.gaps
    assert (gap.first_seq, gap.end_seq) == (before[0].next_seq, low)
    assert end > low
    assert archive(data, target, queue=QUEUE, accept_gap=True) == end  # which has no gap to note
    assert archive_at(str(target)).manifests()[0].gaps == [gap]

    empty(orders)
    lost = f"seq {gap.first_seq} to {gap.end_seq - 1} of messages were requested"
    with pytest.raises(DataLoss, match=lost):
        rows(data, queue=QUEUE)
    with pytest.raises(DataLoss, match=lost):
        penstock.arrow.read(orders).read_all()
    some = seqs(rows(data, queue=QUEUE, failOnDataLoss="false"))
    assert some == [*range(1, gap.first_seq), *range(gap.end_seq, 801)]
    assert seqs(rows(data, queue=QUEUE, startingOffsets=low)) == list(range(low, 801))
    cut = f"seq {gap.first_seq} to {gap.first_seq + 1} were requested"
    with pytest.raises(DataLoss, match=cut):
        check_restore(str(target), queue=QUEUE, end_seq=gap.first_seq + 2)
    check_restore(str(target), queue=QUEUE, end_seq=gap.first_seq)
    check_restore(str(target), queue=QUEUE, first_seq=gap.end_seq)
    check_restore(str(target), queue=QUEUE, fail_on_data_loss=False)


@pytest.mark.parametrize("merged", ["nothing", "between gaps", "over gaps"])
def test_times_in_a_gap(data: Path, orders: Path, target: Path, merged: str) -> None:
    """A range that begins in a gap has what follows; one that ends there, or later, is loss."""
    clock = ManualClock(now_s=1_700_000_000)

    def publish(count: int) -> None:  # one each second
        with open_small(orders, clock=clock) as queue:
            for _ in range(count):
                clock.advance(1)
                queue.enqueue(b"x" * 100)

    def at(seq: float) -> datetime:
        return datetime.fromtimestamp(1_700_000_000 + seq, UTC)

    publish(200)
    archive(data, target, queue=QUEUE)
    for _ in range(2):
        publish(100)
        empty(orders, clock)
        publish(100)
        archive(data, target, queue=QUEUE, accept_gap=True)
        empty(orders, clock)
    gaps = [(gap.first_seq, gap.end_seq) for gap in manifest_of(target).gaps]
    there = {seq for file in manifest_of(target).files for seq in seqs_of(file)}
    there |= set(range(manifest_of(target).next_seq, 601))
    assert len(gaps) == 2
    if merged != "nothing":
        compact(target, over_gaps=merged == "over gaps")
        assert len(manifest_of(target).files) == (1 if merged == "over gaps" else 3)

    def live(since: datetime | None, until: datetime | None) -> list[int]:
        table = penstock.arrow.read(orders, since=since, until=until, columns="seq").read_all()
        found: list[int] = table["seq"].to_pylist()
        return found

    def restored(since: datetime | None, until: datetime | None) -> list[int]:
        check_restore(str(target), queue=QUEUE, since=since, until=until)
        return sorted(seq for seq in there if is_in(seq, since, until))

    def is_in(seq: int, since: datetime | None, until: datetime | None) -> bool:
        return (since is None or at(seq) >= since) and (until is None or at(seq) < until)

    edges = {1.0, 30.5, 600.5, 601.0}
    for first, after in gaps:
        edges |= {first - 20.5, first - 1.0, first - 0.5, float(first), (first + after) / 2}
        edges |= {after - 1.0, after - 0.5, float(after), after + 0.5, after + 20.5}
    moments = [None, *map(at, sorted(edges)), None]
    for number, since in enumerate(moments[:-1]):
        for until in moments[number + 1 :]:
            lost = [
                (first, after)
                for first, after in gaps
                if is_in(first - 1, since, None) and (until is None or until > at(first - 1))
            ]
            for found_in in (live, restored):
                if lost:
                    said = f"seq {lost[0][0]} to {lost[0][1] - 1} .*were requested"
                    with pytest.raises(DataLoss, match=said):
                        found_in(since, until)
                else:
                    wanted = sorted(seq for seq in there if is_in(seq, since, until))
                    assert found_in(since, until) == wanted


def seqs_of(file: ArchivedFile) -> range:
    return range(file.first_seq, file.last_seq + 1)


def compact(target: Path, *, over_gaps: bool) -> None:
    """Compact an archive as the job does, or as it did when it merged files over gaps."""
    archive, manifest = archive_at(str(target)), manifest_of(target)
    for one in merges_of(replace(manifest, gaps=[]) if over_gaps else manifest, 1 << 30):
        replace_merged(manifest, one, merge(archive.store, one, archive_schema()), 0)
    archive.commit(manifest)


def manifest_of(target: Path) -> ArchiveManifest:
    (manifest,) = archive_at(str(target)).manifests()
    return manifest


def test_an_archive_that_moved_is_an_error_that_says_what_to_do(
    data: Path, orders: Path, target: Path, history: list[int], tmp_path: Path
) -> None:
    move(target, tmp_path / "elsewhere")
    with pytest.raises(ArchiveError, match="option 'archive'"):
        rows(data, queue=QUEUE)
    boundary = view_of(orders).first_seq
    assert seqs(rows(data, queue=QUEUE, startingOffsets=boundary)) == history[boundary - 1 :], (
        "the archive is not looked at while it is not needed"
    )
    assert seqs(rows(data, queue=QUEUE, archive=str(tmp_path / "elsewhere"))) == history
    other = tmp_path / "data" / "shop" / "other"
    with open_small(other) as queue:
        queue.enqueue(b"x")
    with pytest.raises(ArchiveError, match="has nothing of queue shop/other"):
        rows(data, queue="shop/other", archive=str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("way", ["a flipped bit", "emptied", "cut", "of another queue"])
def test_a_damaged_record_of_the_archive_fails_the_reads_that_need_it(
    data: Path, orders: Path, target: Path, history: list[int], way: str
) -> None:
    note = orders / "archived.json"
    content = note.read_bytes()
    at = content.index(b'"upto"') + 8
    flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    with open_small(data / "shop" / "other") as other:
        other.enqueue_batch([b"x" * 100] * 300)
    archive(data, target, queue="shop/other")
    foreign = (data / "shop" / "other" / "archived.json").read_bytes()
    contents = {"emptied": b"", "cut": content[:-9], "of another queue": foreign}
    note.write_bytes(contents.get(way, flipped))
    with pytest.raises(ArchiveError, match=r"archived\.json cannot be read .*archive job again"):
        rows(data, queue=QUEUE)
    with pytest.raises(ArchiveError, match=r"archived\.json cannot be read"):
        penstock.arrow.read(orders)
    with pytest.raises(ArchiveError, match=r"archived\.json cannot be read"):
        rows(data, queue=QUEUE, startingOffsets=1)
    with RunningServer(data) as server, pytest.raises(ArchiveError, match="cannot be read"):
        rows(server.url, queue=QUEUE)
    boundary = view_of(orders).first_seq
    live = history[boundary - 1 :]
    assert seqs(rows(data, queue=QUEUE, startingOffsets=boundary)) == live
    assert seqs(rows(data, queue=QUEUE, archive="none")) == live
    assert seqs(rows(data, queue=QUEUE, archive=str(target))) == history
    archive(data, target, queue=QUEUE)
    assert seqs(rows(data, queue=QUEUE)) == history


def test_a_damaged_record_of_the_archive_is_not_missed_while_it_is_not_needed(
    data: Path, orders: Path, target: Path
) -> None:
    with open_small(orders) as queue:
        fill(queue, Random(3), 100)
    all_live = seqs(rows(data, queue=QUEUE))
    archive(data, target, queue=QUEUE)
    (orders / "archived.json").write_bytes(b"")
    assert seqs(rows(data, queue=QUEUE)) == all_live


def test_a_queue_that_was_created_again_has_no_archive(
    data: Path, orders: Path, target: Path, history: list[int]
) -> None:
    note = (orders / "archived.json").read_bytes()
    rmtree(orders)
    with open_small(orders) as queue:
        queue.enqueue(b"new")
    assert seqs(rows(data, queue=QUEUE)) == [1]
    (orders / "archived.json").write_bytes(note)  # that of another queue is not needed
    assert seqs(rows(data, queue=QUEUE)) == [1]
    with pytest.raises(ArchiveError, match="has nothing of queue"):
        rows(data, queue=QUEUE, archive=str(target))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "events", "archive": "/a"}, "the table is 'events'"),
        ({"decompress": "false", "archive": "/a"}, "decompress is false"),
        ({"archive": "oss://bucket/archive"}, "Hadoop"),
        ({"archive": " "}, "is empty"),
    ],
)
def test_archives_that_cannot_be_read_are_refused(
    orders: Path, options: dict[str, Any], message: str
) -> None:
    with open_small(orders):
        pass
    with pytest.raises(InvalidInput, match=message):
        rows(orders, **options)


@pytest.mark.parametrize("scheme", ["hadoop+file://", "hdfs://name:8020", "viewfs://cluster"])
def test_archives_of_hadoop_are_read_without_it(
    data: Path, target: Path, history: list[int], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDFS has a stand-in here: what the system of pyarrow would have is in a directory."""

    class Hdfs:
        @staticmethod
        def from_uri(uri: str) -> fs.FileSystem:
            assert uri == f"{scheme}/"
            return fs.LocalFileSystem()

    monkeypatch.setattr(fs, "HadoopFileSystem", Hdfs)
    found = rows(data, queue=QUEUE, columns="seq", archive=f"{scheme}{target}")
    assert seqs(found) == history
    reader = stream(data, queue=QUEUE, startingOffsets="earliest", archive=f"{scheme}{target}")
    batches, _ = drained(reader, reader.initialOffset(), ReadAllAvailable())
    assert batches == [history]


def test_hdfs_without_its_library_says_what_to_set(
    data: Path, history: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hdfs:
        @staticmethod
        def from_uri(uri: str) -> fs.FileSystem:
            raise OSError("Unable to load libhdfs: ./libhdfs.so: cannot open shared object file")

    monkeypatch.setattr(fs, "HadoopFileSystem", Hdfs)
    with pytest.raises(ArchiveError, match="set JAVA_HOME, HADOOP_HOME and CLASSPATH"):
        rows(data, queue=QUEUE, archive="hdfs://missing/archive")


# -- streams ---------------------------------------------------------------------------------------


def stream(path: Path | str, **options: object) -> StreamReader:
    made = source(path, **options)
    schema = made.schema()
    assert not isinstance(schema, str)
    reader = made.streamReader(schema)
    assert isinstance(reader, StreamReader)
    return reader


def batch(reader: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    tasks = reader.partitions(start, end)
    return [row["seq"] for task in tasks for part in reader.read(task) for row in as_rows(part)]


def drained(
    reader: StreamReader, start: dict[str, int], limit: ReadLimit
) -> tuple[list[list[int]], dict[str, int]]:
    batches = []
    while (end := reader.latestOffset(start, limit)) != start:
        batches.append(batch(reader, start, end))
        start = end
    return batches, start


@pytest.mark.parametrize(
    ("limit", "options"),
    [
        (ReadAllAvailable(), {}),
        (ReadMaxRows(37), {"maxOffsetsPerTrigger": 37}),
        (ReadMaxBytes(3000), {"maxBytesPerTrigger": 3000}),
    ],
)
def test_a_stream_starts_in_the_archive_and_goes_on_live(
    data: Path, orders: Path, history: list[int], limit: ReadLimit, options: dict[str, object]
) -> None:
    reader = stream(data, queue=QUEUE, startingOffsets="earliest", **options)
    start = reader.initialOffset()
    assert start[QUEUE] == 1
    batches, end = drained(reader, start, limit)
    assert [seq for one in batches for seq in one] == history
    assert len(batches) == 1 if isinstance(limit, ReadAllAvailable) else len(batches) > 5
    with open_small(orders) as queue:
        queue.enqueue_batch([b"new"] * 5)
    batches, _ = drained(reader, end, limit)
    assert [seq for one in batches for seq in one] == list(range(401, 406))


def test_a_stream_reads_on_when_retention_overtakes_it(
    data: Path, orders: Path, target: Path
) -> None:
    with open_small(orders) as queue:
        fill(queue, Random(3), 300)
    reader = stream(data, queue=QUEUE, startingOffsets="earliest", maxOffsetsPerTrigger=50)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(50))
    first = batch(reader, start, end)
    archive(data, target, queue=QUEUE)
    empty(orders)
    assert batch(reader, start, end) == first, "the same batch, now from the archive"
    again = stream(data, queue=QUEUE, startingOffsets="earliest", maxOffsetsPerTrigger=50)
    batches, _ = drained(again, end, ReadMaxRows(50))
    assert [*first, *(seq for one in batches for seq in one)] == list(range(1, 301))


def test_a_stream_with_a_group_starts_in_the_archive(
    data: Path, orders: Path, history: list[int]
) -> None:
    reader = stream(data, queue=QUEUE, startingOffsets="earliest", group="copy")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert batch(reader, start, end) == history
    reader.commit(end)
    with open_small(orders) as queue:
        assert queue.stats().groups["copy"].read_position == 401


def test_on_spark_a_queue_and_its_archive_are_one_table_and_one_stream(
    spark: SparkSession, data: Path, orders: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the real job
    with open_small(orders) as queue:
        fill(queue, Random(5), 200)
    archive_job(spark, str(data), str(target), queue=QUEUE)
    empty(orders)
    frame = read(spark, data, queue=QUEUE, columns="*")
    assert frame.selectExpr("count(*)", "min(seq)", "max(seq)").first() == (200, 1, 200)
    assert frame.where("offset is null").count() == view_of(orders).first_seq - 1
    stream = spark.readStream.format("penstock").option("path", str(data)).option("queue", QUEUE)
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "90")
    writer = stream.load().select("seq").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(data.parent / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(data.parent / "copy"))
    query.awaitTermination(100)
    copied = spark.read.parquet(str(data.parent / "copy")).collect()
    assert sorted(row["seq"] for row in copied) == list(range(1, 201))


# -- at a broker -----------------------------------------------------------------------------------


def test_a_broker_keeps_the_record_and_readers_follow_it(
    data: Path, orders: Path, target: Path
) -> None:
    with open_small(orders) as queue:
        fill(queue, Random(4), 300)
    wanted = rows(data, queue=QUEUE, columns=COLUMNS)
    with RunningServer(data) as server:
        archive(f"{server.url}/{QUEUE}", target)
        with penstock.open(f"{server.url}/{QUEUE}") as remote:
            remote.purge()
            remote.compact()
        assert len(rows(server.url, queue=QUEUE, archive="none")) < 300
        assert rows(server.url, queue=QUEUE, columns=COLUMNS) == wanted
        reader = stream(server.url, queue=QUEUE, startingOffsets="earliest")
        batches, _ = drained(reader, reader.initialOffset(), ReadAllAvailable())
        assert batches == [seqs(wanted)]
    assert rows(data, queue=QUEUE, columns=COLUMNS) == wanted


def test_an_archive_of_nothing_is_not_on_record(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "orders") as queue:
        queue.enqueue_batch([b"a", b"b"])
    archive(tmp_path / "orders", tmp_path / "archive")
    assert seqs(rows(tmp_path / "orders", columns="seq")) == [1, 2]


def test_an_archive_is_not_opened_while_the_live_log_has_everything(tmp_path: Path) -> None:
    with open_small(tmp_path / "orders") as queue:
        fill(queue, Random(3), 100)
    all_live = seqs(rows(tmp_path / "orders", columns="seq"))
    assert archive(tmp_path / "orders", tmp_path / "archive") > 1
    rmtree(tmp_path / "archive")
    assert seqs(rows(tmp_path / "orders", columns="seq")) == all_live
    found = rows(tmp_path / "orders", columns="seq", startingTimestamp="1970-01-01T00:00:00Z")
    assert seqs(found) == all_live


@pytest.mark.parametrize("inside", ["", "archive"])
def test_an_archive_inside_what_is_archived_is_refused(tmp_path: Path, inside: str) -> None:
    with penstock.open(tmp_path / "orders") as queue:
        queue.enqueue(b"a")
    before = sorted((tmp_path / "orders").iterdir())
    with pytest.raises(InvalidInput, match="choose a directory outside"):
        archive(tmp_path / "orders", tmp_path / "orders" / inside)
    assert sorted((tmp_path / "orders").iterdir()) == before
