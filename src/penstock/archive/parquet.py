"""Parquet files of an archive: written, read back and compared; read with columns added since."""

import hashlib
from collections.abc import Iterator
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.archive.faults import ArchiveError
from penstock.archive.manifests import ArchivedFile
from penstock.archive.stores import ArchiveStore

# Dictionaries and statistics cost time; other columns hardly gain from them.
_WITH_DICTIONARY = ["priority", "key", "content_type"]
_WITH_STATISTICS = ["seq", "timestamp", "timestamp_ns", "priority", "key"]
# Readers skip row groups and pages by their statistics: a range of times reads about these many
# rows more than it has. Smaller ones take more memory for their metadata, and save nothing.
ROW_GROUP_ROWS, ROW_GROUP_BYTES = 1 << 16, 64 << 20
# Limits of what is decoded at once. Larger batches get fresh memory each time, which costs more.
BATCH_ROWS, BATCH_BYTES = 16_384, 2 << 20

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


def encode(table: pa.Table) -> bytes:
    """Return messages as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        row_group_size=_row_group_rows(table),
        write_page_index=True,
        use_dictionary=_WITH_DICTIONARY,
        write_statistics=_WITH_STATISTICS,
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _row_group_rows(table: pa.Table) -> int:
    """Return the rows of a row group. A reader holds the columns of a whole row group."""
    within: int = ROW_GROUP_BYTES * table.num_rows // max(table.nbytes, 1)
    return max(min(within, ROW_GROUP_ROWS), 1)


def describe(path: str, date: str, table: pa.Table, data: bytes) -> ArchivedFile:
    """Return what a manifest says of a file. Seqs and times rise within it."""
    seqs, times = table.column("seq"), table.column("timestamp_ns")
    return ArchivedFile(
        path=path,
        date=date,
        rows=table.num_rows,
        first_seq=seqs[0].as_py(),
        last_seq=seqs[-1].as_py(),
        first_ns=times[0].as_py(),
        last_ns=times[-1].as_py(),
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def write_verified(store: ArchiveStore, path: str, date: str, table: pa.Table) -> ArchivedFile:
    """Store messages as a file, read it back, and compare every value."""
    data = encode(table)
    store.write(path, data)
    try:
        stored = store.read(path)
    except FileNotFoundError:
        raise _differs(store, path) from None
    verify_content(store, path, stored, table)
    return describe(path, date, table, data)


def verify_content(store: ArchiveStore, path: str, stored: bytes, table: pa.Table) -> None:
    """Raise ArchiveError unless a file has exactly these messages."""
    try:
        same = pq.read_table(pa.BufferReader(stored)).equals(table)
    except (pa.ArrowException, OSError):
        same = False
    if not same:
        raise _differs(store, path)


def _differs(store: ArchiveStore, path: str) -> ArchiveError:
    return ArchiveError(
        f"{store.shown}/{path} does not read back as it was written: check the store of the "
        f"archive. It is not archived; archive again"
    )


def check_sum(store: ArchiveStore, file: ArchivedFile, stored: bytes) -> None:
    """Raise ArchiveError unless a file is the one that the manifest names."""
    if hashlib.sha256(stored).hexdigest() != file.sha256:
        raise damaged(store, file)


def damaged(store: ArchiveStore, file: ArchivedFile) -> ArchiveError:
    return ArchiveError(
        f"{store.shown}/{file.path} is damaged: its SHA-256 is not that of the manifest. Restore "
        f"the file from a backup, or read without the range of its messages, {file.first_seq} to "
        f"{file.last_seq}"
    )


def read_checked(store: ArchiveStore, file: ArchivedFile) -> bytes:
    """Return a file. Raise ArchiveError unless it is the one that the manifest names."""
    try:
        stored = store.read(file.path)
    except FileNotFoundError:
        raise ArchiveError(
            f"{store.shown}/{file.path} is missing, though the manifest names it"
        ) from None
    check_sum(store, file, stored)
    return stored


def read_file(store: ArchiveStore, file: ArchivedFile, schema: pa.Schema) -> pa.Table:
    """Return the messages of a file, checked against the manifest."""
    return decode(read_checked(store, file), schema)


def read_range(
    store: ArchiveStore,
    file: ArchivedFile,
    schema: pa.Schema,
    seqs: tuple[int, int],
    times_ns: tuple[int | None, int | None] = (None, None),
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a file with these seqs and times; both ends are exclusive.

    The whole file is checked against the manifest, once, and in memory: what is decoded are the
    bytes that were checked. Row groups outside the range, and other columns, are not decoded.
    """
    found = pq.ParquetFile(pa.BufferReader(read_checked(store, file)))
    names = [name for name in schema.names if name in found.schema_arrow.names]
    bounds = {"seq": (seqs[0], seqs[1] - 1)}
    lowest_ns, end_ns = times_ns
    if lowest_ns is not None or end_ns is not None:
        until_ns = (1 << 63) - 1 if end_ns is None else end_ns - 1
        bounds["timestamp_ns"] = (lowest_ns or 0, until_ns)
    inside = file.first_seq >= seqs[0] and file.last_seq < seqs[1] and len(bounds) == 1
    groups = [
        number for number in range(found.num_row_groups) if inside or _meets(found, number, bounds)
    ]
    read = names if inside else list(dict.fromkeys([*names, *bounds]))
    rows = _batch_rows(found, groups, read)
    for batch in found.iter_batches(rows, row_groups=groups, columns=read):
        wanted = batch if inside else _within(batch, bounds)
        if wanted.num_rows:
            yield _in_columns(wanted, schema)


