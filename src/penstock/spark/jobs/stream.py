"""Stream: copy a queue to files, a table, the console or another queue; or any stream to them."""

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.archive.places import place_of
from penstock.arrow.locations import location_options, queues_of_job
from penstock.checking import check_choice, check_not_empty
from penstock.errors import InvalidInput
from penstock.spark.archive_stores import check_outside
from penstock.spark.delta_stream import DeltaTarget
from penstock.spark.iceberg_stream import IcebergTarget
from penstock.spark.jobs.queries import check_query, name_query
from penstock.spark.sessions import archive_secrets
from penstock.spark.sink_rows import EXACT_TIMES, SINK_COLUMNS
from penstock.spark.table_sink import (
    NAME,
    TableSink,
    sink_options,
    stored_schema,
    with_plan_time,
)
from penstock.spark.writers import check_target, identity_of

TARGETS = ("parquet", "delta", "iceberg", "console", "queue")


def check_stream(
    source: str | None, target: str, to: str, queue: str | None, target_queue: str | None
) -> None:
    """Raise for a source or a target that cannot be used. Spark checks its own targets."""
    check_choice("to", to, TARGETS)
    check_not_empty("target", target)
    if target_queue is not None and to != "queue":
        raise InvalidInput(
            f"target_queue is {target_queue!r}, but to is {to!r}: leave it out, or stream to queue"
        )
    sources = [] if source is None else queues_of_job(source, queue)
    if to == "delta":
        DeltaTarget.parse(target)
    elif to == "iceberg":
        IcebergTarget.parse(target)
    if to in ("parquet", "delta") and source is not None:
        check_outside("target", target, source)
    if to == "queue":
        written = check_target(target, target_queue)
        identity = identity_of(written) if sources else None
        # By identity: the same queue may be named by its path, a link to it, or a URL.
        for one in sources if identity is not None else ():
            if identity_of(one) == identity:
                raise InvalidInput(
                    f"{written.path} is both source and target (the source is {one.path}; both "
                    f"have the queue id {identity:08x}): a stream to itself never ends"
                )


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
    """Start a streaming query and return it; `query.awaitTermination()` waits for its end.

    `source` is the location of a queue, or a streaming DataFrame. A queue is read from its
    beginning unless `options` (those of the data source) say otherwise. With `once`, the query
    copies the existing messages and ends.

    A target is a directory or URL for `parquet` and `delta`, `catalog.namespace.table` for
    `iceberg`, and the location of a queue for `queue`. Tables are created when needed. They get the
    columns that they lack, and have each row once, as long as the checkpoint is kept.
    """
    check_query(checkpoint, interval_s, once=once, options=options)
    location = None if isinstance(source, DataFrame) else check_not_empty("source", source)
    check_stream(location, target, to, queue, target_queue)
    if isinstance(source, DataFrame):
        frame = source
    else:
        reader = spark.readStream.format("penstock").options(**location_options(source, queue))
        columns = ["seq", "timestamp", *_copied(SINK_COLUMNS, exact=to == "queue")]
        reader = reader.option("startingOffsets", "earliest").option("columns", ",".join(columns))
        reader = reader.options(**archive_secrets((options or {}).get("archive")))
        frame = reader.options(**(options or {})).load()
    if not frame.isStreaming:
        raise InvalidInput("the source is a batch: use spark.readStream, or the sink's batch write")
    if to == "queue":
        frame = frame.select(*_copied(frame.columns, exact=True))
    sent = with_plan_time(frame) if to in ("delta", "iceberg") else frame
    writer = sent.writeStream.option("checkpointLocation", checkpoint)
    # Two streams of a queue are two readers of it in the published lag.
    named = target if to in ("queue", "iceberg") else place_of(target).shown
    writer = writer.queryName(name_query(spark, f"penstock to {to} {named}", checkpoint))
    if to == "queue":
        writer = writer.format("penstock").options(**location_options(target, target_queue))
    elif to == "parquet":
        writer = writer.format("parquet").option("path", target)
    elif to in ("delta", "iceberg"):
        table = DeltaTarget.parse(target) if to == "delta" else IcebergTarget.parse(target)
        table.prepare(stored_schema(frame.schema))
        spark.dataSource.register(TableSink)
        writer = writer.format(NAME).options(**sink_options(table, to))
    else:
        writer = writer.format("console").option("truncate", "true")
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval_s} seconds").start()


def _copied(columns: Iterable[str], *, exact: bool) -> list[str]:
    """Return the columns that are copied to a queue. Each time is there in one of its two forms."""
    found = [name for name in SINK_COLUMNS if name in set(columns)]
    if not exact:
        return [name for name in found if name not in EXACT_TIMES]
    return [name for name in found if f"{name}_ns" not in found]
