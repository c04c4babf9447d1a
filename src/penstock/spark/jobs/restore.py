"""Restore: a range of an archive as a DataFrame or into a queue; archive and live log as one."""

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Self

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from penstock import codec
from penstock.archive import Archive, ArchivedFile, ArchiveManifest, open_archive
from penstock.archive.object_stores import ObjectStore
from penstock.archive.parquet import damaged, read_range
from penstock.archive.places import Place, place_of
from penstock.archive.stores import LocalStore
from penstock.arrow.locations import location_options, queues_of_job
from penstock.arrow.logs import watcher_of
from penstock.arrow.loss import DataLoss
from penstock.arrow.selection import NO_ARCHIVE, moment_in, names_in, seq_in
from penstock.checking import check_choice, check_fields
from penstock.errors import InvalidInput
from penstock.queue.attributes import MAX_ATTEMPTS, TENANT
from penstock.spark.archive_source import FileRange, nullable, read_archive
from penstock.spark.archive_stores import archive_of
from penstock.spark.hadoop_store import HadoopStore
from penstock.spark.jobs.archive import ARCHIVED_COLUMNS, archive_schema, check_identity
from penstock.spark.options import WriteOptions
from penstock.spark.workers import own_errors
from penstock.spark.writers import applications_of, check_target, open_target

log = logging.getLogger("penstock.spark")

