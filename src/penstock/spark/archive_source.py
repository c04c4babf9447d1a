"""Archived messages as a DataFrame, read with pyarrow in Spark's tasks.

Each task reads whole files, and checks them against the manifest before it decodes them. So every
file is read once, no byte is served that was not checked, and the driver reads only the manifest.
Spark's own Parquet reader knows no checksums, and needs the jar of an object store.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from penstock.archive import Archive, ArchivedFile, ArchiveError
from penstock.archive.archives import archive_of_place
from penstock.archive.parquet import read_range
from penstock.archive.places import Place
from penstock.spark.tables import arrow_schema, spark_schema
from penstock.spark.workers import tune_worker

_NAME = "penstock_archive"
_RANGE = "secret_range"  # Spark hides the values of options with such a name
_TASK_BYTES = 16 << 20  # of neighbouring files, for one task


@dataclass(frozen=True, slots=True)
class FileRange:
    """The messages of a queue with these seqs and times in an archive. Ends are exclusive."""

    place: Place
    queue: str
    seqs: tuple[int, int]
    times_ns: tuple[int | None, int | None]

    @classmethod
    def parse(cls, text: str) -> "FileRange":
        fields = json.loads(text)
        first, end = fields["seqs"]
        since, until = fields["times_ns"]
        return cls(Place(**fields["place"]), fields["queue"], (first, end), (since, until))

    @property
    def archive(self) -> Archive:
        return archive_of_place(self.place)

    def tasks(self) -> list[list[ArchivedFile]]:
        """Return the files of the range, in order, for each task."""
        manifest = self.archive.one_manifest(self.queue)
        if manifest.first_seq > self.seqs[0]:
            raise ArchiveError(
                f"{self.place.shown}: seq {self.seqs[0]} to {manifest.first_seq - 1} of "
                f"{self.queue} were removed from the archive since this read was planned: plan it "
                f"again"
            )
        since_ns, until_ns = self.times_ns
        files = manifest.files_between(*self.seqs, since_ns=since_ns, until_ns=until_ns)
        tasks: list[list[ArchivedFile]] = []
        size = 0
        for file in sorted(files, key=lambda one: one.first_seq):
            if not tasks or size + file.size_bytes > _TASK_BYTES:
                tasks.append([])
                size = 0
            tasks[-1].append(file)
            size += file.size_bytes
        return tasks


def nullable(schema: pa.Schema) -> StructType:
    """Return a schema as Spark reads Parquet: every column can be null."""
    return StructType([StructField(one.name, one.dataType) for one in spark_schema(schema).fields])


def read_archive(spark: SparkSession, wanted: FileRange, schema: StructType) -> DataFrame:
    """Return a range of an archived queue. Rows are in order, within partitions and by them."""
    spark.dataSource.register(ArchiveSource)
    reader = spark.read.format(_NAME).schema(schema)
    return reader.option(_RANGE, json.dumps(asdict(wanted))).load()


class ArchiveSource(DataSource):
    """A range of one archived queue. Its options are made by `read_archive`."""

    @classmethod
    def name(cls) -> str:
        return _NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        tune_worker()
        return _Reader(FileRange.parse(self.options[_RANGE]), schema)


class _Reader(DataSourceReader):
    def __init__(self, wanted: FileRange, schema: StructType) -> None:
        self._wanted = wanted
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(files) for files in self._wanted.tasks()]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        tune_worker()
        # Spark asks once, with None, if there are no partitions.
        files = partition.value if partition is not None else None
        store, schema = self._wanted.archive.store, arrow_schema(self._schema)
        for file in files or ():
            yield from read_range(store, file, schema, self._wanted.seqs, self._wanted.times_ns)
