"""The data source that Spark knows as `penstock`, and its batch reader."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.arrow.locations import check_reachable
from penstock.arrow.planning import plan_batch, queues_of
from penstock.arrow.reading import read_partition
from penstock.arrow.selection import Bounds
from penstock.errors import InvalidInput, PenstockError
from penstock.spark.options import ReadOptions, WriteOptions
from penstock.spark.payloads.table import check_table_schema, read_typed, table_schema
from penstock.spark.pushdown import bounds_of
from penstock.spark.sink import BatchWriter, StreamWriter
from penstock.spark.stream_reader import RefusedStream, StreamReader, UnlimitedStreamReader
from penstock.spark.versions import HAS_READ_LIMITS, Filter
from penstock.spark.workers import tune_worker

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class PenstockDataSource(DataSource):
    """Queues as tables: `spark.read.format("penstock").option("path", …)`."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> Any:
        """Return a StructType, or DDL if payloads are described so: only Spark parses it."""
        tune_worker()
        options = self._read_options()
        return table_schema(options, queues_of(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        tune_worker()
        options = self._read_options()
        check_table_schema(options, schema)
        return BatchReader(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            options = self._read_options()
            check_table_schema(options, schema)
            reader = StreamReader(schema, options)
            return reader if HAS_READ_LIMITS else UnlimitedStreamReader(reader, options)
        except PenstockError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        tune_worker()
        if overwrite:
            raise InvalidInput("a queue cannot be overwritten: use .mode('append')")
        return BatchWriter(self._write_options(), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        if overwrite:
            raise InvalidInput("a queue cannot be overwritten: use outputMode('append')")
        return StreamWriter(self._write_options(), schema)

    def _read_options(self) -> ReadOptions:
        options = ReadOptions.parse(self.options)
        check_reachable(options.location)
        return options

    def _write_options(self) -> WriteOptions:
        options = WriteOptions.parse(self.options)
        check_reachable(options.url)
        return options


class BatchReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        parts = plan_batch(self._options, self._bounds, self._schema.fieldNames())
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        tune_worker()
        # Spark asks once, with None, if there are no partitions.
        if partition is not None and partition.value is not None:
            read = partial(read_partition, partition.value, selection=self._options)
            yield from read_typed(self._schema, self._options, read)


# -- filter push-down, where Spark does it correctly: see `penstock.spark.sessions` ----------------


class FilteringReader(BatchReader):
    """A batch reader that takes filters. Spark refuses it while push-down is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._bounds = bounds_of(filters, self._options.table)
        return filters  # Spark applies them again: bounds only skip what the index can skip


class FilteringDataSource(PenstockDataSource):
    """The data source with filter push-down. `penstock.spark.session` registers it."""

    def reader(self, schema: StructType) -> DataSourceReader:
        plain = super().reader(schema)
        if not _is_pushing_filters():
            return plain
        return FilteringReader(schema, ReadOptions.parse(self.options))


def _is_pushing_filters() -> bool:
    """Return whether the caller is Spark's worker that pushes filters.

    A data source cannot see spark.sql.python.filterPushdown.enabled, but this worker runs only if
    the setting is on.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        names = (frame.f_globals.get("__name__"), getattr(spec, "name", None))
        if _PUSHDOWN_WORKER in names:
            return True
        frame = frame.f_back
    return False
