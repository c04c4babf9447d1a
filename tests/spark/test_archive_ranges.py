"""A range of an archive: all of its rows, and little else is read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.archive import ArchivedFile, ArchiveError, ArchiveManifest, archive_at
from penstock.archive.parquet import ROW_GROUP_ROWS
from penstock.clock import ManualClock
from penstock.queue.queue import open_queue
from penstock.spark.jobs import archive, archived, restore
from penstock.spark.jobs.restore import ArchivedRange
from tests.spark.random_queues import open_small

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
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
    """Spark reads footers in a job if it is not told the schema, and looks at many files in one."""
    spark.conf.set(THRESHOLD, "2")
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
        assert spark.conf.get(THRESHOLD) == "2"
        spark.conf.unset(THRESHOLD)
    assert len(frame.inputFiles()) == 1
    assert len(whole.inputFiles()) > 2


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
        moment = after(0) + timedelta(microseconds=microsecond)
        exact_ns = 1_700_000_000_000_000_000 + microsecond * 1000
        file = ArchivedFile("", "", 1, 1, 1, exact_ns, exact_ns, 1, "")
        manifest = ArchiveManifest("q", 1, files=[file])
        assert ArchivedRange(place, manifest, 1, 9, moment, None).files() == [file]
        assert ArchivedRange(place, manifest, 1, 9, None, moment).files() == []


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
def test_a_damaged_file_is_refused_before_any_row_is_read(
    spark: SparkSession, hour: str, tmp_path: Path, call: str
) -> None:
    """One flipped bit of a payload still reads as Parquet."""
    path = next(Path(hour).glob("**/*.parquet"))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match="is damaged: its SHA-256"):
        if call == "archived":
            archived(spark, hour)
        else:
            restore(spark, hour, str(tmp_path / "again"))
