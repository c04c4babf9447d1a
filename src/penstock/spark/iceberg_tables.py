"""The archive as Iceberg tables, one for each queue, without copying its files.

The manifests are authoritative, as for the Delta log: one commit adds the files that only the
manifest has, and removes those that only the table has. Without a difference there is no commit.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.archive import Archive, ArchivedFile, ArchiveError, ArchiveManifest
from penstock.archive.object_stores import ObjectStore
from penstock.archive.places import Place
from penstock.archive.stores import LocalStore
from penstock.checking import check_text
from penstock.errors import InvalidInput, PenstockError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_RECORD = "_iceberg.json"  # which catalog has the tables of this archive
_DEFAULT_NAMESPACE = "default"  # of a queue outside a data directory
_IDENTITY = "penstock.queue-identity"
_PROPERTIES = {
    # Engines must not delete the archive's files when they expire snapshots.
    "gc.enabled": "false",
    # Bounds of these columns let readers skip files.
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.seq": "full",
    "write.metadata.metrics.column.timestamp": "full",
    "write.metadata.metrics.column.timestamp_ns": "full",
}


def check_installed() -> None:
    """Raise PenstockError if the package is missing."""
    try:
        import pyiceberg  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyiceberg"):
            raise
        raise PenstockError(
            "an Iceberg table needs the package 'pyiceberg', which is not installed; "
            "install Penstock with the extra iceberg (pip install '.[iceberg]' in its checkout)"
        ) from None


def catalog_of(archive: Archive) -> str | None:
    """Return the name of the catalog that has the tables of this archive; None if it has none."""
    try:
        data = archive.store.read(_RECORD)
    except FileNotFoundError:
        return None
    try:
        return str(json.loads(data)["catalog"])
    except (ValueError, TypeError, KeyError):
        raise ArchiveError(
            f"{archive.shown}/{_RECORD} cannot be read: remove it, and archive again with the name "
            f"of the Iceberg catalog"
        ) from None


def check_catalog(name: str) -> None:
    """Raise InvalidInput if no catalog of this name is configured."""
    load_named(check_text("iceberg", name))


def follow_manifests(archive: Archive, columns: pa.Schema, catalog_name: str) -> None:
    """Give the tables of a catalog exactly the files of the manifests."""
    place = archive.store.place if isinstance(archive.store, ObjectStore) else None
    catalog = load_named(catalog_name, None if place is None else _properties(place))
    recorded = catalog_of(archive)
    if recorded not in (None, catalog_name):
        raise ArchiveError(
            f"{archive.shown} has its Iceberg tables in the catalog {recorded!r}, not in "
            f"{catalog_name!r}: remove {_RECORD} to leave those as they are"
        )
    for manifest in archive.manifests() if archive.exists() else ():
        with _translated(archive, manifest.queue):
            _follow_one(archive, manifest, columns, catalog)
    if recorded is None:
        archive.store.write(_RECORD, json.dumps({"catalog": catalog_name}).encode())


def load_named(name: str, properties: Mapping[str, str] | None = None) -> "Catalog":
    """Return a catalog as pyiceberg is configured, with these properties instead of its own."""
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **(properties or {}))
    except (ValueError, KeyError) as error:
        raise InvalidInput(
            f"the Iceberg catalog {name!r} is not configured ({error}): describe it in "
            f".pyiceberg.yaml, or set PYICEBERG_CATALOG__{name.upper()}__URI and its other settings"
        ) from None


def _properties(place: Place) -> dict[str, str]:
    """Return the options of a place as pyiceberg names them."""
    names = {
        "access_key": "s3.access-key-id",
        "secret_key": "s3.secret-access-key",
        "session_token": "s3.session-token",
        "region": "s3.region",
        "endpoint": "s3.endpoint",
        "account_key": "adls.account-key",
        "sas_token": "adls.sas-token",
    }
    found = {names[name]: value for name, value in place.options.items() if name in names}
    if place.anonymous:
        found["s3.anonymous"] = "true"
    if place.account:
        found["adls.account-name"] = place.account
    return found


def _follow_one(
    archive: Archive, manifest: ArchiveManifest, columns: pa.Schema, catalog: "Catalog"
) -> None:
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    table = _table(archive, manifest, columns, catalog)
    wanted = {_url(archive, file): file for file in manifest.files}
    known: dict[str, DataFile] = {
        task.file.file_path: task.file for task in table.scan().plan_files()
    }
    # Another file of the same name has other statistics.
    stale = {
        path
        for path, file in known.items()
        if path not in wanted
        or (file.record_count, file.file_size_in_bytes)
        != (wanted[path].rows, wanted[path].size_bytes)
    }
    missing = [path for path in wanted if path not in known or path in stale]
    with table.transaction() as transaction:
        _add_columns(transaction, columns)
        if not stale and not missing:
            return
        producer: Any = transaction.update_snapshot(
            snapshot_properties={"penstock.next-seq": str(manifest.next_seq)}
        )
        with producer.overwrite() if stale else producer.fast_append() as changes:
            for path in sorted(stale):
                changes.delete_data_file(known[path])
            for path in missing:
                changes.append_data_file(
                    parquet_file_to_data_file(table.io, transaction.table_metadata, path)
                )


def _table(
    archive: Archive, manifest: ArchiveManifest, columns: pa.Schema, catalog: "Catalog"
) -> "Table":
    """Return the table of a queue. Create it if there is none."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
    from pyiceberg.transforms import DayTransform

    namespace, _, name = manifest.queue.rpartition("/")
    identifier = (namespace or _DEFAULT_NAMESPACE, name)
    identity = f"{manifest.identity:08x}"
    try:
        table = catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        catalog.create_namespace_if_not_exists(identifier[:1])
        table = catalog.create_table(
            identifier, _optional(columns), properties={**_PROPERTIES, _IDENTITY: identity}
        )
        with table.transaction() as transaction:
            schema = table.schema()
            transaction.set_properties(
                {"schema.name-mapping.default": schema.name_mapping.model_dump_json()}
            )
            with transaction.update_spec() as spec:
                spec.add_field("timestamp", DayTransform(), "date")
    if table.properties.get(_IDENTITY) != identity:
        raise ArchiveError(
            f"the Iceberg table {'.'.join(identifier)} is not of this queue (its {_IDENTITY} is "
            f"{table.properties.get(_IDENTITY)}, not {identity}): use another catalog, or drop it"
        )
    return table


