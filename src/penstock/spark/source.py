"""The data source that Spark knows as `penstock`."""

import sys
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput, PenstockError
from penstock.spark.batch_reader import BatchReader, FilteringReader
from penstock.spark.options import ReadOptions, WriteOptions
from penstock.spark.places import check_reachable
from penstock.spark.planning import queues_of
from penstock.spark.sink import BatchWriter, StreamWriter
from penstock.spark.stream_reader import RefusedStream, StreamReader
from penstock.spark.tables import check_schema, schema_of
from penstock.spark.workers import settle_worker

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class PenstockDataSource(DataSource):
    """Queues as tables: `spark.read.format("penstock").option("path", …)`."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        settle_worker()
        options = self._read_options()
        queues = queues_of(options)
        several = len(queues) > 1 or options.subscribe_pattern is not None
        return schema_of(
            options.table,
            options.columns,
            several_queues=several,
            include_headers=options.include_headers,
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        settle_worker()
        options = self._read_options()
        check_schema(options.table, schema)
        return BatchReader(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            options = self._read_options()
            check_schema(options.table, schema)
            return StreamReader(schema, options)
        except PenstockError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        settle_worker()
        if overwrite:
            raise InvalidInput("a queue is never overwritten: use .mode('append')")
        return BatchWriter(self._write_options(), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        if overwrite:
            raise InvalidInput("a queue is never overwritten: use outputMode('append')")
        return StreamWriter(self._write_options(), schema)

    def _read_options(self) -> ReadOptions:
        options = ReadOptions.parse(self.options)
        check_reachable(options.place)
        return options

    def _write_options(self) -> WriteOptions:
        options = WriteOptions.parse(self.options)
        check_reachable(options.url)
        return options


class FilteringDataSource(PenstockDataSource):
    """The same, with a reader that takes filters; for a Spark that was found to push them right.

    `penstock.spark.session` registers it there, under the same name.
    """

    def reader(self, schema: StructType) -> DataSourceReader:
        plain = super().reader(schema)
        if not _filters_come():
            return plain
        return FilteringReader(schema, ReadOptions.parse(self.options))


def _filters_come() -> bool:
    """Return whether Spark's worker for pushing filters is the caller.

    Spark refuses a reader that takes filters while spark.sql.python.filterPushdown.enabled is off.
    A data source cannot see that setting, but this worker runs only if it is on.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _PUSHDOWN_WORKER:
            return True
        main = frame.f_globals.get("__spec__")
        if main is not None and main.name == _PUSHDOWN_WORKER:
            return True
        frame = frame.f_back
    return False
