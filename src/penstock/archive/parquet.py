"""Parquet files of an archive: written, read back and compared; read with columns added since."""

import hashlib

import pyarrow as pa
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
        raise ArchiveError(
            f"{store.shown}/{file.path} is damaged: its checksum differs from the manifest"
        )


def read_file(store: ArchiveStore, file: ArchivedFile, schema: pa.Schema) -> pa.Table:
    """Return the messages of a file, checked against the manifest."""
    try:
        stored = store.read(file.path)
    except FileNotFoundError:
        raise ArchiveError(
            f"{store.shown}/{file.path} is missing, though the manifest names it"
        ) from None
    check_sum(store, file, stored)
    return decode(stored, schema)


def decode(stored: bytes, schema: pa.Schema, *, drop: bool = True) -> pa.Table:
    """Return the messages of a Parquet file in these columns.

    A column that the file does not have, because it was written before there was one, is null.
    Without `drop`, a file with more columns is refused: a newer version of Penstock wrote it.
    """
    found = pq.read_table(pa.BufferReader(stored))
    unknown = sorted(set(found.column_names) - set(schema.names))
    if unknown and not drop:
        raise ArchiveError(
            f"a file of the archive has the column {unknown[0]!r}, which this version does not "
            f"know: use the version that wrote it"
        )
    columns = [
        found.column(field.name).cast(field.type)
        if field.name in found.column_names
        else pa.nulls(found.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
