"""Restore: a range of an archive as a DataFrame or into a queue; archive and live log as one."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TypedDict, Unpack

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock import codec
from penstock.archive import (
    Archive,
    ArchivedFile,
    ArchiveError,
    ArchiveManifest,
    ArchiveStore,
    open_archive,
)
from penstock.archive.object_stores import ObjectStore
from penstock.archive.places import place_of
from penstock.archive.stores import LocalStore
from penstock.arrow.locations import location_options
from penstock.arrow.selection import NO_ARCHIVE, nanoseconds
from penstock.errors import InvalidInput
from penstock.queue.attributes import MAX_ATTEMPTS
from penstock.spark.archive_source import nullable, read_archive
from penstock.spark.archive_stores import archive_of
from penstock.spark.hadoop_store import HadoopStore
from penstock.spark.jobs.archive import ARCHIVED_COLUMNS, archive_schema
from penstock.spark.options import WriteOptions
from penstock.spark.writers import applications_of, check_target, open_target

# The attribute is a little-endian number, converted by way of its hexadecimal digits.
_HEX = f"hex(attributes[{MAX_ATTEMPTS}])"
_MAX_ATTEMPTS = (
    f"cast(conv(concat(substr({_HEX}, 7, 2), substr({_HEX}, 5, 2), substr({_HEX}, 3, 2), "
    f"substr({_HEX}, 1, 2)), 16, 10) as int)"
)
# Spark's setting: from this number of paths on, tasks look at them.
_LISTED_BY_TASKS = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_NEVER = (1 << 31) - 1
_LIVE_COLUMNS = tuple(name for name in ARCHIVED_COLUMNS if name != "attributes")


class RangeOptions(TypedDict, total=False):
    """A range of an archived queue: by seq, id or time. Ends are exclusive."""

    queue: str | None
    first_seq: int | None
    end_seq: int | None
    first_id: str | None
    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """The seqs [first_seq, end_seq) and times [since, until) of an archived queue."""

    archive: Archive
    manifest: ArchiveManifest
    first_seq: int
    end_seq: int
    since: datetime | None
    until: datetime | None

    def files(self) -> list[ArchivedFile]:
        """Return the files that may have messages of the range."""
        return self.manifest.files_between(
            self.first_seq,
            self.end_seq,
            since_ns=None if self.since is None else nanoseconds(self.since),
            until_ns=None if self.until is None else nanoseconds(self.until),
        )

    @property
    def condition(self) -> Column | None:
        """Return the rows of the files that are wanted; None if all of them are."""
        seq, timestamp = f.col("seq"), f.col("timestamp")
        parts: list[Column] = []
        if self.first_seq > self.manifest.first_seq:
            parts.append(seq >= self.first_seq)
        if self.end_seq < self.manifest.next_seq:
            parts.append(seq < self.end_seq)
        if self.since is not None:
            parts.append(timestamp >= f.lit(self.since))
        if self.until is not None:
            parts.append(timestamp < f.lit(self.until))
        return reduce(Column.__and__, parts) if parts else None


def check_restore(
    archive: str,
    target: str | None = None,
    target_queue: str | None = None,
    **options: Unpack[RangeOptions],
) -> None:
    """Check a range, and the target if one is given, without Spark.

    What is on Hadoop's file systems is checked when Spark runs.
    """
    if place_of(archive).kind != "hadoop":
        _range(open_archive(archive), options)
    if target is not None:
        check_target(target, target_queue)


def _range(archive: Archive, options: RangeOptions) -> ArchivedRange:
    """Return the range that is meant, within what the archive has."""
    manifest = archive.one_manifest(options.get("queue"))
    first_seq, end_seq = options.get("first_seq"), options.get("end_seq")
    since, until = options.get("since"), options.get("until")
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.tzinfo is None:
            raise InvalidInput(f"{name} is {moment}, which has no time zone: add one")
    if since is not None and until is not None and since > until:
        raise InvalidInput(f"since is {since}, which is after until, {until}")
    if (first_id := options.get("first_id")) is not None:
        if first_seq is not None:
            raise InvalidInput("give first_seq or first_id, not both")
        _, identity, first_seq = codec.parse_id(first_id)
        if identity != manifest.identity:
            raise InvalidInput(f"{first_id} is the id of a message of another queue")
    if first_seq is not None and end_seq is not None and first_seq > end_seq:
        raise InvalidInput(f"first_seq is {first_seq}, which is after end_seq, {end_seq}")
    low = max(manifest.first_seq, first_seq or 0)
    high = manifest.next_seq if end_seq is None else min(end_seq, manifest.next_seq)
    return ArchivedRange(archive, manifest, low, max(low, high), since, until)


def archived(spark: SparkSession, archive: str, **options: Unpack[RangeOptions]) -> DataFrame:
    """Return the messages of a range of an archived queue. Only files of the manifest are read."""
    return _rows(spark, _range(archive_of(spark, archive), options))


def _rows(spark: SparkSession, wanted: ArchivedRange) -> DataFrame:
    files = wanted.files()
    # Without a schema, Spark runs a job that reads the footers of some files.
    schema = nullable(archive_schema())
    if not files:
        return spark.createDataFrame([], schema)
    store = wanted.archive.store
    if isinstance(store, ObjectStore):
        seqs = wanted.first_seq, wanted.end_seq
        frame = read_archive(spark, store, wanted.manifest.queue, seqs, schema)
    else:
        urls = _urls(store, files)
        with _listed_by_the_driver(spark):
            frame = spark.read.schema(schema).parquet(*urls)
    frame = frame.select(*ARCHIVED_COLUMNS)
    condition = wanted.condition
    # Spark analyses a query with each call: one filter, and none for the whole of a queue.
    return frame if condition is None else frame.where(condition)


@contextmanager
def _listed_by_the_driver(spark: SparkSession) -> Iterator[None]:
    """Have Spark look at the named files itself. It runs a task for each if there are many.

    A task takes 8 ms of processor time, and the file system answers in 0.1 ms.
    """
    before = spark.conf.get(_LISTED_BY_TASKS)
    spark.conf.set(_LISTED_BY_TASKS, str(_NEVER))
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(_LISTED_BY_TASKS, before)


def _urls(store: ArchiveStore, files: list[ArchivedFile]) -> list[str]:
    """Return files as Spark's own reader finds them."""
    if isinstance(store, HadoopStore):
        return [store.url(file.path) for file in files]
    if not isinstance(store, LocalStore):
        raise TypeError(store)
    paths = [store.root / file.path for file in files]
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise ArchiveError(f"{missing} is missing, though the manifest names it")
    # Spark's reader does not know the checksums of the manifest. Hashing releases the interpreter
    # lock, so that all cores do it.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for path, file, found in zip(paths, files, threads.map(_sha256, paths), strict=True):
            if found != file.sha256:
                raise ArchiveError(
                    f"{path} is damaged: its SHA-256 is not that of the manifest. Restore the file "
                    f"from a backup, or read without the range of its messages, {file.first_seq} "
                    f"to {file.last_seq}"
                )
    return [str(path) for path in paths]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _between(frame: DataFrame, first_seq: int, end_seq: int) -> DataFrame:
    return frame.where(f.col("seq") >= first_seq).where(f.col("seq") < end_seq)


