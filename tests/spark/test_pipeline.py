"""The order pipeline of the examples: exact through faults, and its nightly job finds defects."""

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from examples.pipeline import layout, nightly, reconcile, tables
from examples.pipeline.layout import BRONZE, ORDERS, REJECTED, SALES, SILVER, Layout
from examples.pipeline.run import run, sentences
from penstock.clock import ManualClock
from penstock.queue import Queue
from penstock.queue.queue import open_queue
from penstock.spark import read
from penstock.worker import Worker, WorkerOptions
from tests.server.running import RunningServer

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_is_missing_and_nothing_is_double_after_killed_drivers_and_brokers(
    spark: SparkSession, tmp_path: Path
) -> None:
    outcome = run(
        tmp_path,
        seconds=0,
        faults_min=2,
        rate_per_s=30,
        window_s=1,
        lateness_s=4,
        trigger_s=4,
        spark=spark,
    )
    said = "\n".join(sentences(outcome))
    assert outcome.is_exact, said
    assert said.endswith("Nothing is missing, and nothing is double.")
    assert outcome.faults == {"killed drivers": 1, "restarted brokers": 1}
    # Otherwise there was nothing to get wrong.
    for name in ("silver", "duplicates", "rejected", "rejected as late", "orders in gold"):
        assert outcome.result.counts[name] > 0, said
    assert outcome.result.counts["orders in open windows"] == 1, said
    page = (tmp_path / "lake" / "report.html").read_text()
    assert "Nothing is missing" in page
    assert "<script" not in page
    assert page.count("<svg") == 3
    assert "http" not in page


@pytest.mark.long
def test_two_minutes_by_the_one_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.pipeline.run", "--place", str(tmp_path / "place")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "Nothing is missing, and nothing is double." in done.stdout


# -- the nightly job -------------------------------------------------------------------------------


def order(number: int, ordered_at: datetime, **fields: object) -> bytes:
    usual = {
        "order_id": f"order {number}",
        "customer": "ada",
        "product": ("tea", "cocoa")[number % 2],
        "quantity": 2,
        "cents": 100 + number,
        "ordered_at": ordered_at.isoformat(),
    }
    return json.dumps({**usual, **fields}).encode()


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Iterator[Layout]:
    """Queues and tables of 20 orders, two of them twice, and four rejected; made by batches."""
    now = datetime.now(UTC) - timedelta(seconds=1)
    late, future = now - timedelta(hours=1), now + timedelta(hours=1)
    payloads = [order(number, now) for number in range(19)]
    payloads += [payloads[3], payloads[4], b"not JSON", order(50, now, quantity=0)]
    payloads += [order(51, late), order(52, future)]
    with RunningServer(tmp_path / "data") as server:
        made = Layout(url=server.url, lake=str(tmp_path / "lake"), window_s=3600)
        made.save()
        with penstock.open(f"{server.url}/{ORDERS}") as queue:
            queue.enqueue_batch(payloads)
            queue.enqueue(order(19, now))
        columns = ["seq", "id", "timestamp", "key", "headers", "payload"]
        messages = read(spark, f"{server.url}/{ORDERS}", columns=columns)
        tables.bronze(messages).write.parquet(made.table("bronze"))
        judged = tables.judged(made.read(spark, "bronze", BRONZE), made)
        accepted = tables.orders(judged).dropDuplicates(["order_id"])
        accepted.write.parquet(made.table("silver"))
        append(tables.rejected(judged), made, REJECTED)
        gold = tables.gold(made.read(spark, "silver", SILVER), made)
        gold.write.parquet(made.table("gold/batch=0"))
        append(tables.sales_messages(gold), made, SALES)
        yield made


def append(frame: DataFrame, place: Layout, queue: str) -> None:
    frame.write.format("penstock").mode("append").options(**place.queue(queue)).save()


