"""Real Spark and a real broker: by URL, and on the broker's files while it is under load."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.broker import Verb
from penstock.spark.jobs import (
    archive,
    audit,
    live_and_archived,
    redrive,
    report,
    restore,
    stream,
)
from tests.server.running import RunningServer

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

LOT = 7  # messages of a batch: a reader sees all of them or none


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data", broker={"queues": {"sync": "always"}}) as running:
        yield running


@pytest.fixture(params=["files", "postgres"])
def at_url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningServer]:
    """A broker that Spark reaches by URL only, on each store."""
    monkeypatch.setenv("PENSTOCK_TEST_STORE", request.param)
    with RunningServer(tmp_path / "data", broker={"queues": {"sync": "always"}}) as running:
        yield running


def table(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(**options).load()


def numbers(frame: DataFrame) -> list[int]:
    rows = frame.selectExpr("seq", "cast(cast(payload as string) as bigint) n").collect()
    return [row.n for row in sorted(rows)]


def explained(frame: DataFrame) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        frame.explain(extended=True)
        frame.explain("formatted")
    return out.getvalue()


def test_a_queue_is_read_streamed_and_written_by_url_and_the_key_is_not_told(
    spark: SparkSession, at_url: RunningServer, tmp_path: Path
) -> None:
    key = at_url.new_key(Verb.READ, Verb.PUBLISH, Verb.CONSUME, namespaces=["shop"])
    at = {"url": at_url.url, "key": key}
    frame = spark.range(0, 3000, 1, 3).selectExpr("cast(id as string) payload")
    writer = frame.write.format("penstock").mode("append").options(**at, queue="shop/orders")
    writer = writer.option("txnAppId", "nightly").option("txnVersion", "1")
    writer.save()
    writer.save()
    orders = table(spark, **at, queue="shop/orders", maxPartitionBytes="16k")
    assert numbers(orders) == list(range(3000))
    assert numbers(orders.where("seq > 2990 and seq <= 2993")) == [2990, 2991, 2992]
    assert key not in explained(orders) + str(orders) + str(spark.sparkContext.getConf().getAll())
    stream = spark.readStream.format("penstock").options(
        **at, queue="shop/orders", startingOffsets="earliest", maxOffsetsPerTrigger="1200"
    )
    query = (
        stream.load()
        .select("payload")
        .writeStream.format("penstock")
        .options(**at, queue="shop/copy", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    assert numbers(table(spark, **at, queue="shop/copy")) == list(range(3000))
    with pytest.raises(Exception, match="key") as refused:
        table(spark, url=at_url.url, queue="shop/orders", key=key[:-1] + "x").count()
    assert key[:-1] not in str(refused.value)


def test_jobs_run_by_url_and_what_is_archived_may_go(
    spark: SparkSession, at_url: RunningServer, tmp_path: Path
) -> None:
    url, target = f"{at_url.url}/shop/orders", str(tmp_path / "archive")
    settings = {"segment_bytes": 65536, "archive_required": True, "auto_compact": False}
    with at_url.client() as http:
        assert http.put("/api/v1/namespaces/shop/queues/orders", json=settings).status_code == 201
    with penstock.open(url) as queue:
        for start in range(0, 3000, 100):
            queue.enqueue_batch([b"%d" % n + b" " * 50 for n in range(start, start + 100)])
        queue.purge()
        assert queue.compact().bytes_freed == 0
        (result,) = archive(spark, url, target)
        assert 1000 < result.rows < 3000
        assert queue.compact().bytes_freed > 0
        assert queue.stats().first_seq == result.next_seq
    assert audit(spark, url, archive=target).is_sound
    whole = live_and_archived(spark, url, target, queue="shop/orders")
    seqs = [row.seq for row in whole.select("seq").orderBy("seq").collect()]
    assert seqs == list(range(1, 3001)), "neither gap nor overlap"


def test_every_job_runs_through_a_broker_that_does_not_own_the_queue(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, where one broker owns a queue and the others forward to it."""
    monkeypatch.setenv("PENSTOCK_TEST_STORE", "postgres")
    with RunningServer(tmp_path / "data") as owner, RunningServer(tmp_path / "data") as other:
        settings = {"segment_bytes": 65536, "max_attempts": 1}
        with owner.client() as http:
            http.put("/api/v1/namespaces/shop/queues/orders", json=settings).raise_for_status()
        with penstock.open(f"{owner.url}/shop/orders") as queue:
            for start in range(0, 3000, 100):
                queue.enqueue_batch([b"%d" % n + b" " * 50 for n in range(start, start + 100)])
            for leased in queue.lease(10):
                queue.nack(leased, reason="broken")
            assert queue.stats().groups["main"].dead == 10
        url, target = f"{other.url}/shop/orders", str(tmp_path / "archive")
        (found,) = report(spark, url, str(tmp_path / "report"))
        assert found.totals["published"] == 3000
        assert redrive(spark, url, where="seq <= 4").redriven == 4
        query = stream(
            spark,
            url,
            f"{other.url}/shop/copy",
            to="queue",
            checkpoint=str(tmp_path / "checkpoint"),
            once=True,
        )
        assert query.awaitTermination(200)
        assert numbers(table(spark, url=other.url, queue="shop/copy")) == list(range(3000))
        (archived,) = archive(spark, url, target)
        assert audit(spark, url, archive=target).is_sound
        again = f"{other.url}/shop/again"
        assert restore(spark, target, again) == archived.rows
        assert restore(spark, target, again) == 0, "each message once"
        assert numbers(table(spark, url=owner.url, queue="shop/again")) == list(
            range(archived.rows)
        )