def _add_columns(transaction: Any, columns: pa.Schema) -> None:
    """Add columns that the archive has and the table lacks. Old files have nulls there."""
    known = {field.name for field in transaction.table_metadata.schema().fields}
    if all(name in known for name in columns.names):
        return
    with transaction.update_schema() as update:
        update.union_by_name(_optional(columns))
    mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
    transaction.set_properties({"schema.name-mapping.default": mapping})


def _optional(columns: pa.Schema) -> pa.Schema:
    """Return the columns with Iceberg's types: it has no number of one byte."""
    return pa.schema(
        [(one.name, pa.int32() if one.type == pa.int8() else one.type) for one in columns]
    )


def _url(archive: Archive, file: ArchivedFile) -> str:
    store = archive.store
    if isinstance(store, LocalStore):
        return f"file://{store.root}/{file.path}"
    if isinstance(store, ObjectStore):
        return f"{store.place.url}/{file.path}"
    raise InvalidInput(
        f"{archive.shown} is on Hadoop's file systems, which pyiceberg does not read: archive to a "
        f"directory or an object store"
    )


@contextmanager
def _translated(archive: Archive, queue: str) -> Iterator[None]:
    from pyiceberg.exceptions import CommitFailedException

    try:
        yield
    except PenstockError:
        raise
    except CommitFailedException as error:
        raise ArchiveError(
            f"the archive of {queue!r} in {archive.shown} is complete, but another program changed "
            f"its Iceberg table at the same time ({error}): run this job again"
        ) from None
    except (OSError, ValueError) as error:
        raise ArchiveError(
            f"the archive of {queue!r} in {archive.shown} is complete, but its Iceberg table could "
            f"not be updated: {error}"
        ) from None
