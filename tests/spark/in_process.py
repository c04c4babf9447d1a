"""The source without a JVM: planned and read in this process, as driver and task would."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.options import ReadOptions
from penstock.spark.source import FilteringReader, PenstockDataSource

Row = dict[str, Any]


def source(path: Path | str, **options: object) -> PenstockDataSource:
    """The source with options, as Spark makes it: all text, names in lower case."""
    place = "url" if str(path).startswith("http:") else "path"
    given = {name.lower(): str(value) for name, value in {place: path, **options}.items()}
    return PenstockDataSource(given)


def planned(
    path: Path | str, *, filters: Sequence[Filter] = (), **options: Any
) -> tuple[FilteringReader, list[InputPartition]]:
    """A reader, and the tasks it made."""
    made = source(path, **options)
    schema = made.schema()
    assert isinstance(schema, StructType)
    reader = FilteringReader(schema, ReadOptions.parse(made.options))
    reader.pushFilters(list(filters))
    return reader, list(reader.partitions())


def read(reader: FilteringReader, tasks: Sequence[InputPartition]) -> list[Row]:
    """The rows of all tasks, one after another."""
    batches = [batch for task in tasks for batch in reader.read(task)]
    return [row for batch in batches for row in as_rows(batch)]


def rows(path: Path | str, *, filters: Sequence[Filter] = (), **options: Any) -> list[Row]:
    """Plan and read at once."""
    return read(*planned(path, filters=filters, **options))


def as_rows(batch: pa.RecordBatch) -> list[Row]:
    maps = [f.name for f in batch.schema if pa.types.is_map(f.type)]
    found: list[Row] = batch.to_pylist()
    for row in found:
        for name in maps:
            row[name] = dict(row[name])
    return found
