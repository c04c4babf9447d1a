"""Restore: a range of an archive as a table, or back in a queue; archive and live log as one."""

import json
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock import codec
from penstock.errors import InvalidInput
from penstock.queue.tags import MAX_ATTEMPTS
from penstock.spark.archive_files import ArchivedFile, ArchiveError, ArchiveManifest, manifests
from penstock.spark.jobs.archive import ARCHIVED_COLUMNS
from penstock.spark.places import place_options
from penstock.spark.tables import COLUMNS

# A little-endian number in the attributes, by way of its hexadecimal digits.
_HEX = f"hex(attributes[{MAX_ATTEMPTS}])"
_MAX_ATTEMPTS = (
    f"cast(conv(concat(substr({_HEX}, 7, 2), substr({_HEX}, 5, 2), substr({_HEX}, 3, 2), "
    f"substr({_HEX}, 1, 2)), 16, 10) as int)"
)
_COMMON = tuple(name for name in ARCHIVED_COLUMNS if name != "attributes")


def archived(
    spark: SparkSession,
    archive: str,
    *,
    queue: str | None = None,
    first_seq: int | None = None,
    end_seq: int | None = None,
    first_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """Messages of an archived queue: those of a range of seqs or times, or all.

    Ends are not included. Only files that a manifest names are read.
    """
    manifest = _manifest(archive, queue)
    if first_id is not None:
        if first_seq is not None:
            raise InvalidInput("give first_seq or first_id, not both")
        _, identity, first_seq = codec.parse_id(first_id)
        if identity != manifest.identity:
            raise InvalidInput(f"{first_id} is the id of a message of another queue")
    low = manifest.first_seq if first_seq is None else first_seq
    high = manifest.next_seq if end_seq is None else end_seq
    files = [
        file
        for file in manifest.files
        if file.first_seq < high and file.last_seq >= low and _overlaps(file, since, until)
    ]
    if not files:
        names = ", ".join(_ddl(name) for name in ARCHIVED_COLUMNS)
        return spark.createDataFrame([], names)
    root = Path(archive).absolute()
    missing = [file.path for file in files if not (root / file.path).exists()]
    if missing:
        raise ArchiveError(f"{root / missing[0]} is missing, though the manifest names it")
    frame = spark.read.parquet(*[str(root / file.path) for file in files])
    frame = frame.select(*ARCHIVED_COLUMNS).where(f.col("seq") >= low).where(f.col("seq") < high)
    if since is not None:
        frame = frame.where(f.col("timestamp") >= f.lit(since))
    if until is not None:
        frame = frame.where(f.col("timestamp") < f.lit(until))
    return frame


def restore(
    spark: SparkSession,
    archive: str,
    target: str,
    *,
    queue: str | None = None,
    target_queue: str | None = None,
    first_seq: int | None = None,
    end_seq: int | None = None,
    first_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> int:
    """Put archived messages into a queue, in their order; how many.

    They are new messages there: with payload, headers, key, priority and times as they were, and
    with ids of their own. What was restored once is not restored again (by the range and place).
    """
    frame = archived(
        spark,
        archive,
        queue=queue,
        first_seq=first_seq,
        end_seq=end_seq,
        first_id=first_id,
        since=since,
        until=until,
    )
    messages = (
        # In ranges of seqs, each in order: the sink keeps the order of partitions and of rows.
        frame.repartitionByRange("seq")
        .sortWithinPartitions("seq")
        .select(
            "payload",
            f.col("priority").cast("int").alias("priority"),
            "key",
            "headers",
            f.expr("timestamp_micros(div(deliver_at_ns, 1000))").alias("deliver_at"),
            f.expr("timestamp_micros(div(expires_at_ns, 1000))").alias("expires_at"),
            "content_type",
            f.expr(_MAX_ATTEMPTS).alias("max_attempts"),
        )
    )
    bounds = frame.agg(f.count("*").alias("n"), f.min("seq"), f.max("seq")).collect()[0]
    manifest = _manifest(archive, queue)
    name = f"restore {manifest.identity:08x} {bounds[1]}-{bounds[2]} {bounds.n}"
    writer = messages.write.format("penstock").mode("append")
    writer = writer.options(**place_options(target, target_queue))
    writer.option("txnAppId", name).option("txnVersion", "1").save()
    return int(bounds.n)


def live_and_archived(
    spark: SparkSession, path: str, archive: str, *, queue: str | None = None
) -> DataFrame:
    """A queue's whole history as one table: the archive up to where it ends, then the live log.

    DataLoss, when it is read, if the live log begins only behind that.
    """
    manifest = _manifest(archive, queue)
    reader = spark.read.format("penstock").options(**place_options(path, queue))
    reader = reader.option("columns", ",".join(_COMMON))
    begin = json.dumps({manifest.queue: manifest.next_seq})
    live = reader.option("startingOffsets", begin).load()
    return archived(spark, archive, queue=queue).select(*_COMMON).unionByName(live)


def _manifest(archive: str, queue: str | None) -> ArchiveManifest:
    found = manifests(Path(archive))
    if queue is not None:
        found = [manifest for manifest in found if manifest.queue == queue]
    if len(found) != 1:
        keys = ", ".join(manifest.queue for manifest in manifests(Path(archive)))
        raise InvalidInput(f"name one queue of the archive: it has {keys or 'none'}")
    return found[0]


def _overlaps(file: ArchivedFile, since: datetime | None, until: datetime | None) -> bool:
    if since is not None and file.last_ns < since.timestamp() * 1e9:
        return False
    return until is None or file.first_ns < until.timestamp() * 1e9


def _ddl(name: str) -> str:
    return f"{name} {COLUMNS['messages'][name].simpleString()}"
