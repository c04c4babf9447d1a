"""The archive as a Delta table: a log that names its Parquet files, without copying them.

The manifests are authoritative. One commit adds the files that only the manifests have and removes
those that only the log has. So leftovers of a killed job, of a run without the option, or of
another writer of the table do no harm.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from penstock.archive import Archive, ArchivedFile, ArchiveError
from penstock.archive.object_stores import ObjectStore
from penstock.archive.places import Place
from penstock.archive.stores import LocalStore, sync
from penstock.clock import SystemClock
from penstock.errors import InvalidInput, PenstockError

if TYPE_CHECKING:
    from deltalake import DeltaTable, Field, Schema
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
            "a Delta table needs the package 'deltalake', which is not installed; "
            "install Penstock with the extra delta (pip install '.[delta]' in its checkout)"
        ) from None


def exists(archive: Archive) -> bool:
    """Return whether the archive has a Delta log."""
    return bool(archive.store.files(DELTA_LOG))


def follow_manifests(archive: Archive, columns: pa.Schema) -> None:
    """Give the Delta table exactly the files of the manifests. Caller holds the archive's lock."""
    from deltalake import DeltaTable, Schema

    schema = Schema.from_arrow(
        pa.schema([*columns, *(pa.field(name, kind) for name, kind in _PARTITIONS.items())])
    )
    # An archive without manifests is a table without files.
    found = archive.manifests() if archive.exists() else []
    wanted = {file.path: file for manifest in found for file in manifest.files}
    uri, options = _table_of(archive)
    with _translated_errors(archive):
        if DeltaTable.is_deltatable(uri, storage_options=options):
            table = DeltaTable(uri, storage_options=options)
            changed = _update(archive, table, schema, wanted)
        else:
            _create(archive, schema, wanted)
            changed = True
    if changed and isinstance(archive.store, LocalStore):
        sync_log(archive.store)


def _table_of(archive: Archive) -> tuple[str, dict[str, str] | None]:
    """Return the table's URI, and the options by which the package reaches the store."""
    store = archive.store
    if isinstance(store, LocalStore):
        return str(store.root), None
    if isinstance(store, ObjectStore):
        return store.place.url, storage_options(store.place)
    raise InvalidInput(
        f"{archive.shown} is on Hadoop's file systems, where no Delta log can be written from "
        f"Python: archive without delta, or to a directory or an object store"
    )


def storage_options(place: Place) -> dict[str, str]:
    """Return the options of a place as the package `deltalake` names them."""
    names = {
        "access_key": "aws_access_key_id",
        "secret_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
        "region": "aws_region",
        "endpoint": "aws_endpoint_url",
        "account_key": "azure_storage_account_key",
        "sas_token": "azure_storage_sas_key",
    }
    found = {names[name]: value for name, value in place.options.items() if name in names}
    if place.kind == "s3":
        # The commit of a table is a conditional write, as that of a manifest.
        found["aws_conditional_put"] = "etag"
        if place.anonymous:
            found["aws_skip_signature"] = "true"
        if place.options.get("endpoint", "").startswith("http://"):
            found["aws_allow_http"] = "true"
    if place.account:
        found["azure_storage_account_name"] = place.account
    return found


def _create(archive: Archive, schema: "Schema", wanted: dict[str, ArchivedFile]) -> None:
    from deltalake.transaction import create_table_with_add_actions

    uri, options = _table_of(archive)
    create_table_with_add_actions(
        uri,
        schema,
        _adds(archive, list(wanted.values())),
        partition_by=list(_PARTITIONS),
        configuration=_CONFIGURATION,
        storage_options=options,
        post_commithook_properties=_no_checkpoint(),
    )


def _update(
    archive: Archive, table: "DeltaTable", schema: "Schema", wanted: dict[str, ArchivedFile]
) -> bool:
    """Commit the difference to the wanted files. Return whether there was any."""
    from deltalake.transaction import RemoveAction

    added = _check_columns(archive, table, schema)
    if added:
        table.alter.add_columns(added, post_commithook_properties=_no_checkpoint())
    logged = _files_of(table)
    now_ms = SystemClock().now_ns() // 1_000_000
    # Adding a file that the log has with other statistics replaces it.
    adds = _adds(
        archive, [file for file in wanted.values() if logged.get(file.path) != _stats(file)]
    )
    removes = [
        RemoveAction(path, data_change=True, deletion_timestamp=now_ms)
        for path in logged
        if path not in wanted
    ]
    if not adds and not removes:
        return bool(added)
    table.create_write_transaction(
        [*adds, *removes],
        "append",
        table.schema(),
        list(_PARTITIONS),
        post_commithook_properties=_no_checkpoint(),
    )
    return True


def _check_columns(archive: Archive, table: "DeltaTable", schema: "Schema") -> "list[Field]":
    """Return the columns that the table lacks. Raise unless all others are as they are here."""
    known = {field.name: field for field in table.schema().fields}
    wanted = {field.name: field for field in schema.fields}
    same = all(wanted.get(name) == field for name, field in known.items())
    if not same or table.metadata().partition_columns != list(_PARTITIONS):
        raise ArchiveError(
            f"{archive.shown}/{DELTA_LOG} is the log of a table with other columns: move it away "
            f"and archive again, which writes it from the manifests"
        )
    return [field for name, field in wanted.items() if name not in known]


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


def _adds(archive: Archive, files: list[ArchivedFile]) -> "list[AddAction]":
    if not files:
        return []
    folders = sorted({file.path.partition("/date=")[0] for file in files})
    stored = {one.path: one for folder in folders for one in archive.store.files(folder)}
    made = []
    for file in files:
        if file.path not in stored:
            raise ArchiveError(
                f"{archive.shown}/{file.path} is missing, though the manifest names it"
            )
        made.append(_add(file, stored[file.path].modified_ns))
    return made


def _add(file: ArchivedFile, modified_ns: int) -> "AddAction":
    from deltalake.transaction import AddAction

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


def sync_log(store: LocalStore) -> None:
    """Make the newest commit durable: the package does not sync."""
    log = store.root / DELTA_LOG
    for path in (max(log.glob("*[0-9].json")), log, store.root):
        sync(path)


@contextmanager
def _translated_errors(archive: Archive) -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        what = str(error).partition("\n")[0]  # without the package's own traceback
        raise ArchiveError(
            f"the archive is complete, but its Delta log could not be updated ({what}): if this "
            f"happens again, move {archive.shown}/{DELTA_LOG} away and archive again, which writes "
            f"it anew"
        ) from None
