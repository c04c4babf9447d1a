"""Every job by its command: on good input, and on bad input, for which no JVM is started."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

import penstock
from penstock.queue.queue import open_queue
from tests.cli.command_line import CommandLine
from tests.spark.in_process import rows
from tests.spark.random_queues import SMALL

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


@pytest.fixture
def command(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(capfdbinary, monkeypatch)


def json_of(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Several segments, and three dead letters."""
    path = tmp_path / "orders"
    with open_queue(str(path), {**SMALL, "max_attempts": 1}) as queue:
        for number in range(3):
            queue.enqueue(f"bad {number}")
            (job,) = queue.lease()
            queue.nack(job, "no luck")
        for _ in range(20):
            queue.enqueue_batch([Random(1).randbytes(300)] * 5)
    return path


def test_every_job_runs_by_its_command(
    command: CommandLine,
    spark: SparkSession,
    orders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # the tests go on with it

    def answer(*line: object, code: int = 0) -> Any:
        given = command("spark", *line, "--master", "local[2,4]")
        assert given.code == code, given
        return given

    archive = tmp_path / "archive"
    (archived,) = answer("archive", orders, archive, "--json").json
    assert archived["rows"] > 50
    nothing = answer("archive", orders, archive).text
    assert "0 messages archived" in nothing
    assert "segment_age_s" in nothing
    assert answer("audit", orders, "--archive", archive, "--json").json["sound"] is True
    back = tmp_path / "back"
    assert answer("restore", archive, back, "--end-seq", 21, "--json").json == {"restored": 20}
    assert answer("restore", archive, back, "--end-seq", 21, "--json").json == {"restored": 0}
    overlapping = answer("restore", archive, back, "--first-seq", 11, "--end-seq", 31, "--json")
    assert overlapping.json == {"restored": 10}
    wanted = [row["payload"] for row in rows(orders)][:30]
    assert [row["payload"] for row in rows(back)] == wanted
    page = tmp_path / "page"
    assert "report.html" in answer("report", orders, page).text
    assert answer("report", orders, page, "--json").json == json_of(page / "report.json")["queues"]
    assert answer("compact", archive, "--json").json[0]["rows"] > 0
    (kept,) = answer("retain", archive, "--max-bytes", "1kb", "--dry-run", "--json").json
    assert kept["files"] == 1
    assert "3 of 3 dead letters chosen" in answer("redrive", orders, "--dry-run").text
    assert answer("redrive", orders, "--dry-run", "--json").json["chosen"] == 3
    changed = answer("redrive", orders, "--payload", "encode('mended', 'utf-8')", "--json").json
    assert (changed["replaced"], changed["dead_after"]) == (3, 0)
    figures = tmp_path / "figures.json"
    copy, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    line = ("stream", orders, copy, "--to", "queue", "--checkpoint", checkpoint, "--once")
    answer(*line, "--metrics", figures)
    assert json_of(figures)["result"]["rows"] == 106
    answer(*line)
    assert len(rows(copy)) == 106
    # What only Spark can see is a sentence, too.
    said = answer("redrive", orders, "--where", "no such column", code=2).err
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 3
    said = answer("redrive", orders, "--where", "nope > 1", code=2).err
    assert "UNRESOLVED_COLUMN" in said
    assert "QueryContextLogger" not in said  # PySpark's logs, as JSON


BAD: list[tuple[list[str], str]] = [
    (["archive", "./nope", "archive"], "does not exist"),
    (["archive", "orders", "s3://bucket/archive?acess_key=1"], "'acess_key' is not an option"),
    (["archive", "s3a://bucket/orders", "archive"], "is a URL, not a directory"),
    (["archive", "orders", "file://host/archive"], "is not a file of this machine"),
    (["archive", "orders", "http://127.0.0.1:9/archive"], "is a URL, not a directory"),
    (["archive", "orders", "archive", "--iceberg", "nowhere"], "is not configured"),
    (["archive", "orders", "a-file"], "is not a directory"),
    (["archive", "orders", "archive", "-q", "shop/other"], "there is no queue"),
    (["archive", "orders", "archive", "--metrics", "s3://b/figures"], "not a directory"),
    (["archive", "orders", "archive", "--metrics", "/proc/nope/x.json"], "cannot be written"),
    (["archive", "orders", "archive", "--metrics", ""], "cannot be written"),
    (["archive", "orders", "archive", "--metrics", "a-file/x.json"], "cannot be written"),
    (["archive", "orders", "archive", "--master", "nonsense"], "--master is 'nonsense'"),
    (["archive", "orders", "archive", "--master", ""], "--master is ''"),
    (["restore", "./nope", "back"], "is not an archive"),
    (["restore", "s3://key:secret@bucket/archive", "back"], "credentials before the bucket"),
    (["restore", "archive", "s3://bucket/back"], "is a URL, not a directory"),
    (["restore", "archive", "a-file"], "is a file"),
    (["restore", "archive", "back", "-q", "other"], "name one queue of the archive"),
    (["restore", "archive", "back", "--first-id", "x"], "is not a message id"),
    (["restore", "archive", "back", "--first-seq", "5", "--end-seq", "4"], "after end_seq"),
    (["restore", "archive", "back", "--first-seq", "9" * 23], "it must be a whole number"),
    (["restore", "archive", "back", "--end-seq", "9" * 23], "it must be a whole number"),
    (["restore", "archive", "back", "--time-header", ""], "time_header is ''"),
    (["restore", "archive", "back", "--time-header", "a\nb"], "time_header is 'a\\nb'"),
    (["report", "./nope", "page"], "does not exist"),
    (["report", "orders", "orders/page"], "is inside orders"),
    (["report", "orders", "page", "--sla", "nan"], "invalid value for '--sla'"),
    (["report", "orders", "page", "--sla", "inf"], "sla_s is inf"),
    (["report", "orders", "abfss://container/page"], "names no storage account"),
    (["report", "orders", "page", "-g", "nobody"], "there is no group 'nobody'"),
    (["audit", "./nope"], "does not exist"),
    (["audit", "dbfs:/orders"], "is a URL, not a directory"),
    (["audit", "orders", "--archive", "./nope"], "is not an archive"),
    (["audit", "orders", "--archive", "gs:///archive"], "names no bucket"),
    (["compact", "./nope"], "is not an archive"),
    (["compact", "archive", "--file-size", "10"], "file_bytes"),
    (["compact", "archive", "-q", "other"], "name one queue of the archive"),
    (["retain", "archive"], "give --max-age or --max-bytes"),
    (["retain", "./nope", "--max-age", "1d"], "is not an archive"),
    (["redrive", "./nope"], "does not exist"),
    (["redrive", "orders", "-g", "nobody"], "there is no group 'nobody'"),
    (["redrive", "orders", "--payload", ""], "transform is ''"),
    (["stream", "./nope", "out", "--checkpoint", "c"], "does not exist"),
    (
        ["stream", "orders", "out", "--checkpoint", "c", "--to", "kafka"],
        "parquet, delta, iceberg, console, queue",
    ),
    (["stream", "orders", "s3://b/q", "--checkpoint", "c", "--to", "queue"], "is a URL, not"),
    (["stream", "orders", "out", "--checkpoint", "c", "--interval", "inf"], "interval_s is inf"),
    (
        ["stream", "orders", "out", "--checkpoint", "c", "--interval", "1e300"],
        "interval_s is 1e+300",
    ),
    (["stream", "orders", "out", "--checkpoint", "c", "--interval", "nan"], "for '--interval'"),
    (["stream", "orders", "out", "--checkpoint", ""], "checkpoint is ''"),
    (["stream", "orders", "out", "--checkpoint", "c", "--target-queue", "a/b"], "to is 'parquet'"),
    (
        ["from-kafka", "h:1", "t", "q", "--checkpoint", "c", "--interval", "inf"],
        "interval_s is inf",
    ),
    (["to-kafka", "orders", "h:1", "t", "--checkpoint", "c", "--interval", "inf"], "interval_s is"),
]


@pytest.mark.parametrize(("line", "said"), BAD, ids=lambda part: "-".join(part)[:40])
def test_bad_input_is_refused_before_spark_starts(
    line: list[str],
    said: str,
    command: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a JVM was started")

    monkeypatch.setattr("penstock.spark.session", started)
    monkeypatch.chdir(tmp_path)
    with penstock.open("orders") as queue:
        queue.enqueue(b"x")
    Path("a-file").touch()
    Path("archive", "_manifests").mkdir(parents=True)
    manifest = {"queue": "orders", "identity": 1, "first_seq": 1, "next_seq": 9, "files": []}
    Path("archive", "_manifests", "orders.json").write_text(json.dumps(manifest))
    before = sorted(tmp_path.rglob("*"))
    given = command("spark", *line)
    assert given.code == 2, given
    assert said in given.err
    assert len(given.err.splitlines()) == 1, given.err
    assert sorted(tmp_path.rglob("*")) == before


SPARK_SAYS = {
    "local[x]": (
        Py4JError(
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'\n"
            "\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3)"
        ),
        "local[x]: Could not parse Master URL: 'local[x]'",
    ),
    "yarn": (
        PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={}),
        "yarn: [JAVA_GATEWAY_EXITED] Java gateway process exited",
    ),
}


@pytest.mark.parametrize("master", SPARK_SAYS)
def test_a_master_that_spark_refuses_is_one_sentence(
    master: str, command: CommandLine, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, said = SPARK_SAYS[master]

    def started(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("penstock.spark.session", started)
    given = command("spark", "audit", orders, "--master", master)
    assert given.code == 2, given
    assert f"Spark did not start with --master {said}" in given.err
    assert len(given.err.splitlines()) == 1, given.err


def test_figures_of_a_refused_run_are_written(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = tmp_path / "figures.json"
    there: list[bool] = []

    def check(*_: object) -> None:
        there.append(figures.exists())
        raise penstock.errors.InvalidInput("no such thing")

    monkeypatch.setattr("penstock.spark.jobs.check_audit", check)
    given = command("spark", "audit", "orders", "--metrics", figures)
    assert given.code == 2, given
    assert there == [False]  # the check for writing leaves no empty file
    assert json.loads(figures.read_text())["error"] == "no such thing"


@pytest.mark.parametrize("place", ["s3://b/q", "file:///tmp/q", "dbfs:/q", "hdfs://h/q", "s3a://b"])
def test_a_url_that_is_no_brokers_is_never_taken_for_a_directory(
    place: str, command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(penstock.errors.InvalidInput, match="is a URL, not a directory"):
        penstock.open(place)
    for line in (["stats", place], ["enqueue", place, "x"], ["verify", place], ["queues", "list"]):
        given = command(*line, *([place] if line[0] == "queues" else []))
        assert given.code == 2, given
        assert "URL" in given.err
    assert list(tmp_path.iterdir()) == []
