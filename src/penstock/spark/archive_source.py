"""Archived messages in an object store as a DataFrame, read with pyarrow in Spark's tasks.

Spark's own Parquet reader needs the jar of the store; this data source needs none. `archived` and
`restore` use it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from penstock.archive import Archive, ArchivedFile
from penstock.archive.object_stores import ObjectStore
from penstock.archive.parquet import read_file
from penstock.archive.places import Place
from penstock.spark.tables import arrow_schema, spark_schema
from penstock.spark.workers import tune_worker

_NAME = "penstock_archive"
_PLACE = "secret_place"  # Spark hides the values of options with such a name
_BATCH_ROWS = 16_384  # that a task gives to Spark at once


def nullable(schema: pa.Schema) -> StructType:
    """Return a schema as Spark reads Parquet: every column can be null."""
    return StructType([StructField(one.name, one.dataType) for one in spark_schema(schema).fields])


def read_archive(
    spark: SparkSession,
    store: ObjectStore,
    queue: str,
    seqs: tuple[int, int],
    schema: StructType,
) -> DataFrame:
    """Return the files that have messages of a queue between two seqs; the end is exclusive."""
    spark.dataSource.register(ArchiveSource)
    options = {
        _PLACE: json.dumps(asdict(store.place)),
        "queue": queue,
        "first": str(seqs[0]),
        "end": str(seqs[1]),
    }
    return spark.read.format(_NAME).schema(schema).options(**options).load()


class ArchiveSource(DataSource):
    """One archived queue. Its options are made by `read_archive`."""

    @classmethod
    def name(cls) -> str:
        return _NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        store = ObjectStore(Place(**json.loads(self.options[_PLACE])))
        seqs = int(self.options["first"]), int(self.options["end"])
        return _Reader(store, self.options["queue"], seqs, schema)


class _Reader(DataSourceReader):
    def __init__(
        self, store: ObjectStore, queue: str, seqs: tuple[int, int], schema: StructType
    ) -> None:
        self._store = store
        self._queue = queue
        self._seqs = seqs
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        manifest = Archive(self._store).one_manifest(self._queue)
        return [InputPartition(file) for file in manifest.files_between(*self._seqs)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        tune_worker()
        # Spark asks once, with None, if there are no partitions.
        if partition is not None and isinstance(partition.value, ArchivedFile):
            table = read_file(self._store, partition.value, arrow_schema(self._schema))
            yield from table.to_batches(_BATCH_ROWS)
