"""Archive, drop, restore: nothing is lost, nothing twice, and any tool can read it."""

import fcntl
import os
from pathlib import Path
from random import Random
from shutil import rmtree

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from penstock.archive import Archive, ArchiveError, ArchiveManifest
from penstock.clock import ManualClock
from penstock.spark.jobs import archive, archived, audit, live_and_archived, restore
from tests.spark.in_process import rows
from tests.spark.random_queues import fill, open_small

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

MESSAGE = "payload,priority,key,headers,content_type,expires_at,deliver_at"


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    clock = ManualClock(now_s=1_700_000_000)
    with open_small(path, clock) as queue:
        for _ in range(4):
            fill(queue, Random(1), 100)
            clock.advance(40_000)  # over several days
    return path


def live(path: Path) -> list[dict[str, object]]:
    return rows(path, columns=MESSAGE)


def test_archive_drop_restore_gives_the_same_messages(
    spark: SparkSession, orders: Path, tmp_path: Path
) -> None:
    before = live(orders)
    target = tmp_path / "archive"
    (result,) = archive(spark, str(orders), str(target))
    assert 300 < result.rows < 400  # the segment being written is not sealed
    dates = {folder.name for folder in target.glob("queue=orders/date=*")}
    assert dates == {"date=2023-11-14", "date=2023-11-15", "date=2023-11-16"}
    # Incremental: nothing new, nothing done.
    (again,) = archive(spark, str(orders), str(target))
    assert (again.rows, again.next_seq) == (0, result.next_seq)
    assert audit(spark, str(orders), archive=str(target)).is_sound
    # Live and archive as one table, before and after the local segments are dropped.
    for _ in range(2):
        whole = live_and_archived(spark, str(orders), str(target))
        seqs = [row.seq for row in whole.select("seq").orderBy("seq").collect()]
        assert seqs == list(range(1, 401))
        with open_small(orders, ManualClock(now_s=1_800_000_000)) as queue:
            queue.purge()
            queue.compact()
    assert rows(orders, archive="none")[0]["seq"] > 1
    assert rows(orders)[0]["seq"] == 1, "a read goes on into the archive"
    count = restore(spark, str(target), str(tmp_path / "restored"))
    assert count == result.rows
    assert live(tmp_path / "restored") == before[:count]
    restore(spark, str(target), str(tmp_path / "restored"))  # again: recognised
    assert len(live(tmp_path / "restored")) == count
    ranged = archived(spark, str(target), first_seq=100, end_seq=105).collect()
    assert sorted(row.seq for row in ranged) == [100, 101, 102, 103, 104]


def test_any_tool_reads_the_archive(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    target = tmp_path / "archive"
    (result,) = archive(spark, str(orders), str(target))
    table = ds.dataset(target, format="parquet", partitioning="hive").to_table()
    assert table.num_rows == result.rows
    assert set(table.column("queue").to_pylist()) == {"orders"}
    duckdb = pytest.importorskip("duckdb")
    found = (
        duckdb.connect()
        .execute(
            f"SELECT count(*), count(DISTINCT date) FROM "
            f"read_parquet('{target}/**/*.parquet', hive_partitioning=true)"
        )
        .fetchone()
    )
    assert found == (result.rows, 3)


def test_a_killed_job_is_resumed(
    spark: SparkSession, orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "archive"
    saved: list[int] = []

    def killed_after_two(self: Archive, manifest: ArchiveManifest) -> None:
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(manifest.next_seq)
        whole(self, manifest)

    whole = Archive.commit
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "commit", killed_after_two)
        with pytest.raises(KeyboardInterrupt):
            archive(spark, str(orders), str(target))
    stray = next(target.glob("queue=*/date=*")) / ".half.parquet.tmp"
    stray.write_bytes(b"PAR1")
    (result,) = archive(spark, str(orders), str(target))
    assert not stray.exists()
    assert audit(spark, str(orders), archive=str(target)).is_sound
    seqs = [row.seq for row in archived(spark, str(target)).select("seq").collect()]
    assert sorted(seqs) == list(range(1, result.next_seq))


def test_two_jobs_at_once_are_refused(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    target = tmp_path / "archive"
    target.mkdir()
    fd = os.open(target / "_lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(ArchiveError, match="another job is archiving"):
            archive(spark, str(orders), str(target))
    finally:
        os.close(fd)


def test_audit_finds_what_is_wrong(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    target = tmp_path / "archive"
    archive(spark, str(orders), str(target))
    file = sorted(target.glob("queue=*/date=*/*.parquet"))[1]
    data = bytearray(file.read_bytes())
    data[100] ^= 0xFF
    file.write_bytes(data)
    segment = sorted((orders / "messages").glob("*.log"))[3]
    data = bytearray(segment.read_bytes())
    data[200] ^= 0xFF
    segment.write_bytes(data)
    result = audit(spark, str(orders), archive=str(target))
    assert {problem.what for problem in result.problems} == {"damage", "archive"}
    (damage,) = [problem for problem in result.problems if problem.what == "damage"]
    assert damage.where == f"messages/{segment.name}"
    assert damage.count >= 1


def test_another_queue_of_the_same_name_is_not_mixed_in(
    spark: SparkSession, orders: Path, tmp_path: Path
) -> None:
    target = tmp_path / "archive"
    archive(spark, str(orders), str(target))
    other = tmp_path / "elsewhere" / "orders"
    other.parent.mkdir()
    with open_small(other) as queue:
        fill(queue, Random(2), 300)
    with pytest.raises(ArchiveError, match="another queue"):
        archive(spark, str(other), str(target))


def test_an_archive_of_another_queue_of_the_same_name_is_refused(
    spark: SparkSession, orders: Path, tmp_path: Path
) -> None:
    target = str(tmp_path / "archive")
    archive(spark, str(orders), target)
    rmtree(orders)
    with open_small(orders) as queue:  # created again: another identity
        queue.enqueue_batch([b"new"] * 400)
    with pytest.raises(ArchiveError, match="another queue with the name 'orders'"):
        live_and_archived(spark, str(orders), target)
    with pytest.raises(ArchiveError, match="another queue with the name 'orders'"):
        archive(spark, str(orders), target)
    assert len(live(orders)) == 400, "the queue by itself is read"
