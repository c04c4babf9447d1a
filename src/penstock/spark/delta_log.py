"""The archive as a Delta table: a log beside the Parquet files that names them, and copies none.

The manifests stay the truth, and the log follows them: what they have and it has not is added, what
it has and they have not is removed, in one commit. So it does not matter what a killed job, a run
without the option or another writer of the table left in it.
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
    sync_directory,
    sync_file,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction, PostCommitHookProperties

DELTA_LOG = "_delta_log"
_PARTITIONS = {"namespace": pa.string(), "queue": pa.string(), "date": pa.date32()}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A vacuum of the table would remove archived files that the log does not name yet.
_CONFIGURATION = {"delta.deletedFileRetentionDuration": "interval 36500 days"}

# What tells that a file is the one that the log means: size, rows, first and last seq.
_Facts = tuple[int, int | None, int | None, int | None]


def check_installed() -> None:
    """Say what to install, before anything is done."""
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
    """Make the Delta table have exactly the files of the manifests. Needs the archive's lock."""
    from deltalake import DeltaTable, Schema

    root = root.absolute()
    schema = Schema.from_arrow(
        pa.schema([*columns, *(pa.field(name, kind) for name, kind in _PARTITIONS.items())])
    )
    # Nothing was ever archived: a table without files.
    found = manifests(root) if (root / MANIFESTS).is_dir() else []
    wanted = {file.path: file for manifest in found for file in manifest.files}
    with _explained(root):
        if DeltaTable.is_deltatable(str(root)):
            changed = _mend(root, DeltaTable(root), schema, wanted)
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


def _mend(
    root: Path, table: "DeltaTable", schema: "Schema", wanted: dict[str, ArchivedFile]
) -> bool:
    """Bring the log to what is wanted, if it is not there; whether it had to change."""
    from deltalake.transaction import RemoveAction

    if table.schema() != schema or table.metadata().partition_columns != list(_PARTITIONS):
        raise ArchiveError(
            f"{root / DELTA_LOG} is of a table with other columns: move it away and archive again, "
            f"and it is made anew from the manifests"
        )
    there = _files_of(table)
    now_ms = SystemClock().now_ns() // 1_000_000
    # One that the log has with other facts is added again, which replaces it.
    adds = [_add(root, file) for file in wanted.values() if there.get(file.path) != _facts(file)]
    removes = [
        RemoveAction(path, data_change=True, deletion_timestamp=now_ms)
        for path in there
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


def _files_of(table: "DeltaTable") -> dict[str, _Facts]:
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


def _facts(file: ArchivedFile) -> _Facts:
    return file.size_bytes, file.rows, file.first_seq, file.last_seq


def _add(root: Path, file: ArchivedFile) -> "AddAction":
    from deltalake.transaction import AddAction

    try:
        modified_ns = (root / file.path).stat().st_mtime_ns
    except FileNotFoundError:
        raise ArchiveError(f"{root / file.path} is missing, though the manifest names it") from None
    # Seqs and times never go back within a file: its first and last are its least and greatest.
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
    """What the folders say; a queue directory that was named by itself has no namespace."""
    folders = dict(folder.split("=", 1) for folder in path.split("/")[:-1])
    return {name: folders.get(name) for name in _PARTITIONS}


def _no_checkpoint() -> "PostCommitHookProperties":
    """Checkpoints are Parquet: whoever reads all of `**/*.parquet` would take them for messages."""
    from deltalake.transaction import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def _sync(root: Path) -> None:
    """The package does not sync what it writes."""
    log = root / DELTA_LOG
    sync_file(max(log.glob("*[0-9].json")))
    sync_directory(log)
    sync_directory(root)


@contextmanager
def _explained(root: Path) -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        what = str(error).partition("\n")[0]  # and no trace of the package's own calls
        raise ArchiveError(
            f"the archive is whole, but its Delta table could not follow ({what}): if this stays "
            f"so, move {root / DELTA_LOG} away and archive again, and it is made anew"
        ) from None
