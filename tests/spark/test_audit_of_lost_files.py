"""Audits of queues whose files were emptied, cut or deleted after a clean close."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.spark.jobs import audit
from penstock.spark.sessions import read
from tests.harness.file_strokes import entry_bounds

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "queue"
    with penstock.open(path, segment_entries=40, sync="never", auto_compact=False) as made:
        for number in range(110):
            made.enqueue(b"%d" % number)
        for _ in range(90):
            made.ack(made.lease())
    return path


@pytest.mark.parametrize("log", ["messages", "events"])
def test_an_audit_counts_what_an_emptied_or_missing_segment_loses(
    spark: SparkSession, queue: Path, tmp_path: Path, log: str
) -> None:
    whole = audit(spark, str(queue))
    assert whole.is_sound
    names = sorted(path.name for path in (queue / log).glob("*.log"))
    assert len(names) >= 3
    for name in (names[0], names[1], names[-1]):
        for left_bytes in (None, 0, 64):
            broken = tmp_path / "broken"
            shutil.copytree(queue, broken)
            segment = broken / log / name
            if left_bytes is None:
                segment.unlink()
            else:
                segment.write_bytes(segment.read_bytes()[:left_bytes])
            found = audit(spark, str(broken))
            lost = (whole.messages - found.messages) + (whole.events - found.events)
            assert lost > 0
            assert sum(one.count for one in found.problems) == lost, (name, left_bytes)
            shutil.rmtree(broken)


def test_an_audit_of_a_batch_cut_after_a_clean_close_is_not_sound(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "queue"
    with penstock.open(path, sync="never") as made:
        made.enqueue_batch([b"%d" % number for number in range(20)])
    (only,) = (path / "messages").glob("*.log")
    data = only.read_bytes()
    only.write_bytes(data[: entry_bounds(data)[10]])
    (problem,) = audit(spark, str(path)).problems
    assert (problem.what, problem.where) == ("damage", f"messages/{only.name}")


@pytest.mark.parametrize("name", ["closed.json", "snapshots"])
def test_an_audit_reports_a_damaged_file_beside_the_logs(
    spark: SparkSession, queue: Path, name: str
) -> None:
    damaged = queue / name if name.endswith(".json") else sorted((queue / name).iterdir())[-1]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    (problem,) = audit(spark, str(queue)).problems
    assert (problem.what, problem.where) == ("damage", damaged.relative_to(queue).as_posix())


def test_a_range_of_times_takes_no_numbers(spark: SparkSession, queue: Path) -> None:
    with pytest.raises(penstock.errors.InvalidInput, match="since is 5; it must be a datetime"):
        read(spark, queue, since=5)  # type: ignore[arg-type]