def restore(
    spark: SparkSession,
    archive: str,
    target: str,
    *,
    target_queue: str | None = None,
    **options: Unpack[RangeOptions],
) -> int:
    """Put archived messages into a queue, in order. Return the number of messages written.

    They become new messages with the same payload, headers, key, priority and times, and with new
    ids. A queue gets each message of an archived queue once: of a range that overlaps an earlier
    one, only the rest is written.
    """
    check_target(target, target_queue)
    wanted = _range(archive_of(spark, archive), options)
    frame = _rows(spark, wanted)
    low, high = frame.agg(f.min("seq"), f.max("seq")).collect()[0]
    if low is None:
        return 0
    # Times rise with seqs, so a range of times is a range of seqs as well.
    written_to = location_options(target, target_queue)
    source = f"restore {wanted.manifest.identity:08x}"
    names = applications_of(open_target(WriteOptions.parse(written_to)), source)
    written = 0
    for first, end in _missing((low, high + 1), [_range_of(name) for name in names]):
        piece = _between(frame, first, end)
        rows = piece.count()
        if rows:
            writer = _messages(piece).write.format("penstock").mode("append").options(**written_to)
            name = f"{source} {first}-{end - 1}"
            writer.option("txnAppId", name).option("txnVersion", "1").save()
        written += rows
    return written


def _messages(frame: DataFrame) -> DataFrame:
    return (
        # The sink keeps the order of partitions and of rows in a partition.
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
    """Return the seqs [first, end) in the transaction name of a restore."""
    first, _, last = application.split(" ")[2].partition("-")
    return int(first), int(last) + 1


def _missing(wanted: tuple[int, int], done: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of a range that other ranges do not cover, in order.

    >>> _missing((1, 100), [(10, 20), (15, 30), (90, 200)])
    [(1, 10), (30, 90)]
    """
    missing, (at, end) = [], wanted
    for first, upto in sorted(done):
        if at < min(first, end):
            missing.append((at, min(first, end)))
        at = max(at, upto)
    return [*missing, (at, end)] if at < end else missing


def live_and_archived(
    spark: SparkSession,
    path: str,
    archive: str,
    *,
    queue: str | None = None,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Return the whole history of a queue: the archive up to its end, then the live log.

    Reading raises DataLoss if messages were removed before they were archived. Without
    `fail_on_data_loss` they are skipped.
    """
    wanted = _range(archive_of(spark, archive), {"queue": queue})
    options = {
        **location_options(path, queue),
        "columns": ",".join(_LIVE_COLUMNS),
        "archive": NO_ARCHIVE,
        "failOnDataLoss": str(fail_on_data_loss),
        "startingOffsets": json.dumps({wanted.manifest.queue: wanted.manifest.next_seq}),
    }
    live = spark.read.format("penstock").options(**options).load()
    return _rows(spark, wanted).select(*_LIVE_COLUMNS).unionByName(live)
