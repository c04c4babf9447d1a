"""Report, redrive and stream, and the commands that run them."""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import penstock
from penstock.cli import spark as commands
from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.queue.queue import open_queue
from penstock.spark.jobs import redrive, report, stream
from tests.spark.random_queues import open_small

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


@pytest.fixture
def worked(tmp_path: Path) -> Path:
    """A queue that was worked for three hours: all messages waited 90 s, work took 2 s."""
    path, clock = tmp_path / "orders", ManualClock(now_s=1_700_000_000)
    settings = {"max_attempts": 2, "backoff_base_s": 0, "auto_compact": False, "sync": "never"}
    with open_queue(str(path), settings, clock=clock) as queue:
        for _ in range(3):
            queue.enqueue_batch([b"fine"] * 9)
            queue.enqueue(b"<script>alert(1)</script>", priority=9)
            clock.advance(90)
            jobs = queue.lease(10)
            clock.advance(2)
            for job in jobs:
                if job.priority == 9:
                    queue.nack(job, "<b>bad</b> & worse")
                else:
                    queue.ack(job)
            (job,) = queue.lease()
            queue.nack(job, "<b>bad</b> & worse")
            clock.advance(3600 - 92)
    return path


def test_report_has_the_figures_and_opens_offline(
    spark: SparkSession, worked: Path, tmp_path: Path
) -> None:
    (made,) = report(spark, str(worked), str(tmp_path / "out"), sla_s=60)
    assert made.totals["published"] == 30
    assert made.totals["acked"] == 27
    assert (made.totals["nacked"], made.totals["dead"]) == (3, 3)
    assert made.totals["sla_breaches"] == 30
    assert made.wait_s["p50"] == pytest.approx(90, abs=0.01)
    assert made.work_s["p50"] == pytest.approx(2, abs=0.01)
    assert [hour["published"] for hour in made.by_hour] == [10, 10, 10]
    assert [(row["priority"], row["messages"]) for row in made.by_priority] == [(9, 3), (5, 27)]
    assert [(row["attempts"], row["messages"]) for row in made.attempts] == [(1, 27), (2, 3)]
    assert {row["outcome"] for row in made.reasons} == {"nacked", "dead"}
    assert [row["attempts"] for row in made.poison] == [2, 2, 2]
    html = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;b&gt;bad&lt;/b&gt; &amp; worse" in html
    assert "<b>bad" not in html
    assert re.findall(r"(?:src|href)=|@import|url\(|<script", html) == []
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["queues"][0]["totals"] == made.totals
    assert pq.read_table(tmp_path / "out" / "by_hour.parquet").num_rows == 3


