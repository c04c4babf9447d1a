"""The archive as a Delta table has the files of the manifests: each once, and no other."""

import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.archive import Archive, ArchiveError, archive_at
from penstock.archive.manifests import MANIFESTS
from penstock.cli import spark as commands
from penstock.clock import ManualClock
from penstock.errors import PenstockError
from penstock.spark.jobs import archive, archived, audit
from tests.spark.random_queues import fill, open_small

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    publish(path, 1_700_000_000)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "an archive"


def publish(path: Path, now_s: int) -> None:
    """Messages of two days, in several segments."""
    path.parent.mkdir(exist_ok=True)
    clock = ManualClock(now_s=now_s)
    with open_small(path, clock) as queue:
        for _ in range(2):
            fill(queue, Random(now_s), 40)
            clock.advance(86_400)


def files_of(target: Path) -> list[dict[str, Any]]:
    """What the Delta table has, by its path."""
    rows = pa.table(DeltaTable(target).get_add_actions(flatten=True)).to_pylist()
    return sorted(rows, key=lambda row: str(row["path"]))


def assert_follows(target: Path) -> None:
    """The table has the files of the manifest, and their rows, once each."""
    (manifest,) = archive_at(str(target)).manifests()
    assert [row["path"] for row in files_of(target)] == sorted(f.path for f in manifest.files)
    plain = pa.concat_tables(
        pq.read_table(target / file.path, partitioning=None) for file in manifest.files
    )
    found = DeltaTable(target).to_pyarrow_table(columns=plain.column_names).sort_by("seq")
    assert found.to_pylist() == plain.to_pylist()


def test_the_table_is_the_archive(spark: SparkSession, orders: Path, target: Path) -> None:
    (result,) = archive(spark, str(orders), str(target), delta=True)
    assert result.files > 2
    assert_follows(target)
    table = DeltaTable(target).to_pyarrow_table()
    assert table.column_names[-3:] == ["namespace", "queue", "date"]
    assert set(table.column("namespace").to_pylist()) == {None}
    assert set(table.column("queue").to_pylist()) == {"orders"}
    assert table.column("date").equals(table.column("timestamp").cast(pa.date32()))
    # A filter takes its files by what the log says of them.
    some = DeltaTable(target).to_pyarrow_dataset().to_table(filter=pc.field("seq") == 7)
    assert some.column("seq").to_pylist() == [7]


def test_files_have_statistics(spark: SparkSession, orders: Path, target: Path) -> None:
    archive(spark, str(orders), str(target), delta=True)
    for row in files_of(target):
        data = pq.read_table(target / row["path"], partitioning=None)
        assert (row["num_records"], row["size_bytes"]) == (
            data.num_rows,
            (target / row["path"]).stat().st_size,
        )
        for name in ("seq", "timestamp", "timestamp_ns"):
            least_and_most = pc.min_max(data.column(name)).as_py()
            assert (row[f"min.{name}"], row[f"max.{name}"]) == tuple(least_and_most.values())
            assert row[f"null_count.{name}"] == 0


def test_it_grows_with_the_archive_and_only_then(
    spark: SparkSession, orders: Path, target: Path
) -> None:
    archive(spark, str(orders), str(target), delta=True)
    archive(spark, str(orders), str(target), delta=True)
    assert DeltaTable(target).version() == 0
    before = len(files_of(target))
    publish(orders, 1_700_300_000)
    # Without the option it stays as it is; it follows with the next run that has it.
    (result,) = archive(spark, str(orders), str(target))
    assert result.files > 0
    assert (DeltaTable(target).version(), len(files_of(target))) == (0, before)
    # What it does not name yet is not taken for rubbish either.
    for file in target.glob("queue=*/date=*/*.parquet"):
        os.utime(file, (0, 0))
    assert DeltaTable(target).vacuum(dry_run=True, full=True) == []
    archive(spark, str(orders), str(target), delta=True)
    assert (DeltaTable(target).version(), len(files_of(target))) == (1, before + result.files)
    assert_follows(target)


def test_several_queues_and_odd_names_are_one_table(
    spark: SparkSession, orders: Path, tmp_path: Path, target: Path
) -> None:
    data = tmp_path / "data"
    for key in ("shop/orders", "shop/mail"):
        (data / key).parent.mkdir(parents=True, exist_ok=True)
        publish(data / key, 1_700_000_000)
    odd = tmp_path / "50%25 größe=x y"
    publish(odd, 1_700_000_000)
    archive(spark, str(data), str(target), queue="shop/mail", delta=True)
    archive(spark, str(data), str(target))
    archive(spark, str(odd), str(target), delta=True)  # and what others archived meanwhile
    found = DeltaTable(target).to_pyarrow_table(columns=["namespace", "queue", "seq"])
    counts = found.group_by(["namespace", "queue"]).aggregate([("seq", "count")]).to_pylist()
    assert {(row["namespace"], row["queue"]): row["seq_count"] for row in counts} == {
        tuple(([None, *one.queue.split("/")])[-2:]): one.rows
        for one in archive_at(str(target)).manifests()
    }
    archive(spark, str(odd), str(target), delta=True)
    assert DeltaTable(target).version() == 1