# The attribute is a little-endian number, converted by way of its hexadecimal digits.
_HEX = f"hex(attributes[{MAX_ATTEMPTS}])"
_MAX_ATTEMPTS = (
    f"cast(conv(concat(substr({_HEX}, 7, 2), substr({_HEX}, 5, 2), substr({_HEX}, 3, 2), "
    f"substr({_HEX}, 1, 2)), 16, 10) as int)"
)
_LIVE_COLUMNS = tuple(name for name in ARCHIVED_COLUMNS if name != "attributes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """A range of an archived queue: by seq, id or time. Ends are exclusive.

    If a seq or an id names the first message, every message from there on is required: if the
    archive does not have them any more, DataLoss is raised. Gaps of the archive are loss in any
    range. With `fail_on_data_loss=False` both are skipped.
    """

    queue: str | None = None
    first_seq: int | None = None
    end_seq: int | None = None
    first_id: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    fail_on_data_loss: bool = True

    def __post_init__(self) -> None:
        check_fields(self, {})

    @classmethod
    def checked(
        cls,
        *,
        queue: str | None,
        first_seq: int | None,
        end_seq: int | None,
        first_id: str | None,
        since: datetime | str | None,
        until: datetime | str | None,
        fail_on_data_loss: bool,
    ) -> Self:
        """Return the range that these arguments of a job mean. Raise InvalidInput for bad ones."""
        if first_id is not None:
            if first_seq is not None:
                raise InvalidInput("give first_seq or first_id, not both")
            codec.parse_id(first_id)
        made = cls(
            queue=queue,
            first_seq=seq_in("first_seq", first_seq),
            end_seq=seq_in("end_seq", end_seq),
            first_id=first_id,
            since_ns=moment_in("since", since),
            until_ns=moment_in("until", until),
            fail_on_data_loss=fail_on_data_loss,
        )
        from_ns, to_ns = made.since_ns, made.until_ns
        if from_ns is not None and to_ns is not None and from_ns > to_ns:
            raise InvalidInput(f"since is {since}, which is after until, {until}")
        _check_seqs(made.first_seq, made.end_seq)
        return made


def _check_seqs(first_seq: int | None, end_seq: int | None) -> None:
    if first_seq is not None and end_seq is not None and first_seq > end_seq:
        raise InvalidInput(f"first_seq is {first_seq}, which is after end_seq, {end_seq}")


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """The seqs [first_seq, end_seq) and times [since_ns, until_ns) of an archived queue."""

    archive: Archive
    manifest: ArchiveManifest
    first_seq: int
    end_seq: int
    since_ns: int | None
    until_ns: int | None

    def files(self) -> list[ArchivedFile]:
        """Return the files that may have messages of the range."""
        since_ns, until_ns = self.times_ns
        return self.manifest.files_between(
            self.first_seq, self.end_seq, since_ns=since_ns, until_ns=until_ns
        )

    @property
    def times_ns(self) -> tuple[int | None, int | None]:
        return self.since_ns, self.until_ns

    @property
    def condition(self) -> Column:
        """Return which rows of the files are wanted."""
        seq, time_ns = f.col("seq"), f.col("timestamp_ns")
        parts = [seq >= self.first_seq, seq < self.end_seq]
        if self.since_ns is not None:
            parts.append(time_ns >= self.since_ns)
        if self.until_ns is not None:
            parts.append(time_ns < self.until_ns)
        return reduce(Column.__and__, parts)


def check_restore(
    archive: str,
    target: str | None = None,
    target_queue: str | None = None,
    *,
    queue: str | None = None,
    first_seq: int | None = None,
    end_seq: int | None = None,
    first_id: str | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    time_header: str | None = None,
    fail_on_data_loss: bool = True,
) -> None:
    """Check the arguments of `restore` without Spark. The target may be left out.

    What is on Hadoop's file systems is checked when Spark runs.
    """
    _check_time_header(time_header)
    options = RangeOptions.checked(
        queue=queue,
        first_seq=first_seq,
        end_seq=end_seq,
        first_id=first_id,
        since=since,
        until=until,
        fail_on_data_loss=fail_on_data_loss,
    )
    if place_of(archive).kind != "hadoop":
        _range(open_archive(archive), options)
    if target is not None:
        check_target(target, target_queue)


def _check_time_header(name: object) -> None:
    if name is None:
        return
    if not isinstance(name, str) or not name.strip() or any(bad in name for bad in "\r\n\0"):
        raise InvalidInput(
            f"time_header is {name!r}; it must be the name of a header, without line breaks and "
            f"NUL, or left out"
        )


def _range(archive: Archive, options: RangeOptions) -> ArchivedRange:
    """Return the range that is meant, within what the archive has."""
    manifest = archive.one_manifest(options.queue)
    first_seq, end_seq = options.first_seq, options.end_seq
    if options.first_id is not None:
        _, identity, first_seq = codec.parse_id(options.first_id)
        if identity != manifest.identity:
            raise InvalidInput(f"{options.first_id} is the id of a message of another queue")
        _check_seqs(first_seq, end_seq)
    low = max(manifest.first_seq, first_seq or 0)
    high = manifest.next_seq if end_seq is None else min(end_seq, manifest.next_seq)
    wanted = ArchivedRange(
        archive, manifest, low, max(low, high), options.since_ns, options.until_ns
    )
    _report_loss(wanted, first_seq, end_seq, fail=options.fail_on_data_loss)
    return wanted


def _report_loss(
    wanted: ArchivedRange, first_seq: int | None, end_seq: int | None, *, fail: bool
) -> None:
    """Raise DataLoss for what is requested and not there any more, or log it."""
    manifest = wanted.manifest
    lost = []
    if first_seq is not None:
        end = manifest.first_seq if end_seq is None else min(end_seq, manifest.first_seq)
        lost.append((max(first_seq, 1), end))
    gaps = manifest.gaps_between(wanted.first_seq, wanted.end_seq)
    lost += [gap for gap in gaps if _is_requested(wanted, gap[0])]
    for first, end in lost:
        if first >= end:
            continue
        sentence = (
            f"queue {manifest.queue}: seq {first} to {end - 1} were requested, and the archive "
            f"{wanted.archive.shown} does not have them: they were removed from it by `retain`, or "
            f"from the queue before they were archived"
        )
        if fail:
            raise DataLoss(
                f"{sentence}. Start later, or set fail_on_data_loss=False (--skip-removed) to skip "
                f"them."
            )
        log.warning("%s; skipped (fail_on_data_loss=False)", sentence)


def _is_requested(wanted: ArchivedRange, gap_seq: int) -> bool:
    """Return whether the times of a range include the gap that has a seq.

    The times of messages in a gap are not known. They count as right after the message before it:
    the range includes the gap if it includes that message and goes on after it.
    """
    since_ns, until_ns = wanted.times_ns
    if since_ns is None and until_ns is None:
        return True
    before_ns = _time_before(wanted, gap_seq)
    if before_ns is None:
        return since_ns is None
    is_begun = since_ns is None or since_ns <= before_ns
    return is_begun and (until_ns is None or until_ns > before_ns)


def _time_before(wanted: ArchivedRange, seq: int) -> int | None:
    """Return the time of the last archived message before a seq; None if there is none."""
    files = [file for file in wanted.manifest.files if file.first_seq < seq]
    if not files:
        return None
    last = max(files, key=lambda file: file.first_seq)
    if last.last_seq < seq:
        return last.last_ns
    # The gap is inside a file: compaction took messages out of a segment, or an earlier version
    # merged files over the gap.
    schema = pa.schema([("seq", pa.int64()), ("timestamp_ns", pa.int64())])
    batches = list(read_range(wanted.archive.store, last, schema, (last.first_seq, seq)))
    return int(batches[-1]["timestamp_ns"][-1].as_py())


def archived(
    spark: SparkSession,
    archive: str,
    *,
    queue: str | None = None,
    columns: str | Sequence[str] | None = None,
    first_seq: int | None = None,
    end_seq: int | None = None,
    first_id: str | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Return the messages of a range of an archived queue. Only files of the manifest are read.

    Each task checks the files that it reads against the manifest. A damaged file fails the query.

    Args:
        spark: Any session that finds the data source `penstock`.
        archive: Directory or URL of the archive.
        queue: Queue of the archive. It may be left out if there is only one.
        columns: Names of columns, or `*`. Fewer columns are faster: Spark does not tell a source
            which ones a query needs.
        first_seq: Start at this seq. A message from here on that was removed is data loss.
        end_seq: Stop before this seq.
        first_id: Start at the message with this id, instead of a seq.
        since: Start at the first message of this time or later: a datetime with a time zone, or
            text in ISO 8601 (UTC by default). Of seqs and times together, both must hold.
        until: Stop before the first message of this time or later.
        fail_on_data_loss: False to skip what was removed.
    """
    names = _columns_in(columns)
    options = RangeOptions.checked(
        queue=queue,
        first_seq=first_seq,
        end_seq=end_seq,
        first_id=first_id,
        since=since,
        until=until,
        fail_on_data_loss=fail_on_data_loss,
    )
    return _rows(spark, _range(archive_of(spark, archive), options), names)


def _columns_in(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return checked names of columns of the archive; None and `*` stand for all."""
    is_text = isinstance(columns, str | Sequence) and all(isinstance(one, str) for one in columns)
    if columns is not None and not is_text:
        raise InvalidInput(
            f"columns is {columns!r}; it must be names of columns: a list, or text with commas"
        )
    names = names_in("columns", columns)
    if names is None or names == ("*",):
        return ARCHIVED_COLUMNS
    for name in names:
        check_choice("a column", name, ARCHIVED_COLUMNS)
        if names.count(name) > 1:
            raise InvalidInput(f"columns names {name!r} twice: leave one out")
    return names


def _rows(
    spark: SparkSession, wanted: ArchivedRange, columns: Sequence[str] = ARCHIVED_COLUMNS
) -> DataFrame:
    # Without a schema, Spark runs a job that reads the footers of some files.
    whole = archive_schema()
    schema = nullable(pa.schema([whole.field(name) for name in columns]))
    files = wanted.files()
    if not files:
        return spark.createDataFrame([], schema)
    store = wanted.archive.store
    if isinstance(store, HadoopStore):
        urls = _checked_urls(spark, store, files)
        frame = spark.read.schema(nullable(whole)).parquet(*urls).where(wanted.condition)
        return frame.select(*columns)
    place = store.place if isinstance(store, ObjectStore) else None
    if isinstance(store, LocalStore):
        place = Place("local", str(store.root), store.shown)
    assert place is not None
    seqs = wanted.first_seq, wanted.end_seq
    described = FileRange(place, wanted.manifest.queue, seqs, wanted.times_ns)
    return read_archive(spark, described, schema)


def _checked_urls(
    spark: SparkSession, store: HadoopStore, files: Sequence[ArchivedFile]
) -> list[str]:
    """Return files as Spark's own reader finds them, after tasks have checked them.

    Python in tasks does not reach Hadoop's file systems, so files are read twice: once for their
    checksums, in the JVMs of the executors, and once by Spark's Parquet reader.
    """
    wanted = {store.url(file.path): file for file in files}
    found = spark.read.format("binaryFile").load(list(wanted))
    sums = found.select("path", f.sha2("content", 256)).collect()
    by_name = {str(path).rpartition("/")[2]: digest for path, digest in sums}
    for url, file in wanted.items():
        if by_name.get(url.rpartition("/")[2]) != file.sha256:
            raise damaged(store, file)
    return list(wanted)


def restore(
    spark: SparkSession,
    archive: str,
    target: str,
    *,
    target_queue: str | None = None,
    queue: str | None = None,
    first_seq: int | None = None,
    end_seq: int | None = None,
    first_id: str | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    time_header: str | None = None,
    fail_on_data_loss: bool = True,
) -> int:
    """Put archived messages into a queue, in order. Return the number of messages written.

    They become new messages with the same payload, headers, key, priority, times, maximum attempts
    and tenant, and with new ids. A queue gets each message of an archived queue once: of a range
    that overlaps an earlier one, only the rest is written. The range is given as for `archived`.

    The messages of a queue are in the order of their times, so the time of publication is new.
    `time_header` names a header for the original one, in nanoseconds since 1970.
    """
    _check_time_header(time_header)
    options = RangeOptions.checked(
        queue=queue,
        first_seq=first_seq,
        end_seq=end_seq,
        first_id=first_id,
        since=since,
        until=until,
        fail_on_data_loss=fail_on_data_loss,
    )
    check_target(target, target_queue)
    wanted = _range(archive_of(spark, archive), options)
    # Times rise with seqs, so a range of times is a range of seqs as well.
    wanted = _by_seqs(wanted)
    if wanted.first_seq >= wanted.end_seq:
        return 0
    written_to = location_options(target, target_queue)
    source = f"restore {wanted.manifest.identity:08x}"
    names = applications_of(open_target(WriteOptions.parse(written_to)), source)
    written = 0
    whole = (wanted.first_seq, wanted.end_seq)
    for first, end in _missing(whole, [_range_of(name) for name in names]):
        piece = replace(wanted, first_seq=first, end_seq=end)
        if not piece.files():
            continue
        counted = Observation()
        rows = _messages(_rows(spark, piece), time_header, is_sorted=_is_read_by_us(piece))
        rows = rows.observe(counted, f.count(f.lit(1)).alias("rows"))
        writer = rows.write.format("penstock").mode("append").options(**written_to)
        name = f"{source} {first}-{end - 1}"
        with own_errors():
            writer.option("txnAppId", name).option("txnVersion", "1").save()
        written += counted.get["rows"]
    return written


def _is_read_by_us(wanted: ArchivedRange) -> bool:
    return not isinstance(wanted.archive.store, HadoopStore)


def _by_seqs(wanted: ArchivedRange) -> ArchivedRange:
    """Return a range without times: at most two files are looked at for their seqs."""
    if wanted.times_ns == (None, None):
        return wanted
    files = sorted(wanted.files(), key=lambda file: file.first_seq)
    found: list[int] = []
    schema = pa.schema([("seq", pa.int64()), ("timestamp_ns", pa.int64())])
    for file in files:  # the first that has a message of the range
        if found := _seqs_in(wanted, file, schema):
            break
    if not found:
        return replace(wanted, end_seq=wanted.first_seq, since_ns=None, until_ns=None)
    first = found[0]
    for file in reversed(files):
        if found := _seqs_in(wanted, file, schema):
            break
    return replace(wanted, first_seq=first, end_seq=found[-1] + 1, since_ns=None, until_ns=None)


def _seqs_in(wanted: ArchivedRange, file: ArchivedFile, schema: pa.Schema) -> list[int]:
    seqs = wanted.first_seq, wanted.end_seq
    batches = read_range(wanted.archive.store, file, schema, seqs, wanted.times_ns)
    return [seq for batch in batches for seq in batch["seq"].to_pylist()]


def _messages(frame: DataFrame, time_header: str | None, *, is_sorted: bool) -> DataFrame:
    """Return archived messages for the sink, which keeps the order of partitions and their rows."""
    if not is_sorted:
        frame = frame.repartitionByRange("seq").sortWithinPartitions("seq")
    if time_header is not None:
        name = f.lit(time_header)
        others = f.map_filter("headers", lambda one, _: one != name)
        time = f.create_map(name, f.col("timestamp_ns").cast("string"))
        frame = frame.withColumn("headers", f.coalesce(f.map_concat(others, time), time))
    return frame.select(
        "payload",
        f.col("priority").cast("int").alias("priority"),
        "key",
        "headers",
        "deliver_at_ns",
        "expires_at_ns",
        "content_type",
        f.expr(_MAX_ATTEMPTS).alias("max_attempts"),
        f.expr(f"decode(attributes[{TENANT}], 'UTF-8')").alias("tenant"),
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

    Raise ArchiveError if the archive is of another queue, which had the same name.

    Reading raises DataLoss if messages were removed before they were archived. Without
    `fail_on_data_loss` they are skipped.
    """
    whole = RangeOptions(queue=queue, fail_on_data_loss=fail_on_data_loss)
    queues = queues_of_job(path, queue)
    wanted = _range(archive_of(spark, archive), whole)
    for one in queues:
        if one.key == wanted.manifest.queue:
            check_identity(wanted.archive, wanted.manifest, watcher_of(one, "messages").view())
    options = {
        **location_options(path, queue),
        "columns": ",".join(_LIVE_COLUMNS),
        "archive": NO_ARCHIVE,
        "failOnDataLoss": str(fail_on_data_loss),
        "startingOffsets": json.dumps({wanted.manifest.queue: wanted.manifest.next_seq}),
    }
    live = spark.read.format("penstock").options(**options).load()
    return _rows(spark, wanted, _LIVE_COLUMNS).unionByName(live)
