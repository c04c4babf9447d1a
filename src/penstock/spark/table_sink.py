"""Streams into Delta and Iceberg tables: tasks write Parquet files, the driver commits them once.

Each attempt of a task writes files of its own names, durable before the task ends. The commit of a
micro-batch adds the files of all tasks to the table, and records the query and the batch in the
same step. So a batch that Spark repeats is recognised, and files of failed attempts are in no
version of the table: `vacuum` (Delta) or `remove_orphan_files` (Iceberg) deletes them.

Batch numbers alone do not tell a repetition from another batch of an older checkpoint, one that was
restored from a backup. So the time at which Spark planned the batch is recorded too. It is in the
checkpoint, so a repeated batch has the same one.

The first batch of a query is recorded even without rows. So a later one, of a query that the table
does not know, shows that the checkpoint belongs to another table.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as spark_types
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import DataType, StructType

from penstock.archive import ArchiveError
from penstock.archive.parquet import ROW_GROUP_BYTES, ROW_GROUP_ROWS
from penstock.arrow.tables import TIME
from penstock.errors import InvalidInput
from penstock.spark.sink import QUERY_ID
from penstock.spark.versions import DataSourceStreamArrowWriter
from penstock.spark.workers import tune_worker

NAME = "penstock_table"
TARGET_OPTION = "secret_target"  # Spark hides the values of options with such a name
PLANNED = "_penstock_planned_us"  # column that every row has on its way to the sink
# In tables that a stream created. Those of earlier versions have no record of an empty first batch.
FIRST_IS_RECORDED = "penstock.stream.first-batch-is-recorded"
FILE_BYTES = 128 << 20  # of Parquet, that a task holds in memory

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file that a task has written, with the bounds of the columns that have them."""

    name: str
    size_bytes: int
    rows: int
    lowest: Values
    highest: Values
    nulls: dict[str, int]


class TableTarget(Protocol):
    """A table that a stream writes to. Can be sent to tasks; `asdict` makes JSON of it."""

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or add the columns that it lacks. Raise if others differ."""

    def opened(self) -> "TableTarget":
        """Return the target with what tasks need to write files."""

    def write(self, name: str, data: bytes) -> None:
        """Store a file. It is whole and durable on return. Runs in a task."""

    def commit(
        self, query_id: str, batch_id: int, planned_us: int, files: Sequence[DataFile]
    ) -> None:
        """Add files to the table, unless this batch of the query was added before.

        Raise ArchiveError if another batch of this number was, or if the table should know the
        query and does not. A batch without rows has no files, and 0 as its plan time.
        """


def sink_options(target: Any, kind: str) -> dict[str, str]:
    """Return the options of the sink that writes to a target."""
    return {TARGET_OPTION: json.dumps({"kind": kind, **asdict(target)})}


def with_plan_time(frame: DataFrame) -> DataFrame:
    """Return a streaming frame with the column from which the sink knows when a batch was planned.

    In a micro-batch, Spark takes the current time from the checkpoint.
    """
    return frame.withColumn(PLANNED, f.expr("unix_micros(current_timestamp())"))


def is_repeated(
    batch: tuple[int, int],
    done: tuple[int | None, int | None],
    query_id: str,
    shown: str,
    *,
    first_is_recorded: bool,
) -> bool:
    """Return whether a table has a batch, given the number and plan time of the last one it has.

    A batch below the last one comes from a driver that was taken for dead, and was planned before.
    Raise ArchiveError if it was planned later: then it has other rows than the one in the table.
    Raise it, too, if batches before this one are missing in the table.
    """
    (batch_id, planned_us), (done_id, done_us) = batch, done
    if done_id is None and batch_id and first_is_recorded:
        raise ArchiveError(
            f"{shown} has no batch of query {query_id}, and this is batch {batch_id}: either "
            f"batches 0 to {batch_id - 1} of its checkpoint were written to another target, or the "
            f"table was replaced. Nothing was written. Name the target of this checkpoint; or give "
            f"a new checkpoint, with which the stream starts anew."
        )
    if done_id is None or done_id < batch_id:
        return False
    if not planned_us:
        return True  # without rows, nothing can be missing
    is_other = planned_us != done_us if done_id == batch_id else planned_us > (done_us or 0)
    if done_us is not None and is_other:
        raise ArchiveError(
            f"{shown} has another batch {batch_id} of query {query_id} already, and batches up to "
            f"{done_id}: the checkpoint is older than the table, as if it was restored from a "
            f"backup. Nothing was written. Go on with the newest checkpoint; or stream to a new "
            f"table with a new checkpoint."
        )
    return True


class TableSink(DataSource):
    """The sink. Its options are made by `sink_options`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        if overwrite:
            raise InvalidInput("a table is appended to by a stream: use outputMode('append')")
        stored = StructType([one for one in schema.fields if one.name != PLANNED])
        return _Writer(_target_of(self.options).opened(), stored_schema(stored))


def _target_of(options: Mapping[str, str]) -> TableTarget:
    fields = json.loads(options[TARGET_OPTION])
    if fields.pop("kind") == "delta":
        from penstock.spark.delta_stream import DeltaTarget

        return DeltaTarget.of(fields)
    from penstock.spark.iceberg_stream import IcebergTarget

    return IcebergTarget(**fields)


@dataclass(frozen=True)
class _WrittenFiles(WriterCommitMessage):
    """What one task wrote."""

    files: tuple[DataFile, ...]
    query_id: str | None
    planned_us: int