def test_hours_of_a_report_are_utc_wherever_the_driver_is(
    spark: SparkSession, worked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = [
        datetime(2023, 11, day, hour, tzinfo=UTC) for day, hour in ((14, 22), (14, 23), (15, 0))
    ]
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        (made,) = report(spark, str(worked), str(tmp_path / "out"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [hour["hour"] for hour in made.by_hour] == hours
    assert pq.read_table(tmp_path / "out" / "by_hour.parquet")["hour"].to_pylist() == hours
    assert (
        "14 Nov 2023 22:00 to 15 Nov 2023 00:59" in (tmp_path / "out" / "report.html").read_text()
    )


def test_a_report_on_few_messages_runs_few_tasks(
    spark: SparkSession, worked: Path, tmp_path: Path
) -> None:
    partitions = "spark.sql.shuffle.partitions"
    before = spark.conf.get(partitions)
    assert before is not None
    context = spark.sparkContext
    spark.conf.set(partitions, "50")
    context.setJobGroup("few tasks", "")
    try:
        report(spark, str(worked), str(tmp_path / "out"))
    finally:
        spark.conf.set(partitions, before)
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("few tasks")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert 10 < sum(stage.numCompletedTasks for stage in stages if stage) < 100


def test_a_queue_without_events_has_a_report_too(spark: SparkSession, tmp_path: Path) -> None:
    penstock.open(str(tmp_path / "empty")).close()
    (made,) = report(spark, str(tmp_path / "empty"), str(tmp_path / "out"))
    assert made.totals["published"] == 0
    assert "No messages were published" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("transform", ["upper(", "no_such_column"])
def test_wrong_sql_is_refused_though_there_are_no_dead_letters(
    spark: SparkSession, tmp_path: Path, transform: str
) -> None:
    penstock.open(str(tmp_path / "empty")).close()
    with pytest.raises(PySparkException):
        redrive(spark, str(tmp_path / "empty"), transform=transform)


def test_redrive_chooses_and_changes_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "orders"
    with open_queue(str(path), {"max_attempts": 1}) as queue:
        for number in range(6):
            queue.enqueue(str(number), headers={"n": str(number)})
            (job,) = queue.lease()
            queue.nack(job, "odd" if number % 2 else "even")
    dry = redrive(spark, str(path), where="reason = 'odd'", dry_run=True)
    assert (dry.dead_before, dry.chosen, dry.dead_after) == (6, 3, 6)
    plain = redrive(spark, str(path), where="reason = 'odd'")
    assert (plain.redriven, plain.replaced, plain.dead_after) == (3, 0, 3)
    changed = redrive(
        spark, str(path), transform="encode(concat('was ', cast(payload as string)), 'utf-8')"
    )
    assert (changed.chosen, changed.replaced, changed.dead_after) == (3, 3, 0)
    with penstock.open(str(path)) as queue:
        found = sorted((m.payload.decode(), m.headers["n"]) for m in queue.browse("ready"))
    assert found == [
        ("1", "1"),
        ("3", "3"),
        ("5", "5"),
        ("was 0", "0"),
        ("was 2", "2"),
        ("was 4", "4"),
    ]


def test_stream_copies_to_parquet(spark: SparkSession, tmp_path: Path) -> None:
    with open_small(tmp_path / "orders") as queue:
        queue.enqueue_batch([b"x"] * 50)
    query = stream(
        spark,
        str(tmp_path / "orders"),
        str(tmp_path / "copy"),
        checkpoint=str(tmp_path / "checkpoint"),
        once=True,
    )
    assert query.awaitTermination(100)
    copy = spark.read.parquet(str(tmp_path / "copy"))
    assert copy.count() == 50
    assert {"seq", "payload", "headers", "deliver_at"} <= set(copy.columns)
    with pytest.raises(InvalidInput, match="parquet, delta, iceberg, console, queue"):
        stream(spark, "x", "y", to="kafka", checkpoint="z")
    with pytest.raises(InvalidInput, match="is a batch"):
        stream(spark, spark.range(1), "y", checkpoint="z")


def test_commands_run_the_jobs(
    spark: SparkSession, worked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # the tests go on with it
    run = CliRunner().invoke

    def output(*arguments: str) -> str:
        result = run(commands.app, [*arguments, "--master", "local[2,4]"])
        assert result.exit_code == 0, result.output
        return result.output

    path, target = str(worked), str(tmp_path / "archive")
    with open_small(worked) as queue:
        for _ in range(3):
            queue.enqueue_batch([Random(1).randbytes(1000)] * 5)
    figures = tmp_path / "figures.json"
    assert "messages archived" in output("archive", path, target, "--metrics", str(figures))
    run_figures = json.loads(figures.read_text())
    assert (run_figures["job"], run_figures["succeeded"]) == ("archive", True)
    assert run_figures["tasks"] >= 1
    assert run_figures["result"][0]["rows"] > 0
    assert "Sound" in output("audit", path, "--archive", target)
    assert "restored" in output("restore", target, str(tmp_path / "back"))
    assert "report.html" in output("report", path, str(tmp_path / "report"))
    assert "dead letters chosen" in output("redrive", path, "--dry-run")
    found = json.loads(output("audit", path, "--json"))
    assert found["sound"] is True
    broken = sorted((worked / "messages").glob("*.log"))[0]
    data = bytearray(broken.read_bytes())
    data[100] ^= 0xFF
    broken.write_bytes(data)
    assert run(commands.app, ["audit", path, "--master", "local[2,4]"]).exit_code == 1
    nowhere = ["audit", str(tmp_path / "nowhere"), "--metrics", str(figures)]
    assert run(commands.app, [*nowhere, "--master", "local[2,4]"]).exit_code != 0
    run_figures = json.loads(figures.read_text())
    assert (run_figures["succeeded"], run_figures["result"]) == (False, None)
    assert "does not exist" in run_figures["error"]