def test_the_nightly_job_counts_everything_and_names_each_defect(
    place: Layout, spark: SparkSession
) -> None:
    result = reconcile.reconcile(spark, layout.load(place.lake))
    assert result.is_exact, result
    wanted = {"queue": 26, "bronze": 26, "silver": 20, "duplicates": 2, "rejected": 4}
    wanted |= {"rejected as late": 1, "orders in gold": 20, "orders in open windows": 0}
    assert {name: result.counts[name] for name in wanted} == wanted
    assert reconcile.sentences(result)[-1] == "Nothing is missing, and nothing is double."

    # Harm a different order in each table.
    change(spark, place, "bronze", BRONZE, "seq <> 1", "seq = 2")
    change(spark, place, "silver", SILVER, "order_id NOT IN ('order 5', 'order 19')", "seq = 7")
    append(spark.createDataFrame([("{}",)], "payload STRING"), place, SALES)
    rejected = read(spark, f"{place.url}/{REJECTED}", columns=["payload", "headers"])
    append(rejected.where("headers['reason'] = 'late'"), place, REJECTED)
    # Order 19 is missing in silver, but need not have arrived by then.
    (last,) = read(spark, f"{place.url}/{ORDERS}", first_seq=26, columns=["timestamp_ns"]).collect()
    until = datetime.fromtimestamp(last[0] // 1000 / 1e6, UTC)
    found = reconcile.reconcile(spark, place, until)
    assert {name: count for name, count in found.problems.items() if count} == {
        "missing in bronze": 1,  # order 0
        "double in bronze": 1,  # order 1
        "in silver but not in bronze": 1,  # order 0
        "missing in silver": 1,  # order 5
        "changed in silver": 1,  # order 8
        "double in silver": 1,  # order 6
        "double among rejected": 1,
        "changed in gold": 2,  # the only window, of two products
        "sales messages that are not in gold": 1,
    }
    (said,) = reconcile.sentences(found)[-1:]
    assert said.startswith("Missing: 2. Double: 3. Different: ")


def change(
    spark: SparkSession, place: Layout, table: str, schema: str, kept: str, doubled: str
) -> None:
    """Rewrite a table with the rows that are kept, some rows once more, and order 8 changed."""
    old = place.read(spark, table, schema)
    rows = [row.asDict() for part in (kept, doubled) for row in old.where(part).collect()]
    for row in rows:
        if row.get("order_id") == "order 8":
            row["cents"] += 1
    new = spark.createDataFrame([tuple(row.values()) for row in rows], schema)
    new.write.mode("overwrite").parquet(place.table(table))


def test_a_lake_keeps_its_rules_about_time(tmp_path: Path) -> None:
    Layout(url="http://a", lake=str(tmp_path)).save()
    Layout(url="http://b", lake=str(tmp_path)).save()  # the broker may move
    assert layout.load(str(tmp_path)).url == "http://b"
    with pytest.raises(ValueError, match="'lateness_s': 600"):
        Layout(url="http://a", lake=str(tmp_path), lateness_s=10).save()
    assert layout.load(str(tmp_path)).lateness_s == 600


# -- schedules -------------------------------------------------------------------------------------


def test_the_nightly_job_runs_at_its_tick_up_to_midnight_and_again_if_it_fails(
    tmp_path: Path,
) -> None:
    evening = datetime(2026, 1, 30, 22, 15, tzinfo=UTC)
    clock = ManualClock(now_s=evening.timestamp())
    answers, asked = [False, True, True], []

    def job(until: datetime) -> bool:
        asked.append(until)
        return answers[len(asked) - 1]

    def work(queue: Queue) -> None:
        Worker(queue, nightly.handler(job), options=WorkerOptions(idle_s=0)).run()

    with open_queue(str(tmp_path), {"min_free_bytes": 0}, clock=clock) as queue:
        nightly.put_schedule(queue)
        nightly.put_schedule(queue)  # at the next start of the worker
        work(queue)
        assert asked == []
        clock.advance((evening.replace(day=31, hour=2, minute=0) - evening).total_seconds())
        work(queue)
        assert asked == [datetime(2026, 1, 31, tzinfo=UTC)]
        clock.advance(nightly.RETRY_S)
        work(queue)
        clock.advance(nightly.RETRY_S)
        work(queue)
        assert asked == [datetime(2026, 1, 31, tzinfo=UTC)] * 2
        clock.advance(86_400)
        work(queue)
        assert asked[2:] == [datetime(2026, 2, 1, tzinfo=UTC)]
        assert queue.stats().dead == 0


def test_the_job_of_the_schedule_is_the_nightly_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[list[str]] = []

    def run(line: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        lines.append(line)
        return subprocess.CompletedProcess(line, len(lines) - 1)

    monkeypatch.setattr(subprocess, "run", run)
    job, until = nightly.command("lake", "local[1]"), datetime(2026, 1, 31, tzinfo=UTC)
    assert [job(until), job(until)] == [True, False]
    assert lines[0][:3] == [sys.executable, "-m", "examples.pipeline.reconcile"]
    given = reconcile.parsed(lines[0][3:])
    assert (given.lake, given.until, given.master) == ("lake", until, "local[1]")


def test_the_dag_of_airflow_runs_the_nightly_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Airflow is not installed: read the command out of the file, and have it parsed."""
    tree = ast.parse((ROOT / "examples" / "pipeline" / "airflow_dag.py").read_text())
    names = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    (command,) = [
        keyword.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "bash_command"
    ]
    text = eval(compile(ast.Expression(command), "dag", "eval"), names)
    line = shlex.split(re.sub(r"{{.*?}}", "2026-01-31T00:00:00+00:00", text))
    assert line[:3] == ["python", "-m", "examples.pipeline.reconcile"]
    given = reconcile.parsed(line[3:])
    assert (given.lake, given.until) == (names["LAKE"], datetime(2026, 1, 31, tzinfo=UTC))


def test_a_time_without_a_zone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        reconcile.parsed(["lake", "--until", "2026-01-31T00:00"])
    assert "has no time zone" in capsys.readouterr().err