def test_a_job_killed_between_manifest_and_log_is_mended(
    spark: SparkSession, orders: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(spark, str(orders), str(target), delta=True)
    publish(orders, 1_700_300_000)

    def killed(archive: Archive, columns: pa.Schema, **_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["penstock.spark.jobs.archive"], "make_asked", killed)
        with pytest.raises(KeyboardInterrupt):
            archive(spark, str(orders), str(target), delta=True)
    (result,) = archive(spark, str(orders), str(target), delta=True)
    assert result.files == 0
    assert_follows(target)


def test_what_others_wrote_to_the_table_is_undone(
    spark: SparkSession, orders: Path, target: Path
) -> None:
    archive(spark, str(orders), str(target), delta=True)
    DeltaTable(target).delete("seq = 1")  # writes what is left of the file to another one
    assert DeltaTable(target).to_pyarrow_table().column("seq").index(1).as_py() == -1
    archive(spark, str(orders), str(target), delta=True)
    assert_follows(target)


def test_what_the_manifest_has_not_or_has_otherwise_is_changed(
    spark: SparkSession, orders: Path, target: Path
) -> None:
    archive(spark, str(orders), str(target), delta=True)
    manifest = archive_at(str(target)).manifest("orders")
    assert manifest is not None
    manifest.files.pop()
    first = manifest.files[0]
    place = target / first.path
    pq.write_table(pq.read_table(place, partitioning=None).slice(1), place)
    manifest.files[0] = replace(
        first,
        rows=first.rows - 1,
        first_seq=first.first_seq + 1,
        size_bytes=place.stat().st_size,
        sha256=hashlib.sha256(place.read_bytes()).hexdigest(),
    )
    archive_at(str(target)).commit(manifest)
    archive(spark, str(orders), str(target), delta=True)
    assert DeltaTable(target).version() == 1
    assert_follows(target)


def test_the_archive_and_plain_readers_do_not_see_the_log(
    spark: SparkSession, orders: Path, target: Path
) -> None:
    (result,) = archive(spark, str(orders), str(target), delta=True)
    assert not list((target / "_delta_log").glob("*.parquet"))
    assert_plain_readers_find(target, "**/*.parquet", result.rows)
    # The reader's own checkpoint is Parquet.
    DeltaTable(target).create_checkpoint()
    assert list((target / "_delta_log").glob("*.parquet"))
    assert_plain_readers_find(target, "**/date=*/*.parquet", result.rows)
    assert spark.read.parquet(str(target)).count() == result.rows
    archive(spark, str(orders), str(target), delta=True)
    assert_follows(target)
    assert audit(spark, str(orders), archive=str(target)).is_sound
    assert archived(spark, str(target)).count() == result.rows  # what `restore` reads


def assert_plain_readers_find(target: Path, pattern: str, rows: int) -> None:
    assert ds.dataset(target, format="parquet", partitioning="hive").count_rows() == rows
    with duckdb.connect() as database:
        found = database.execute(
            f"SELECT count(*) FROM read_parquet('{target}/{pattern}', hive_partitioning=true)"
        ).fetchone()
    assert found == (rows,)


def test_nothing_archived_is_a_table_without_rows(
    spark: SparkSession, tmp_path: Path, target: Path
) -> None:
    with open_small(tmp_path / "orders") as queue:
        queue.enqueue(b"in the segment that is being written")
    archive(spark, str(tmp_path / "orders"), str(target), delta=True)
    assert DeltaTable(target).to_pyarrow_table().num_rows == 0


def test_a_damaged_log_says_what_to_do_and_is_made_anew(
    spark: SparkSession, orders: Path, target: Path
) -> None:
    archive(spark, str(orders), str(target), delta=True)
    log = target / "_delta_log"
    (commit,) = log.glob("*.json")
    commit.write_bytes(commit.read_bytes()[:100])
    with pytest.raises(ArchiveError, match="the archive is complete.*move .*_delta_log away"):
        archive(spark, str(orders), str(target), delta=True)
    log.rename(target / "_moved_away")
    archive(spark, str(orders), str(target), delta=True)
    assert_follows(target)


def test_a_table_of_other_columns_is_left_alone(
    spark: SparkSession, orders: Path, target: Path
) -> None:
    DeltaTable.create(str(target), pa.schema([("id", pa.int64())]))
    with pytest.raises(ArchiveError, match="a table with other columns"):
        archive(spark, str(orders), str(target), delta=True)
    assert DeltaTable(target).version() == 0


def test_without_the_package_it_says_what_to_install(
    spark: SparkSession, orders: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(PenstockError, match=r"pip install '\.\[delta\]'"):
        archive(spark, str(orders), str(target), delta=True)
    assert not target.exists()  # said before anything was done
    line = ["archive", str(orders), str(target), "--delta"]
    result = CliRunner().invoke(commands.app, line)
    assert "pip install '.[delta]'" in str(result.exception)


def test_the_command_has_the_option(
    spark: SparkSession, orders: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # the tests go on with it
    line = ["archive", str(orders), str(target), "--delta", "--master", "local[2,4]"]
    assert CliRunner().invoke(commands.app, line).exit_code == 0
    assert_follows(target)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"files": 1}'])
def test_a_damaged_manifest_of_any_queue_is_named(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / MANIFESTS / "shop.orders.json"
    place.parent.mkdir()
    place.write_bytes(content)
    with pytest.raises(ArchiveError, match=r"shop\.orders\.json cannot be read"):
        archive_at(str(tmp_path)).manifests()
