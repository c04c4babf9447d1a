"""Stream: a queue to Parquet, the console or another queue, as it grows; or any stream to one."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import InvalidInput
from penstock.spark.jobs.inputs import check_stream
from penstock.spark.places import place_options


def stream(
    spark: SparkSession,
    source: str | DataFrame,
    target: str,
    *,
    to: str = "parquet",
    checkpoint: str,
    queue: str | None = None,
    target_queue: str | None = None,
    once: bool = False,
    interval_s: float = 1.0,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start a query and hand it back; `query.awaitTermination()` waits for it.

    `source` is a queue's place, read from its beginning unless `options` say otherwise, or a
    streaming DataFrame of your own. With `once`, what is there now is copied, and the query ends.
    """
    check_stream(source if isinstance(source, str) else None, target, to, queue, target_queue)
    frame = source if isinstance(source, DataFrame) else _read(spark, source, queue, options or {})
    if not frame.isStreaming:
        raise InvalidInput("the source is a batch: use spark.readStream, or the sink's batch write")
    if to == "queue":
        frame = frame.select(*[name for name in _SINK_COLUMNS if name in frame.columns])
    writer = frame.writeStream.option("checkpointLocation", checkpoint).queryName(
        f"penstock to {to}"
    )
    if to == "queue":
        writer = writer.format("penstock").options(**place_options(target, target_queue))
    elif to == "parquet":
        writer = writer.format("parquet").option("path", target)
    else:
        writer = writer.format("console").option("truncate", "true")
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval_s} seconds").start()


# All that a message is, and its place; what the sink does not take is left out for a queue.
_COPIED_COLUMNS = (
    "seq,timestamp,priority,key,headers,payload,expires_at,deliver_at,content_type,max_attempts"
)
_SINK_COLUMNS = (
    "payload",
    "priority",
    "key",
    "headers",
    "deliver_at",
    "expires_at",
    "content_type",
    "max_attempts",
)


def _read(
    spark: SparkSession, path: str, queue: str | None, options: Mapping[str, str]
) -> DataFrame:
    reader = spark.readStream.format("penstock").options(**place_options(path, queue))
    reader = reader.option("startingOffsets", "earliest").option("columns", _COPIED_COLUMNS)
    return reader.options(**options).load()