class _Writer(DataSourceStreamArrowWriter):
    """One for each micro-batch, on the driver; `write` runs in tasks."""

    def __init__(self, target: TableTarget, schema: pa.Schema) -> None:
        self._target = target
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        tune_worker()
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(QUERY_ID)
        planned: list[int] = []
        batches = _without_plan_time(iterator, planned)
        files = tuple(write_files(self._target, self._schema, batches))
        return _WrittenFiles(files, query_id, planned[0] if planned else 0)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        tasks = [message for message in messages if isinstance(message, _WrittenFiles)]
        files = [file for task in tasks for file in task.files]
        if not files and batchId > 0:
            return
        query_id = next((task.query_id for task in tasks if task.query_id), None)
        if query_id is None:
            if files:
                raise InvalidInput("Spark gave no query id: nothing was written")
            return
        planned_us = max(task.planned_us for task in tasks)
        self._target.commit(query_id, batchId, planned_us, files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: if a commit's answer was lost, the table may have these files."""


# -- in a task -------------------------------------------------------------------------------------


def _without_plan_time(
    batches: Iterator[pa.RecordBatch], planned: list[int]
) -> Iterator[pa.RecordBatch]:
    """Yield batches without the column of the plan time, and put that into the list once."""
    for batch in batches:
        if batch.num_rows and not planned:
            planned.append(batch[PLANNED][0].as_py())
        yield batch.drop_columns([PLANNED])


def write_files(
    target: TableTarget, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[DataFile]:
    """Write rows to Parquet files of at most about FILE_BYTES."""
    made: _ParquetFile | None = None
    for batch in batches:
        if batch.num_rows:
            made = made or _ParquetFile(schema)
            made.add(batch)
            if made.is_full:
                yield made.stored(target)
                made = None
    if made is not None:
        yield made.stored(target)


class _ParquetFile:
    """A file in memory. Batches of Spark are small, so several become a row group."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sink = pa.BufferOutputStream()
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression="zstd", metadata_collector=self._metadata
        )
        self._waiting: list[pa.RecordBatch] = []

    @property
    def is_full(self) -> bool:
        return bool(self._sink.tell() >= FILE_BYTES)

    def add(self, batch: pa.RecordBatch) -> None:
        # Spark's times have the time zone of the session; other columns are as they are here.
        self._waiting.append(batch.cast(self._schema))
        rows = sum(one.num_rows for one in self._waiting)
        if rows >= ROW_GROUP_ROWS or sum(one.nbytes for one in self._waiting) >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting = []

    def stored(self, target: TableTarget) -> DataFile:
        self._flush()
        self._writer.close()
        data = self._sink.getvalue().to_pybytes()
        name = f"part-{secrets.token_hex(16)}.parquet"
        target.write(name, data)
        return _described(name, len(data), self._metadata[0])


_BOUNDED = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_date)


def _described(name: str, size_bytes: int, metadata: pq.FileMetaData) -> DataFile:
    """Return a file with the bounds of numbers and times, by which readers skip files."""
    schema = metadata.schema.to_arrow_schema()
    nulls: dict[str, int] = {}
    bounds: dict[str, list[Any]] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            found = column.statistics
            field = column.path_in_schema  # with dots for what is nested
            if field not in schema.names or found is None:
                continue
            if not any(fits(schema.field(field).type) for fits in _BOUNDED):
                continue
            nulls[field] = nulls.get(field, 0) + (found.null_count or 0)
            if found.has_min_max:
                bounds.setdefault(field, []).extend((found.min, found.max))
    return DataFile(
        name,
        size_bytes,
        metadata.num_rows,
        {field: min(values) for field, values in bounds.items()},
        {field: max(values) for field, values in bounds.items()},
        nulls,
    )


# -- types -----------------------------------------------------------------------------------------

_SIMPLE: dict[type[DataType], pa.DataType] = {
    spark_types.StringType: pa.string(),
    spark_types.BinaryType: pa.binary(),
    spark_types.BooleanType: pa.bool_(),
    spark_types.ByteType: pa.int32(),  # Iceberg has no smaller numbers
    spark_types.ShortType: pa.int32(),
    spark_types.IntegerType: pa.int32(),
    spark_types.LongType: pa.int64(),
    spark_types.FloatType: pa.float32(),
    spark_types.DoubleType: pa.float64(),
    spark_types.DateType: pa.date32(),
    spark_types.TimestampType: TIME,
}


def stored_schema(schema: StructType) -> pa.Schema:
    """Return the columns of a stream as tables have them: every one can be null."""
    return pa.schema([(one.name, _stored(one.name, one.dataType)) for one in schema.fields])


def _stored(column: str, of: DataType) -> pa.DataType:
    if isinstance(of, spark_types.DecimalType):
        return pa.decimal128(of.precision, of.scale)
    if isinstance(of, spark_types.ArrayType):
        return pa.list_(_stored(column, of.elementType))
    if isinstance(of, spark_types.MapType):
        return pa.map_(_stored(column, of.keyType), _stored(column, of.valueType))
    if isinstance(of, StructType):
        return pa.struct([(one.name, _stored(column, one.dataType)) for one in of.fields])
    if type(of) not in _SIMPLE:
        raise InvalidInput(
            f"the column {column!r} has the type {of.simpleString()}, which no table of a stream "
            f"has: cast it, or leave it out"
        )
    return _SIMPLE[type(of)]


def added_columns(known: Mapping[str, Any], wanted: Mapping[str, Any], shown: str) -> list[str]:
    """Return the columns that a table lacks. Raise InvalidInput if one has another type."""
    for name, kind in wanted.items():
        if name in known and known[name] != kind:
            raise InvalidInput(
                f"the column {name!r} of {shown} is {known[name]}, and the stream has {kind}: "
                f"cast it, or write to another table"
            )
    return [name for name in wanted if name not in known]