def test_spark_reads_and_writes_the_files_of_a_broker_under_load(
    spark: SparkSession, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see whole batches, in order; jobs come in once; clients lose nothing meanwhile."""
    monkeypatch.setattr("penstock.ledger.adoption.SMALL_BYTES", 20_000)  # some are adopted
    url = f"{server.url}/shop/orders"
    ended, published, consumed = Event(), [0], [0]

    def publish() -> None:
        with penstock.open(url) as queue:
            while not ended.is_set():
                queue.enqueue_batch([b"-1"] * LOT)
                published[0] += LOT

    def consume() -> None:
        with penstock.open(url) as queue:
            while not ended.is_set():
                leased = queue.lease(50, wait_s=0.1)
                if leased:  # on a busy machine nothing may have come in time
                    queue.ack(leased)
                consumed[0] += len(leased)

    with penstock.open(url) as queue:
        queue.groups.create("kept")  # which holds compaction back: all of it can be compared
    threads = [Thread(target=publish), Thread(target=consume)]
    for thread in threads:
        thread.start()
    try:
        written = 0
        for version, rows in enumerate((3000, 50, 3000)):
            job = spark.range(written, written + rows, 1, 2).selectExpr(
                "cast(id as string) payload"
            )
            place = {"path": str(server.data)} if version % 2 else {"url": server.url}
            for _ in range(2):
                sink = job.write.format("penstock").mode("append").options(**place)
                sink = sink.option("queue", "shop/orders").option("txnAppId", "load")
                sink.option("txnVersion", str(version)).save()
            written += rows
            for place in ({"path": str(server.data)}, {"url": server.url}):
                found = table(spark, **place, queue="shop/orders", columns="seq,payload")
                values = found.orderBy("seq").collect()
                assert [row.seq for row in values] == list(range(1, len(values) + 1))
                jobs = [int(row.payload) for row in values if row.payload != b"-1"]
                assert jobs == list(range(written))
                assert (len(values) - len(jobs)) % LOT == 0
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    with penstock.open(url) as queue:
        stats = queue.stats()
        assert stats.published == published[0] + written
        assert stats.acked == consumed[0]
        assert stats.ready + stats.leased == published[0] + written - consumed[0]
    with penstock.open(url) as queue:
        left = sum(len(queue.dequeue_batch(1000)) for _ in range(stats.ready // 1000 + 1))
        assert left == stats.ready
