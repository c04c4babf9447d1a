"""Open a Spark session with the settings that Penstock needs, and read queues as DataFrames."""

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from os import PathLike

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.archive.places import store_variables
from penstock.arrow.locations import location_options
from penstock.arrow.selection import (
    NO_ARCHIVE,
    Table,
    check_ranges,
    location_in,
    moment_in,
    names_in,
    seq_in,
    switch_in,
)
from penstock.model import NS
from penstock.spark.payloads.frames import payload_schema_text
from penstock.spark.source import FilteringDataSource
from penstock.spark.versions import Filter

log = logging.getLogger("penstock.spark")

SETTINGS = {
    # Rows pass between Python and the JVM in 15 to 30 % less time than over TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # Times are stored in UTC, and the command line shows them in UTC.
    "spark.sql.session.timeZone": "UTC",
    # Limits of an Arrow batch that Python receives. For more than a few MB Python gets fresh memory
    # each time, and clearing it costs a write more than all other work in Python.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
    # Spark merges small shuffle partitions, but not those of cached tables. A report on one message
    # ran 2,617 tasks; now 28.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
# Spark versions that need no probe, which takes a second. 4.0 pushes no filters.
KNOWN_BROKEN = ("4.0.", "4.2.", "4.3.")

_verdicts: dict[str, bool] = {}  # by Spark version


def session(
    master: str | None = None,
    *,
    app_name: str = "penstock",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the current session, or a new one, ready to read and write queues.

    `settings` are Spark settings; they override those of Penstock. Spark runs on the cores of this
    machine unless `master` or Spark's configuration names a master. Filter push-down is turned on
    only if `filters_are_scoped`.
    """
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    # Otherwise workers run the first `python3` in PATH, which may not have Penstock.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()  # which registers the data source: see `pyspark_penstock`
    make_active(spark)
    if filters_are_scoped(spark):
        # Workers do not see the session's settings; the registered class tells them.
        spark.dataSource.register(FilteringDataSource)
        spark.conf.set(PUSHDOWN, "true")
        _log_once("filters on seq and time are pushed to the reader")
    else:
        _log_once(
            f"Spark {spark.version} does not push filters correctly, so the reader takes none: "
            f"narrow a read with penstock.spark.read(…, since=…, first_seq=…)"
        )
    return spark


def make_active(spark: SparkSession) -> None:
    """Make a session the active one of this thread.

    Spark looks there for the sink of a stream. A thread other than the one that opened the session
    has none, and Spark would not find a sink in Python.
    """
    spark.createDataFrame([], "n int")  # the only public call that does it; it runs no job


@cache
def _log_once(sentence: str) -> None:
    log.info(sentence)


def read(
    spark: SparkSession,
    location: str | PathLike[str],
    *,
    queue: str | Sequence[str] | None = None,
    table: Table = "messages",
    columns: str | Sequence[str] | None = None,
    first_seq: int | None = None,
    end_seq: int | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    group: str | None = None,
    key: str | None = None,
    fail_on_data_loss: bool = True,
    payload_schema: str | StructType | None = None,
    payload_mode: str | None = None,
    payload_schemas: str | PathLike[str] | None = None,
    archive: str | PathLike[str] | None = None,
) -> DataFrame:
    """Return a range of a queue, or all of it, as a DataFrame.

    Only the segments of the range are opened, and only the parts that the index names. A filter in
    the query cannot do that. Ends are exclusive.

    Args:
        spark: Any session that finds the data source `penstock`.
        location: Directory of a queue, data directory of a broker, or URL of a broker or a queue.
        queue: One queue of the location, or several.
        table: `messages`, `events` or `state`.
        columns: Names of columns, or `*`. Fewer columns are faster.
        first_seq: Start at this seq in each queue. A message from here on that was removed is data
            loss. For the table `events` this is the number of the event.
        end_seq: Stop before this seq, or at the end of the queue.
        since: Start at the first message of this time or later: a datetime with a time zone, or
            text in ISO 8601 (UTC by default).
        until: Stop before the first message of this time or later.
        group: Consumer group of the table `state`. The default is the main group.
        key: API key for a broker. The default is PENSTOCK_KEY of the environment.
        fail_on_data_loss: False to skip what was removed.
        payload_schema: Decode payloads into a column `data` of this schema: a StructType, its JSON,
            or DDL such as "id BIGINT, name STRING".
        payload_mode: PERMISSIVE (the default), DROPMALFORMED or FAILFAST: what to do about bad
            payloads.
        payload_schemas: Directory of Avro and Protobuf schemas, by id.
        archive: Location of the archive from which messages are read that the live log does not
            have any more. The default is the one that the archive job noted; "none": no archive.

    >>> from penstock.spark import read, session
    >>> hour = read(session(), "./orders", since="2026-01-31T12:00Z", until="2026-01-31T13:00Z",
    ...             columns=["seq", "payload"])  # doctest: +SKIP
    """
    check_ranges(table, first_seq=first_seq, end_seq=end_seq, since=since, until=until, group=group)
    options = {
        **location_options(location_in("location", location), None),
        "queue": _joined("queue", queue),
        "table": table,
        "columns": _joined("columns", columns),
        "startingOffsets": _text(seq_in("first_seq", first_seq)),
        "endingOffsets": _text(seq_in("end_seq", end_seq)),
        "startingTimestamp": time_option(moment_in("since", since)),
        "endingTimestamp": time_option(moment_in("until", until)),
        "group": group,
        "key": key,
        "failOnDataLoss": str(switch_in("fail_on_data_loss", fail_on_data_loss)),
        "payloadSchema": None if payload_schema is None else payload_schema_text(payload_schema),
        "payloadMode": payload_mode,
        "payloadSchemas": None
        if payload_schemas is None
        else location_in("payload_schemas", payload_schemas),
        "archive": None if archive is None else location_in("archive", archive),
    }
    given = {name: value for name, value in options.items() if value is not None}
    given |= archive_secrets(given.get("archive"))
    return spark.read.format("penstock").options(**given).load()


def archive_secrets(archive: str | None) -> dict[str, str]:
    """Return the option with which a read finds credentials of an archive's store.

    It is planned in a process that has the environment of when the session began.
    """
    found = {} if archive == NO_ARCHIVE else store_variables()
    return {"archiveSecrets": json.dumps(found)} if found else {}


def _joined(name: str, value: str | Sequence[str] | None) -> str | None:
    names = names_in(name, value)
    return None if names is None else ",".join(names)


def _text(seq: int | None) -> str | None:
    return None if seq is None else str(seq)


def time_option(time_ns: int | None) -> str | None:
    """Return a time as an option of the data source, exactly.

    >>> time_option(1_700_000_000_000_000_001)
    '2023-11-14T22:13:20.000000001Z'
    """
    if time_ns is None:
        return None
    second, fraction_ns = divmod(time_ns, NS)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{fraction_ns:09d}Z"


# -- filter push-down ------------------------------------------------------------------------------


def filters_are_scoped(spark: SparkSession) -> bool:
    """Return whether this Spark keeps a pushed filter to the scan it was pushed for.

    Up to 4.3, `spark.sql.python.filterPushdown.enabled` gives wrong results with any Python data
    source. Spark stores the plan of a filtered scan on the relation, and the next scan of the
    relation without a filter uses it. `df.where("seq > 990").count()` is 10, and so is `df.count()`
    after it. Unknown versions are probed once.
    """
    version = spark.version
    if version.startswith(KNOWN_BROKEN):
        return False
    if version not in _verdicts:
        _verdicts[version] = scopes_filters(spark)
    return _verdicts[version]


def scopes_filters(spark: SparkSession) -> bool:
    """Return whether scans with and without a filter give the right rows, together and in turn."""
    before = spark.conf.get(PUSHDOWN, "false") or "false"
    spark.dataSource.register(_Probe)
    spark.conf.set(PUSHDOWN, "true")
    try:
        table = spark.read.format(_Probe.name()).load()
        together = table.where("n > 1").union(table).count()
        return (together, table.where("n > 1").count(), table.count()) == (3, 1, 2)
    finally:
        spark.conf.set(PUSHDOWN, before)


class _Probe(DataSource):
    """A table of two rows, 1 and 2, whose reader leaves out 1 for any filter."""

    @classmethod
    def name(cls) -> str:
        return "penstock-probe"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ProbeReader()


class _ProbeReader(DataSourceReader):
    first = 1

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self.first = 2
        return filters

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.first)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((n,) for n in range(partition.value, 3))
