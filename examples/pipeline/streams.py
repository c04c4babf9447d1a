"""The driver: four streaming queries, from the queue to bronze, silver, rejected and gold.

    python -m examples.pipeline.streams --url http://127.0.0.1:8080 --lake ./lake

It may be killed at any moment and started again. SIGTERM makes it process what has been published,
then exit. A query that fails, because the broker is restarting for example, is started again from
its checkpoint.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from threading import Event

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from examples.pipeline import tables
from examples.pipeline.layout import BRONZE, ORDERS, REJECTED, SALES, SILVER, Layout
from penstock.spark import session

MAX_FAILURES = 20  # of one query, one after another without a batch in between
_PAUSE_S = 1.0
_QUERY_ID = "sql.streaming.queryId"  # Spark's name of a local property


class Streams:
    """The queries of one pipeline, by name, each after those it reads from."""

    def __init__(self, spark: SparkSession, layout: Layout, *, trigger_s: float) -> None:
        self._spark = spark
        self._layout = layout
        self._trigger_s = trigger_s
        self._writers: dict[str, Callable[[], DataStreamWriter]] = {
            "bronze": self._bronze,
            "silver": self._silver,
            "rejected": self._rejected,
            "gold": self._gold,
        }
        for name in ("bronze", "silver"):
            os.makedirs(layout.table(name), exist_ok=True)

    def start(self, name: str, *, until_now: bool) -> StreamingQuery:
        """Start one query: for ever, or until it has read what exists now."""
        writer = self._writers[name]().queryName(name)
        writer = writer.option("checkpointLocation", self._layout.checkpoint(name))
        if until_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._trigger_s} seconds").start()

    def run(self, stopping: Event) -> None:
        """Run all queries until `stopping` is set, and start again those that fail."""
        running = {name: self.start(name, until_now=False) for name in self._writers}
        failures = dict.fromkeys(running, 0)
        said = False
        while not stopping.wait(_PAUSE_S):
            for name, query in running.items():
                if query.isActive:
                    if query.lastProgress is not None:
                        failures[name] = 0
                    continue
                failures[name] += 1
                print(f"{name} failed: {_first_line(query)}", file=sys.stderr, flush=True)
                if failures[name] > MAX_FAILURES:
                    raise SystemExit(f"{name} failed {MAX_FAILURES} times without a batch")
                running[name] = self.start(name, until_now=False)
            if not said and has_rows(running["silver"]):
                said = True
                print("working", flush=True)
        for query in running.values():
            query.stop()

    def drain(self) -> None:
        """Process everything that has been published, table by table."""
        for name in self._writers:
            self.start(name, until_now=True).awaitTermination()

    # -- the queries -------------------------------------------------------------------------------

    def _bronze(self) -> DataStreamWriter:
        """Read the queue. Spark's file sink records the files of each batch, so each is once."""
        messages = (
            self._spark.readStream.format("penstock")
            .options(**self._layout.queue(ORDERS))
            .option("columns", "seq,id,timestamp,key,headers,payload")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "50000")
            .load()
        )
        return _files(tables.bronze(messages), self._layout.table("bronze"))

    def _silver(self) -> DataStreamWriter:
        return _files(tables.silver(self._judged(), self._layout), self._layout.table("silver"))

    def _rejected(self) -> DataStreamWriter:
        """Publish bad and late orders. The sink writes each batch of a query once."""
        writer = tables.rejected(self._judged()).writeStream.format("penstock")
        return writer.options(**self._layout.queue(REJECTED))

    def _gold(self) -> DataStreamWriter:
        """Sum up each window when the watermark has passed it: one result, which is final."""
        orders = self._spark.readStream.schema(SILVER).parquet(self._layout.table("silver"))
        watched = orders.withWatermark("ordered_at", f"{self._layout.watermark_s} seconds")
        sums = tables.gold(watched, self._layout)
        return sums.writeStream.outputMode("append").foreachBatch(self._publish)

    def _publish(self, sums: DataFrame, batch: int) -> None:
        """Write a batch of gold to its two targets. Spark repeats it after a crash in between.

        Both writes are idempotent: the files of a batch are replaced, and the queue remembers the
        number of the last batch of this query.
        """
        if sums.isEmpty():
            return
        sums = sums.persist()
        try:
            sums.write.mode("overwrite").parquet(self._layout.table(f"gold/batch={batch}"))
            query_id = sums.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
            if query_id is None:
                raise RuntimeError("Spark gave no query id: a batch cannot be told from others")
            writer = tables.sales_messages(sums).write.format("penstock").mode("append")
            writer = writer.options(**self._layout.queue(SALES))
            writer.option("txnAppId", query_id).option("txnVersion", batch).save()
        finally:
            sums.unpersist()

    def _judged(self) -> DataFrame:
        """Read bronze as a stream. Only files that Spark has committed are seen."""
        messages = self._spark.readStream.schema(BRONZE).parquet(self._layout.table("bronze"))
        return tables.judged(messages, self._layout)


def _files(frame: DataFrame, path: str) -> DataStreamWriter:
    return frame.writeStream.format("parquet").partitionBy("date").option("path", path)


def has_rows(query: StreamingQuery) -> bool:
    """Return whether one of the last batches of a query had rows."""
    return any(progress["numInputRows"] for progress in query.recentProgress)


def _first_line(query: StreamingQuery) -> str:
    error: PySparkException | None = query.exception()
    lines = [line for line in str(error).splitlines() if line.strip()]
    # The last line of the Python traceback that Spark quotes, if there is one.
    own = [line for line in lines if line.startswith("penstock.")]
    return [*own, *lines, "stopped"][0][:300]


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(description="Run the streams of the order pipeline.")
    parser.add_argument("--url", required=True, help="URL of the broker")
    parser.add_argument("--lake", required=True, help="directory of the tables")
    parser.add_argument("--window-s", type=int, default=60, help="length of a window of gold")
    parser.add_argument("--lateness-s", type=int, default=600, help="older orders are late")
    parser.add_argument("--trigger-s", type=float, default=1, help="time between two batches")
    parser.add_argument("--master", default="local[2]", help="where Spark runs")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    given = parsed(arguments)
    layout = Layout(
        url=given.url, lake=given.lake, window_s=given.window_s, lateness_s=given.lateness_s
    )
    layout.save()
    stopping = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    spark = session(given.master, app_name="order pipeline", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    streams = Streams(spark, layout, trigger_s=given.trigger_s)
    streams.run(stopping)
    streams.drain()
    print("drained", flush=True)
    spark.stop()


# For a small machine: a batch of a shop has too few rows for 200 shuffle partitions.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    # A driver that was killed within the first batch starts with its offsets already written.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.python.authenticate.socketTimeout": "120s",
}


if __name__ == "__main__":
    main()
