"""The batch side of the source."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.options import ReadOptions
from penstock.spark.partitions import Lot, read_lot
from penstock.spark.planning import plan_batch
from penstock.spark.pushdown import Bounds, bounds_of
from penstock.spark.workers import settle_worker


class BatchReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        return list(plan_batch(self._options, self._bounds, self._schema.fieldNames()))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        settle_worker()
        if isinstance(partition, Lot):  # None: there is nothing to read, and Spark asks once
            yield from read_lot(partition, self._schema, self._options)


class FilteringReader(BatchReader):
    """The same, for when Spark hands filters down; it refuses a reader that offers it otherwise."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._bounds = bounds_of(filters, self._options.table)
        return filters  # to be applied again: ours only leave out what they can by the index
