"""A range of an archive: all of its rows, and little else is read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.archive import ArchivedFile, ArchiveError, ArchiveManifest, archive_at
from penstock.archive.parquet import ROW_GROUP_ROWS
from penstock.archive.places import Place
from penstock.arrow.selection import nanoseconds
from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.queue.queue import open_queue
from penstock.spark import DataLoss, read
from penstock.spark.archive_source import FileRange
from penstock.spark.jobs import archive, archived, check_restore, restore, retain
from penstock.spark.jobs.restore import ArchivedRange
from tests.spark.random_queues import open_small

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

START = datetime.fromtimestamp(1_700_000_000, UTC)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def hour(spark: SparkSession, tmp_path: Path) -> str:
    """The archive of a queue of one message a second, in some segments."""
    clock = ManualClock(now_s=START.timestamp())
    with open_small(tmp_path / "orders", clock) as queue:
        for number in range(300):
            queue.enqueue(b"%0100d" % number)
            clock.advance(1)
    archive(spark, str(tmp_path / "orders"), str(tmp_path / "archive"))
    return str(tmp_path / "archive")


def test_planning_a_range_runs_no_spark_job_and_names_only_its_files(
    spark: SparkSession, hour: str
) -> None:
    context = spark.sparkContext
    context.setJobGroup("planning", "of a range")
    try:
        whole = archived(spark, hour)
        frame = archived(spark, hour, since=after(100), until=after(103))
        assert context.statusTracker().getJobIdsForGroup("planning") == []
        assert sorted(row.seq for row in frame.collect()) == [101, 102, 103]
        assert context.statusTracker().getJobIdsForGroup("planning")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert frame.columns == whole.columns
    place = Place("local", hour, hour)
    times = nanoseconds(after(100)), nanoseconds(after(103))
    (few,) = FileRange(place, "orders", (1, 300), times).tasks()
    assert len(few) == 1
    (many,) = FileRange(place, "orders", (1, 300), (None, None)).tasks()
    assert len(many) > 2
    assert [file.first_seq for file in many] == sorted(file.first_seq for file in many)


def test_a_range_has_the_schema_of_the_whole_even_if_it_is_empty(
    spark: SparkSession, hour: str
) -> None:
    whole = archived(spark, hour)
    nothing = archived(spark, hour, since=after(-20), until=after(-10))
    assert nothing.schema == whole.schema
    assert nothing.collect() == []
    assert archived(spark, hour, first_seq=10, end_seq=10).collect() == []


def test_a_file_that_ends_at_the_first_microsecond_of_a_range_is_read(tmp_path: Path) -> None:
    """Nanoseconds since 1970 are more than a float can hold exactly."""
    place = archive_at(str(tmp_path))
    for microsecond in range(1000):
        moment_ns = nanoseconds(after(0) + timedelta(microseconds=microsecond))
        exact_ns = 1_700_000_000_000_000_000 + microsecond * 1000
        file = ArchivedFile("", "", 1, 1, 1, exact_ns, exact_ns, 1, "")
        manifest = ArchiveManifest("q", 1, files=[file])
        assert ArchivedRange(place, manifest, 1, 9, moment_ns, None).files() == [file]
        assert ArchivedRange(place, manifest, 1, 9, None, moment_ns).files() == []


def test_a_large_file_has_many_row_groups_with_statistics(
    spark: SparkSession, tmp_path: Path
) -> None:
    """So a small range of a large segment is read without the rest of its file."""
    clock = ManualClock(now_s=START.timestamp())
    settings = {"segment_bytes": 16 << 20, "min_free_bytes": 0, "sync": "never"}
    with open_queue(str(tmp_path / "orders"), settings, clock=clock) as queue:
        for _ in range(4):
            for _ in range(50):
                queue.enqueue_batch([b"x" * 50] * 1000)
            clock.advance(10)
        queue.enqueue(b"x" * (15 << 20))  # seals the segment
    archive(spark, str(tmp_path / "orders"), str(tmp_path / "archive"))
    (path,) = (tmp_path / "archive").glob("**/*.parquet")
    found = pq.read_metadata(path)
    assert found.num_rows == 200_000
    assert found.num_row_groups == -(-200_000 // ROW_GROUP_ROWS)
    assert found.num_row_groups >= 4
    for group in range(found.num_row_groups):
        times = found.row_group(group).column(found.schema.names.index("timestamp"))
        assert times.has_column_index
        assert times.statistics.has_min_max
    frame = archived(spark, str(tmp_path / "archive"), since=after(10), until=after(20))
    assert frame.count() == 50_000


@pytest.mark.parametrize("call", ["archived", "restore"])
def test_nothing_of_a_damaged_file_is_served(
    spark: SparkSession, hour: str, tmp_path: Path, call: str
) -> None:
    """One flipped bit of a payload still reads as Parquet."""
    path = min(Path(hour).glob("**/*.parquet"))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    if call == "archived":
        with pytest.raises(PySparkException, match="is damaged: its SHA-256"):
            archived(spark, hour).collect()
        with pytest.raises(PySparkException, match="is damaged: its SHA-256"):
            archived(spark, hour).select("seq").limit(1).collect()
        return
    with pytest.raises(ArchiveError, match="is damaged: its SHA-256"):
        restore(spark, hour, str(tmp_path / "again"))
    assert read(spark, tmp_path / "again").count() == 0


def test_a_range_is_restored_in_order_and_counted(
    spark: SparkSession, hour: str, tmp_path: Path
) -> None:
    again = str(tmp_path / "again")
    assert restore(spark, hour, again, since=after(100), until=after(103)) == 3
    assert restore(spark, hour, again, first_seq=90, end_seq=110) == 17  # without 101 to 103
    found = [int(row.payload) for row in read(spark, again).orderBy("seq").collect()]
    assert found == [100, 101, 102, *range(89, 100), *range(103, 109)]
    assert restore(spark, hour, again, since=after(-20), until=after(-10)) == 0
    timed = str(tmp_path / "timed")
    assert restore(spark, hour, timed, end_seq=3, time_header="published") == 2
    rows = read(spark, timed, columns=["headers"]).collect()
    assert [row.headers for row in rows] == [
        {"published": str(nanoseconds(after(n)))} for n in range(2)
    ]


def test_some_columns_of_a_range(spark: SparkSession, hour: str) -> None:
    frame = archived(spark, hour, first_seq=3, end_seq=5, columns=["payload", "seq"])
    assert [tuple(row) for row in frame.collect()] == [(b"%0100d" % 2, 3), (b"%0100d" % 3, 4)]
    with pytest.raises(InvalidInput, match="'nothing'"):
        archived(spark, hour, columns=["nothing"])


def test_a_range_that_retention_took_out_of_the_archive_is_named(
    spark: SparkSession, hour: str
) -> None:
    (kept,) = retain(spark, hour, max_bytes=20_000)
    assert kept.first_seq > 10
    removed = f"seq 1 to {kept.first_seq - 1} were requested"
    with pytest.raises(DataLoss, match=removed):
        archived(spark, hour, first_seq=1)
    with pytest.raises(DataLoss, match="seq 5 to 8 were requested"):
        check_restore(hour, first_seq=5, end_seq=9)
    skipped = archived(spark, hour, first_seq=1, fail_on_data_loss=False, columns=["seq"])
    assert min(row.seq for row in skipped.collect()) == kept.first_seq
    assert archived(spark, hour).count() == skipped.count()  # without a start, nothing is required
