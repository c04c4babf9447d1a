"""Bridge: copy a topic of Kafka to a queue, or a queue to a topic, as they grow.

Spark's Kafka connector reads and writes Kafka. It is a package of its own, for the JVM, and must be
added to the session. Into a queue each record is written once: the sink knows the batches of a
query. Into Kafka each message is written at least once, because Kafka's sink is so.
"""

import re
from collections.abc import Mapping

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.arrow.locations import absolute_path, location_options, queues_of_job
from penstock.arrow.selection import switch_in
from penstock.checking import check_choice, check_text
from penstock.errors import InvalidInput
from penstock.spark.jobs.queries import check_query, name_query
from penstock.spark.writers import check_target

KEYS = ("text", "base64", "none")
FORMAT = "kafka"  # the name of the connector in Spark
_SERVER = re.compile(r"[^\s,:]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # Kafka's own rule
_SET_BY_ARGUMENT = {
    "kafka.bootstrap.servers": "servers",
    "subscribe": "topic",
    "topic": "topic",
    "checkpointlocation": "checkpoint",
}


def check_kafka(
    servers: str, topic: str, keys: str = "text", options: Mapping[str, str] | None = None
) -> None:
    """Raise InvalidInput for arguments about Kafka that cannot be right."""
    if not all(_SERVER.fullmatch(one) for one in check_text("servers", servers).split(",")):
        raise InvalidInput(
            f"servers is {servers!r}; it must be host:port, or several separated by commas"
        )
    if not _TOPIC.fullmatch(check_text("topic", topic)):
        raise InvalidInput(
            f"topic is {topic!r}; it must be 1 to 249 letters, digits, dots, underscores or hyphens"
        )
    check_choice("keys", keys, KEYS)
    for name in options or {}:
        if name.lower() in _SET_BY_ARGUMENT:
            raise InvalidInput(
                f"the option {name!r} is set by the argument {_SET_BY_ARGUMENT[name.lower()]!r}"
            )


def check_from_kafka(target: str, target_queue: str | None) -> None:
    """Raise for a queue that cannot be written to. Nothing is created."""
    check_target(target, target_queue)


def check_to_kafka(source: str, queue: str | None) -> None:
    """Raise for a source that is not one queue."""
    queues = queues_of_job(source, queue)
    if len(queues) != 1:
        raise InvalidInput(
            f"{source} has {len(queues)} queues, and a topic takes one: name it with 'queue'"
        )


def from_kafka(
    spark: SparkSession,
    servers: str,
    topic: str,
    target: str,
    *,
    checkpoint: str,
    target_queue: str | None = None,
    keys: str = "text",
    headers: bool = True,
    once: bool = False,
    interval_s: float = 1.0,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start to copy a topic to a queue, each record once, and return the query.

    A new query reads the topic from its beginning. Records keep their order within a partition of
    Kafka. Each message has headers that say where it comes from: `kafka.topic`, `kafka.partition`
    and `kafka.offset`. A record without a value becomes an empty payload with `kafka.tombstone`.

    Args:
        spark: A session with Spark's Kafka connector.
        servers: Kafka's brokers: host:port, or several separated by commas.
        topic: Topic to read.
        target: Directory of a queue, or URL of a broker or a queue.
        checkpoint: Directory where Spark stores its progress.
        target_queue: Queue of a broker that is written to.
        keys: What happens to a key: `text` (it must be UTF-8), `base64`, or `none`.
        headers: False to leave Kafka's headers out. Their values must be UTF-8.
        once: Copy what exists, then end.
        interval_s: Time between two batches.
        options: Options of Kafka's source, such as `startingOffsets` or `kafka.security.protocol`.
    """
    check_query(checkpoint, interval_s, once=once, options=options)
    switch_in("headers", headers)
    check_kafka(servers, topic, keys, options)
    check_from_kafka(target, target_queue)
    reader = spark.readStream.format(FORMAT).option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    reader = reader.option("includeHeaders", "true" if headers else "false")
    try:
        records = reader.options(**(options or {})).load()
    except PySparkException as error:
        raise _explained(error) from None
    frame = messages_of(records, keys=keys)
    writer = frame.writeStream.format("penstock").options(**location_options(target, target_queue))
    name = name_query(spark, f"kafka to {target_queue or target}", checkpoint)
    return _start(writer, name, checkpoint, once, interval_s)


def to_kafka(
    spark: SparkSession,
    source: str,
    servers: str,
    topic: str,
    *,
    checkpoint: str,
    queue: str | None = None,
    once: bool = False,
    interval_s: float = 1.0,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start to copy a queue to a topic, each message at least once, and return the query.

    After a crash the last batch may be written again. Each record has the headers `penstock.id` and
    `penstock.seq`, by which a consumer can tell a repeated one. The key becomes Kafka's key, so
    messages with the same key are in one partition, in order.

    Args:
        spark: A session with Spark's Kafka connector.
        source: Directory of a queue, data directory of a broker, or URL.
        servers: Kafka's brokers: host:port, or several separated by commas.
        topic: Topic to write to.
        checkpoint: Directory where Spark stores its progress.
        queue: Queue of a data directory or a broker.
        once: Copy what exists, then end.
        interval_s: Time between two batches.
        options: Options of Kafka's sink, such as `kafka.acks` or `kafka.security.protocol`.
    """
    check_query(checkpoint, interval_s, once=once, options=options)
    check_kafka(servers, topic, options=options)
    check_to_kafka(source, queue)
    reader = spark.readStream.format("penstock").options(**location_options(source, queue))
    reader = reader.option("columns", "seq,id,key,headers,payload")
    frame = records_of(reader.option("startingOffsets", "earliest").load())
    writer = frame.writeStream.format(FORMAT).options(**(options or {}))
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", topic)
    name = name_query(spark, f"{queue or source} to kafka", checkpoint)
    return _start(writer, name, checkpoint, once, interval_s)


def messages_of(records: DataFrame, *, keys: str = "text") -> DataFrame:
    """Return records of Kafka's source as rows for Penstock's sink."""
    origin = f.array(
        _header("kafka.topic", f.col("topic")),
        _header("kafka.partition", f.col("partition").cast("string")),
        _header("kafka.offset", f.col("offset").cast("string")),
    )
    tombstone = f.array(_header("kafka.tombstone", f.lit("true")))
    own = f.when(f.col("value").isNull(), f.concat(origin, tombstone)).otherwise(origin)
    if "headers" in records.columns:
        given = f.coalesce("headers", f.array().cast("array<struct<key:string,value:binary>>"))
        own = f.concat(given, own)
    columns = [
        f.coalesce("value", f.lit(b"")).alias("payload"),
        own.cast("array<struct<key:string,value:binary>>").alias("headers"),
    ]
    if keys != "none":
        columns.append((f.base64("key") if keys == "base64" else f.col("key")).alias("key"))
    return records.select(*columns)


def records_of(messages: DataFrame) -> DataFrame:
    """Return rows of Penstock's source as records for Kafka's sink."""
    given = f.transform(
        f.map_entries(f.coalesce("headers", f.create_map().cast("map<string,string>"))),
        lambda entry: _header(entry["key"], entry["value"]),
    )
    own = f.array(
        _header("penstock.id", f.col("id")),
        _header("penstock.seq", f.col("seq").cast("string")),
    )
    return messages.select(
        "key", f.col("payload").alias("value"), f.concat(given, own).alias("headers")
    )


def _header(name: str | Column, value: Column) -> Column:
    key = f.lit(name) if isinstance(name, str) else name
    return f.struct(key.alias("key"), f.encode(value, "UTF-8").alias("value"))


def _start(
    writer: DataStreamWriter, name: str, checkpoint: str, once: bool, interval_s: float
) -> StreamingQuery:
    writer = writer.queryName(name).option("checkpointLocation", absolute_path(checkpoint))
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{interval_s} seconds")
    try:
        return writer.start()
    except PySparkException as error:
        raise _explained(error) from None


def kafka_package() -> str:
    """Return the Maven coordinates of the Kafka connector of this Spark."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


def _explained(error: PySparkException) -> Exception:
    """Return the error, or InvalidInput if it means that there is no Kafka connector."""
    if not re.search(r"(?i)failed to find (the )?data source:? \W?kafka", str(error)):
        return error
    return InvalidInput(
        f"Spark has no Kafka connector. Add the package {kafka_package()}: with --packages, with "
        f"the setting spark.jars.packages, or its jars with spark.jars."
    )
