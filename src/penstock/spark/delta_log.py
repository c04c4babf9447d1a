"""The archive as a Delta table: a log that names its Parquet files, without copying them.

The manifests are authoritative. One commit adds the files that only the manifests have and removes
those that only the log has. So leftovers of a killed job, of a run without the option, or of
another writer of the table do no harm.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.spark.archive_files import (
    MANIFESTS,
    ArchivedFile,
    ArchiveError,
    manifests,
    sync,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction, PostCommitHookProperties

DELTA_LOG = "_delta_log"
_PARTITIONS = {"namespace": pa.string(), "queue": pa.string(), "date": pa.date32()}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Otherwise a vacuum of the table removes archived files that the log does not name yet.
_CONFIGURATION = {"delta.deletedFileRetentionDuration": "interval 36500 days"}

# Size, rows, first and last seq: they tell whether the log means the same file.
_Stats = tuple[int, int | None, int | None, int | None]


def check_installed() -> None:
    """Raise PenstockError if the package is missing."""
    try:
        import deltalake  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("deltalake"):
            raise
        raise PenstockError(
            "an archive as a Delta table needs the package 'deltalake', which is not installed; "
            "run: pip install 'penstock[delta]'"
        ) from None


def follow_manifests(root: Path, columns: pa.Schema) -> None:
    """Give the Delta table exactly the files of the manifests. Caller holds the archive's lock."""
    from deltalake import DeltaTable, Schema

    root = root.absolute()
    schema = Schema.from_arrow(
        pa.schema([*columns, *(pa.field(name, kind) for name, kind in _PARTITIONS.items())])
    )
    # An archive without manifests is a table without files.
    found = manifests(root) if (root / MANIFESTS).is_dir() else []
    wanted = {file.path: file for manifest in found for file in manifest.files}
    with _translated_errors(root):
        if DeltaTable.is_deltatable(str(root)):
            changed = _update(root, DeltaTable(root), schema, wanted)
        else:
            _create(root, schema, wanted)
            changed = True
    if changed:
        _sync(root)


def _create(root: Path, schema: "Schema", wanted: dict[str, ArchivedFile]) -> None:
    from deltalake.transaction import create_table_with_add_actions

    create_table_with_add_actions(
        str(root),
        schema,
        [_add(root, file) for file in wanted.values()],
        partition_by=list(_PARTITIONS),
        configuration=_CONFIGURATION,
        post_commithook_properties=_no_checkpoint(),
    )


def _update(
    root: Path, table: "DeltaTable", schema: "Schema", wanted: dict[str, ArchivedFile]
) -> bool:
    """Commit the difference to the wanted files. Return whether there was any."""
    from deltalake.transaction import RemoveAction

    if table.schema() != schema or table.metadata().partition_columns != list(_PARTITIONS):
        raise ArchiveError(
            f"{root / DELTA_LOG} is the log of a table with other columns: move it away and "
            f"archive again, which writes it from the manifests"
        )
    logged = _files_of(table)
    now_ms = SystemClock().now_ns() // 1_000_000
    # Adding a file that the log has with other statistics replaces it.
    adds = [_add(root, file) for file in wanted.values() if logged.get(file.path) != _stats(file)]
    removes = [
        RemoveAction(path, data_change=True, deletion_timestamp=now_ms)
        for path in logged
        if path not in wanted
    ]
    if not adds and not removes:
        return False
    table.create_write_transaction(
        [*adds, *removes],
        "append",
        schema,
        list(_PARTITIONS),
        post_commithook_properties=_no_checkpoint(),
    )
    return True


def _files_of(table: "DeltaTable") -> dict[str, _Stats]:
    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return {
        unquote(row["path"]): (
            row["size_bytes"],
            row.get("num_records"),
            row.get("min.seq"),
            row.get("max.seq"),
        )
        for row in rows
    }


def _stats(file: ArchivedFile) -> _Stats:
    return file.size_bytes, file.rows, file.first_seq, file.last_seq


def _add(root: Path, file: ArchivedFile) -> "AddAction":
    from deltalake.transaction import AddAction

    try:
        modified_ns = (root / file.path).stat().st_mtime_ns
    except FileNotFoundError:
        raise ArchiveError(f"{root / file.path} is missing, though the manifest names it") from None
    # Seqs and times rise within a file: the first and last are the least and greatest.
    stats = {
        "numRecords": file.rows,
        "minValues": _values(file.first_seq, file.first_ns),
        "maxValues": _values(file.last_seq, file.last_ns),
        "nullCount": {"seq": 0, "timestamp": 0, "timestamp_ns": 0},
    }
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=_partition_of(file.path),
        modification_time=modified_ns // 1_000_000,
        data_change=True,
        stats=json.dumps(stats),
    )


def _values(seq: int, time_ns: int) -> dict[str, int | str]:
    time = _EPOCH + timedelta(microseconds=time_ns // 1000)
    return {
        "seq": seq,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "timestamp_ns": time_ns,
    }


def _partition_of(path: str) -> dict[str, str | None]:
    """Return the partition of a file, from its folders. The namespace may be null."""
    folders = dict(folder.split("=", 1) for folder in path.split("/")[:-1])
    return {name: folders.get(name) for name in _PARTITIONS}


def _no_checkpoint() -> "PostCommitHookProperties":
    """Write no checkpoint: a tool that reads `**/*.parquet` would take it for messages."""
    from deltalake.transaction import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def _sync(root: Path) -> None:
    """Make the newest commit durable: the package does not sync."""
    log = root / DELTA_LOG
    for path in (max(log.glob("*[0-9].json")), log, root):
        sync(path)


@contextmanager
def _translated_errors(root: Path) -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        what = str(error).partition("\n")[0]  # without the package's own traceback
        raise ArchiveError(
            f"the archive is complete, but its Delta log could not be updated ({what}): if this "
            f"happens again, move {root / DELTA_LOG} away and archive again, which writes it anew"
        ) from None
