"""The source and the sink inside a real Spark."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from tests.spark.random_queues import open_small

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    with open_small(path) as queue:
        for number in range(20):
            queue.enqueue_batch([f"{number * 100 + n}" for n in range(100)])
    return path


def table(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(path=str(path), **options).load()


def test_batch_read_with_filters_and_columns(spark: SparkSession, orders: Path) -> None:
    frame = table(spark, orders, maxPartitionBytes="8k")
    assert frame.columns == ["seq", "timestamp", "priority", "key", "payload"]
    assert frame.count() == 2000
    chosen = frame.where("seq > 1990 and seq <= 1995").selectExpr("cast(payload as string) p")
    assert [row.p for row in chosen.collect()] == ["1990", "1991", "1992", "1993", "1994"]
    latest = frame.agg({"timestamp": "max"}).first()
    assert latest is not None
    by_time = frame.where(frame.timestamp >= latest[0])
    assert 0 < by_time.count() <= 100
    given = spark.read.format("penstock").schema("seq BIGINT").load(str(orders))
    assert given.agg({"seq": "sum"}).collect()[0][0] == 2001 * 1000


def test_sql_over_a_view_joins_events_and_messages(spark: SparkSession, orders: Path) -> None:
    with open_small(orders) as queue:
        queue.dequeue_batch(10)
    for name in ("messages", "events"):
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {name} USING penstock "
            f"OPTIONS (path '{orders}', table '{name}')"
        )
    found = spark.sql("SELECT count(*) FROM messages JOIN events USING (seq) WHERE event = 'taken'")
    assert found.collect()[0][0] == 10


def test_errors_reach_the_user_with_their_advice(spark: SparkSession, orders: Path) -> None:
    for options, said in (
        ({"path": str(orders), "strtingOffsets": "latest"}, "did you mean startingOffsets"),
        ({"path": str(orders / "nowhere")}, "does not exist"),
        ({}, "give 'path' or 'url'"),
    ):
        with pytest.raises(PySparkException, match=said):
            spark.read.format("penstock").options(**options).load().count()
    with pytest.raises(PySparkException, match="needs a column 'payload'"):
        spark.range(3).write.format("penstock").mode("append").save(str(orders))
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        frame = spark.range(3).selectExpr("cast(id as string) payload")
        frame.write.format("penstock").mode("overwrite").save(str(orders))


def test_batch_write_with_a_failing_task_is_exactly_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, marker = tmp_path / "out", tmp_path / "failed-once"

    def fail_once(numbers: Iterable[int]) -> Iterable[tuple[str]]:
        for number in numbers:
            yield (str(number),)
            if number == 15_000 and not Path(marker).exists():
                Path(marker).touch()
                raise RuntimeError("this task fails the first time")

    numbers = spark.sparkContext.parallelize(range(40_000), 4)
    frame = spark.createDataFrame(numbers.mapPartitions(fail_once), "payload string")
    frame.write.format("penstock").mode("append").save(str(path))
    assert marker.exists()
    found = table(spark, path).selectExpr("cast(cast(payload as string) as bigint) n")
    assert [row.n for row in found.orderBy("seq").collect()] == list(range(40_000))


def start(
    spark: SparkSession, source: Path, sink: Path, checkpoint: Path, **options: str
) -> StreamingQuery:
    frame = (
        spark.readStream.format("penstock")
        .options(path=str(source), startingOffsets="earliest", **options)
        .load()
    )
    return (
        frame.select("payload")
        .writeStream.format("penstock")
        .option("path", str(sink))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def finished(query: StreamingQuery) -> None:
    assert query.awaitTermination(100)


def payloads(path: Path) -> list[int]:
    with penstock.open(str(path)) as queue:
        return [int(message.payload) for message in queue.browse()]


def test_a_stream_from_queue_to_queue_goes_on_where_it_stopped(
    spark: SparkSession, orders: Path, tmp_path: Path
) -> None:
    sink, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    finished(start(spark, orders, sink, checkpoint, maxOffsetsPerTrigger="700"))
    assert payloads(sink) == list(range(2000))
    with open_small(orders) as queue:
        queue.enqueue_batch([str(n) for n in range(2000, 2050)])
    finished(start(spark, orders, sink, checkpoint))
    assert payloads(sink) == list(range(2050))


@pytest.mark.parametrize("lost", ["commit", "offset and commit"])
def test_a_stream_that_died_within_a_batch_has_it_once(
    spark: SparkSession, orders: Path, tmp_path: Path, lost: str
) -> None:
    """A micro-batch leaves its offsets, then its output, then its commit: each may be the last."""
    sink, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    finished(start(spark, orders, sink, checkpoint, maxOffsetsPerTrigger="700"))
    assert payloads(sink) == list(range(2000))
    for name in ("commits", "offsets") if lost == "offset and commit" else ("commits",):
        for last in (checkpoint / name).glob("*2*"):  # and the file with its checksum
            last.unlink()
    with open_small(orders) as queue:
        queue.enqueue_batch([str(n) for n in range(2000, 2050)])
    finished(start(spark, orders, sink, checkpoint))
    wanted = list(range(2000 if lost == "offset and commit" else 2050))
    assert payloads(sink)[: len(wanted)] == wanted


def test_a_stream_whose_output_failed_after_its_offsets_were_written_has_it_once(
    spark: SparkSession, orders: Path, tmp_path: Path
) -> None:
    sink, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    with penstock.open(str(sink)):  # another writer: nothing can be committed
        query = start(spark, orders, sink, checkpoint, maxOffsetsPerTrigger="700")
        with pytest.raises(PySparkException, match="is being written by process"):
            query.awaitTermination(100)
    assert payloads(sink) == []
    finished(start(spark, orders, sink, checkpoint, maxOffsetsPerTrigger="700"))
    assert payloads(sink) == list(range(2000))


def test_foreach_batch_sees_every_message_once(
    spark: SparkSession, orders: Path, tmp_path: Path
) -> None:
    seen: dict[int, list[int]] = {}
    query = (
        spark.readStream.format("penstock")
        .options(path=str(orders), startingOffsets="earliest", maxOffsetsPerTrigger="900")
        .schema("seq BIGINT")
        .load()
        .writeStream.foreachBatch(_noting(seen))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    finished(query)
    assert [len(batch) for batch in seen.values()] == [900, 900, 200]
    assert sorted(seq for batch in seen.values() for seq in batch) == list(range(1, 2001))


def _noting(seen: dict[int, list[int]]) -> Callable[[DataFrame, int], None]:
    def note(frame: DataFrame, batch_id: int) -> None:
        seen[batch_id] = [row.seq for row in frame.collect()]

    return note
