"""Restore: a range of an archive as a table, or back in a queue; archive and live log as one."""

import json
from collections.abc import Iterable
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.queue.attributes import MAX_ATTEMPTS
from penstock.spark.archive_files import ArchivedFile, ArchiveError
from penstock.spark.jobs.archive import ARCHIVED_COLUMNS
from penstock.spark.jobs.inputs import ArchivedRange, check_restore, check_target
from penstock.spark.options import WriteOptions
from penstock.spark.places import place_options
from penstock.spark.tables import COLUMNS
from penstock.spark.targets import target_of
from penstock.spark.writers import applications_of

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
    """Return messages of an archived queue: those of a range of seqs or times, or all.

    Ends are not included. Only files that a manifest names are read.
    """
    wanted = check_restore(
        archive,
        queue=queue,
        first_seq=first_seq,
        end_seq=end_seq,
        first_id=first_id,
        since=since,
        until=until,
    )
    return _rows(spark, wanted)


def _rows(spark: SparkSession, wanted: ArchivedRange) -> DataFrame:
    files = [file for file in wanted.manifest.files if _overlaps(file, wanted)]
    if not files:
        names = ", ".join(_ddl(name) for name in ARCHIVED_COLUMNS)
        return spark.createDataFrame([], names)
    missing = [file.path for file in files if not (wanted.root / file.path).exists()]
    if missing:
        raise ArchiveError(f"{wanted.root / missing[0]} is missing, though the manifest names it")
    frame = spark.read.parquet(*[str(wanted.root / file.path) for file in files])
    frame = _between(frame.select(*ARCHIVED_COLUMNS), wanted.first_seq, wanted.end_seq)
    if wanted.since is not None:
        frame = frame.where(f.col("timestamp") >= f.lit(wanted.since))
    if wanted.until is not None:
        frame = frame.where(f.col("timestamp") < f.lit(wanted.until))
    return frame


def _between(frame: DataFrame, first_seq: int, end_seq: int) -> DataFrame:
    return frame.where(f.col("seq") >= first_seq).where(f.col("seq") < end_seq)


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
    """Put archived messages into a queue, in their order. Return how many were written.

    They are new messages there: with payload, headers, key, priority and times as they were, and
    with ids of their own. What a queue was given once from an archived queue it is not given
    again: of a range that overlaps an earlier one, the rest is written.
    """
    wanted = check_restore(
        archive,
        queue=queue,
        first_seq=first_seq,
        end_seq=end_seq,
        first_id=first_id,
        since=since,
        until=until,
    )
    check_target(target, target_queue)
    options = place_options(target, target_queue)
    frame = _rows(spark, wanted)
    low, high = frame.agg(f.min("seq"), f.max("seq")).collect()[0]
    if low is None:
        return 0
    # Times rise with seqs, so that a range of times is a range of seqs as well.
    place, source = (
        target_of(WriteOptions.parse(options)),
        f"restore {wanted.manifest.identity:08x}",
    )
    names = applications_of(place.holder, place.settings, source)
    written = 0
    for first, end in _left((low, high + 1), [_range_of(name) for name in names]):
        piece = _between(frame, first, end)
        rows = piece.count()
        if rows:
            writer = _messages(piece).write.format("penstock").mode("append").options(**options)
            name = f"{source} {first}-{end - 1}"
            writer.option("txnAppId", name).option("txnVersion", "1").save()
        written += rows
    return written


def _messages(frame: DataFrame) -> DataFrame:
    return (
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


def _range_of(application: str) -> tuple[int, int]:
    """Return the seqs [first, end) that the name of a restore says."""
    first, _, last = application.split(" ")[2].partition("-")
    return int(first), int(last) + 1


def _left(wanted: tuple[int, int], done: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what is left of a range without others, in order.

    >>> _left((1, 100), [(10, 20), (15, 30), (90, 200)])
    [(1, 10), (30, 90)]
    """
    left, (at, end) = [], wanted
    for first, upto in sorted(done):
        if at < min(first, end):
            left.append((at, min(first, end)))
        at = max(at, upto)
    return [*left, (at, end)] if at < end else left


def live_and_archived(
    spark: SparkSession,
    path: str,
    archive: str,
    *,
    queue: str | None = None,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Return a queue's whole history as one table: the archive up to its end, then the live log.

    DataLoss, when it is read, if something of the live log was removed before it was archived;
    without `fail_on_data_loss` that is passed over.
    """
    wanted = check_restore(archive, queue=queue)
    reader = spark.read.format("penstock").options(**place_options(path, queue))
    reader = reader.option("columns", ",".join(_COMMON))
    begin = json.dumps({wanted.manifest.queue: wanted.manifest.next_seq})
    reader = reader.option("failOnDataLoss", str(fail_on_data_loss))
    live = reader.option("startingOffsets", begin).load()
    return _rows(spark, wanted).select(*_COMMON).unionByName(live)


def _overlaps(file: ArchivedFile, wanted: ArchivedRange) -> bool:
    if file.first_seq >= wanted.end_seq or file.last_seq < wanted.first_seq:
        return False
    if wanted.since is not None and file.last_ns < wanted.since.timestamp() * 1e9:
        return False
    return wanted.until is None or file.first_ns < wanted.until.timestamp() * 1e9


def _ddl(name: str) -> str:
    return f"{name} {COLUMNS['messages'][name].simpleString()}"