def _batch_rows(file: pq.ParquetFile, groups: list[int], names: list[str]) -> int:
    """Return how many rows of these columns are about BATCH_BYTES, and at most BATCH_ROWS."""
    rows = size_bytes = 0
    for group in map(file.metadata.row_group, groups):
        rows += group.num_rows
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.partition(".")[0] in names:
                size_bytes += column.total_uncompressed_size
    return max(min(BATCH_BYTES * rows // max(size_bytes, 1), BATCH_ROWS), 1)


def _meets(file: pq.ParquetFile, group: int, bounds: dict[str, tuple[int, int]]) -> bool:
    """Return whether a row group may have rows within bounds."""
    described = file.metadata.row_group(group)
    for index in range(described.num_columns):
        column = described.column(index)
        found = column.statistics
        if column.path_in_schema in bounds and found is not None and found.has_min_max:
            low, high = bounds[column.path_in_schema]
            if found.max < low or found.min > high:
                return False
    return True


def _within(batch: pa.RecordBatch, bounds: dict[str, tuple[int, int]]) -> pa.RecordBatch:
    for name, (low, high) in bounds.items():
        column = batch[name]
        above = pc.greater_equal(column, pa.scalar(low, pa.int64()))
        batch = batch.filter(pc.and_(above, pc.less_equal(column, pa.scalar(high, pa.int64()))))
    return batch


def decode(stored: bytes, schema: pa.Schema, *, drop: bool = True) -> pa.Table:
    """Return the messages of a Parquet file in these columns.

    A column that the file does not have, because it was written before there was one, is null.
    Without `drop`, a file with more columns is refused: a newer version of Penstock wrote it.
    """
    file = pq.ParquetFile(pa.BufferReader(stored))
    names = file.schema_arrow.names
    unknown = sorted(set(names) - set(schema.names))
    if unknown and not drop:
        raise ArchiveError(
            f"a file of the archive has the column {unknown[0]!r}, which this version does not "
            f"know: use the version that wrote it"
        )
    return _in_columns(file.read([name for name in names if name in schema.names]), schema)


def _in_columns(found: _Rows, schema: pa.Schema) -> _Rows:
    names = found.schema.names
    columns = [
        found.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(found.num_rows, field.type)
        for field in schema
    ]
    return type(found).from_arrays(columns, schema=schema)
