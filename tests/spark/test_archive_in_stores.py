"""An archive in an object store or on a file system of Hadoop is as one in a directory."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from penstock.archive import (
    Archive,
    ArchiveConflict,
    ArchiveError,
    ArchiveManifest,
    archive_at,
)
from penstock.archive.keeping import sweep
from penstock.clock import ManualClock, SystemClock
from penstock.errors import InvalidInput
from penstock.queue.queue import open_queue
from penstock.spark import read
from penstock.spark.archive_stores import archive_of
from penstock.spark.jobs import (
    archive,
    archived,
    audit,
    compact,
    live_and_archived,
    report,
    restore,
    retain,
    stream,
)
from tests.archive.s3_server import S3Server, s3_server
from tests.spark.in_process import rows
from tests.spark.random_queues import SMALL, fill, open_small

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

MESSAGE = "payload,priority,key,headers,content_type,expires_at,deliver_at"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    clock = ManualClock(now_s=1_700_000_000)
    with open_small(path, clock) as queue:
        for _ in range(2):
            fill(queue, Random(1), 50)
            clock.advance(86_400)
    return path


def place(kind: str, tmp_path: Path, s3: S3Server) -> str:
    if kind == "S3":
        return s3.location(tmp_path.name)
    return f"hadoop+file://{tmp_path}/archive"


@pytest.mark.parametrize("kind", ["S3", "Hadoop"])
def test_archive_drop_restore_gives_the_same_messages(
    kind: str, spark: SparkSession, orders: Path, tmp_path: Path, s3: S3Server
) -> None:
    target = place(kind, tmp_path, s3)
    before = rows(orders, columns=MESSAGE)
    (result,) = archive(spark, str(orders), target)
    assert 50 < result.rows < 100
    assert archive(spark, str(orders), target)[0].rows == 0
    found = audit(spark, str(orders), archive=target)
    assert found.is_sound
    assert found.archived_rows == result.rows
    # Merged files are the same messages, to the value.
    (planned,) = compact(spark, target, dry_run=True)
    (merged,) = compact(spark, target, grace_s=0)
    assert (merged.merged, merged.files, merged.rows) == (result.files, 2, result.rows)
    assert (planned.merged, planned.files, planned.swept) == (merged.merged, 2, 0)
    found = audit(spark, str(orders), archive=target)
    assert found.is_sound
    assert found.archived_rows == result.rows
    # The seqs of the archive can be removed now, and were not before.
    with open_small(orders, ManualClock(now_s=1_800_000_000)) as queue:
        queue.purge()
        queue.compact()
    whole = live_and_archived(spark, str(orders), target).select("seq").collect()
    assert sorted(row.seq for row in whole) == list(range(1, 101))
    # A read of the queue goes on into the archive; that of Hadoop is found by its record.
    chosen = target if kind == "S3" else "auto"
    one = read(spark, orders, columns="seq", archive=chosen).collect()
    assert [row.seq for row in one] == list(range(1, 101))
    assert rows(orders, columns=MESSAGE, archive=chosen) == before
    assert restore(spark, target, str(tmp_path / "restored")) == result.rows
    assert rows(tmp_path / "restored", columns=MESSAGE) == before[: result.rows]
    some = archived(spark, target, first_seq=20, end_seq=23).collect()
    assert sorted(row.seq for row in some) == [20, 21, 22]
    # The first day is too old; the second one is not, and stays whole.
    days = (SystemClock().now_ns() - 1_700_000_000 * 10**9) / 86_400e9
    (counted,) = retain(spark, target, max_age_s=(days - 0.5) * 86_400, dry_run=True)
    (removed,) = retain(spark, target, max_age_s=(days - 0.5) * 86_400)
    assert (removed.files, removed.rows, removed.first_seq) == (1, 50, 51)
    assert counted == replace(removed, swept=0)
    left = archived(spark, target).select("seq").collect()
    assert sorted(row.seq for row in left) == list(range(51, result.next_seq))


def test_the_second_of_two_jobs_loses_and_the_archive_is_exact(
    spark: SparkSession, orders: Path, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = s3.location(tmp_path.name)
    whole = Archive.commit

    def other_job_is_first(self: Archive, manifest: ArchiveManifest) -> None:
        monkeypatch.setattr(Archive, "commit", whole)
        (other,) = archive(spark, str(orders), target)
        assert other.rows > 50
        whole(self, manifest)

    monkeypatch.setattr(Archive, "commit", other_job_is_first)
    with pytest.raises(ArchiveConflict):
        archive(spark, str(orders), target)
    assert audit(spark, str(orders), archive=target).is_sound
    manifest = archive_at(target).one_manifest("orders")
    assert manifest.rows == manifest.next_seq - 1
    # The files of the second job have other names: it has overwritten nothing.
    assert len(archive_at(target).store.files("queue=orders")) == 2 * len(manifest.files)


def test_a_killed_job_is_resumed_and_what_it_left_is_swept(
    spark: SparkSession, orders: Path, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = s3.location(tmp_path.name)

    def killed(self: Archive, manifest: ArchiveManifest) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Archive, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            archive(spark, str(orders), target)
    left = {file.path for file in archive_at(target).store.files("queue=orders")}
    assert left
    (result,) = archive(spark, str(orders), target)
    kept = archive_at(target)
    manifest = kept.one_manifest("orders")
    assert manifest.rows == result.rows
    assert not left & {file.path for file in manifest.files}
    later_ns = SystemClock().now_ns() + 2 * 86_400 * 10**9
    assert sweep(kept, manifest, before_ns=later_ns, now_ns=later_ns) == len(left)
    assert archived(spark, target).count() == result.rows


def test_a_stream_and_its_checkpoint_are_where_spark_can_write(
    spark: SparkSession, orders: Path, tmp_path: Path
) -> None:
    copy, checkpoint = f"file://{tmp_path}/copy", f"file://{tmp_path}/checkpoint"
    for _ in range(2):  # the second run finds nothing new in the checkpoint
        query = stream(spark, str(orders), copy, checkpoint=checkpoint, once=True)
        assert query.awaitTermination(300)
    assert spark.read.parquet(copy).count() == 100


def test_wrong_credentials_and_a_missing_bucket_end_the_job_at_once(
    spark: SparkSession, orders: Path, tmp_path: Path, s3: S3Server
) -> None:
    for target, message in (
        (s3.location("x", key="wrong"), "credentials"),
        (s3.location("x", bucket="no-such-bucket"), "there is no bucket"),
    ):
        with pytest.raises(ArchiveError, match=message):
            archive(spark, str(orders), target)


def test_nothing_is_removed_locally_before_the_remote_copy_was_verified(
    spark: SparkSession, tmp_path: Path, s3: S3Server
) -> None:
    path, target = tmp_path / "required", s3.location(f"{tmp_path.name}/required")
    with open_queue(str(path), {**SMALL, "archive_required": True}) as queue:
        fill(queue, Random(2), 60)
    before = rows(path, columns=MESSAGE)

    def freed() -> int:
        with open_queue(str(path), {}) as queue:
            queue.purge()
            return queue.compact().bytes_freed

    s3.faults.torn_puts = ".parquet"
    try:
        with pytest.raises(ArchiveError, match="does not read back as it was written"):
            archive(spark, str(path), target)
    finally:
        s3.faults.torn_puts = ""
    assert freed() == 0
    assert rows(path, columns=MESSAGE, archive="none") == before
    archive(spark, str(path), target)
    assert freed() > 0
    assert rows(path, columns=MESSAGE, archive=target) == before


def test_a_report_is_written_to_an_object_store(
    spark: SparkSession, orders: Path, tmp_path: Path, s3: S3Server
) -> None:
    report(spark, str(orders), s3.location(tmp_path.name))
    names = [file.path for file in archive_at(s3.location(tmp_path.name)).store.files("")]
    assert names == ["by_hour.parquet", "report.html", "report.json"]


def test_a_file_system_without_its_jar_says_so(spark: SparkSession, orders: Path) -> None:
    for target in ("hadoop+s3a://bucket/archive", "oss://bucket/archive"):
        with pytest.raises(ArchiveError, match="start Spark with the jar of this file system"):
            archive(spark, str(orders), target)


def test_nothing_of_a_damaged_file_on_hadoop_is_served(
    spark: SparkSession, orders: Path, tmp_path: Path
) -> None:
    target = f"hadoop+file://{tmp_path}/archive"
    archive(spark, str(orders), target)
    path = min((tmp_path / "archive").glob("**/*.parquet"))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's own checksum
    with pytest.raises(ArchiveError, match="is damaged: its SHA-256"):
        archived(spark, target)


def test_hadoop_creates_a_file_once_and_lists_it(spark: SparkSession, tmp_path: Path) -> None:
    store = archive_of(spark, f"hadoop+file://{tmp_path}/a b").store
    store.check()
    with pytest.raises(FileNotFoundError):
        store.read("_manifests/orders/1.json")
    assert store.create("_manifests/orders/1.json", b"first")
    assert not store.create("_manifests/orders/1.json", b"second")
    assert store.read("_manifests/orders/1.json") == b"first"
    store.write("_manifests/orders/2.json", b"")
    assert [file.path for file in store.files("_manifests")] == [
        "_manifests/orders/1.json",
        "_manifests/orders/2.json",
    ]
    store.delete("_manifests/orders/2.json")
    assert [file.size_bytes for file in store.files("")] == [5]
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="not a directory"):
        archive_of(spark, f"hadoop+file://{tmp_path}/file").store.check()
