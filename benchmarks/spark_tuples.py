"""The simplest source that reads the files of a queue: one Python tuple per entry."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock import codec
from penstock.ledger.segment_header import HEADER_BYTES


class Tuples(DataSource):
    """The default columns with their types, of the first `files` segments."""

    @classmethod
    def name(cls) -> str:
        return "penstock-tuples"

    def schema(self) -> str:
        return "seq bigint, timestamp timestamp, priority tinyint, key string, payload binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TupleReader(self.options["path"], int(self.options["files"]))


class _TupleReader(DataSourceReader):
    def __init__(self, path: str, files: int) -> None:
        self._path = path
        self._files = files

    def partitions(self) -> list[InputPartition]:
        files = sorted(Path(self._path, "messages").glob("*.log"))
        return [InputPartition(str(file)) for file in files[: self._files]]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        data, offset = Path(partition.value).read_bytes(), HEADER_BYTES
        while True:
            entries, offset = codec.read_entries(data, offset, len(data), max_count=1000)
            if not entries:
                return
            for entry in entries:
                at = datetime.fromtimestamp(entry.timestamp_ns / 1e9, UTC)
                yield entry.seq, at, entry.priority, None, entry.payload
