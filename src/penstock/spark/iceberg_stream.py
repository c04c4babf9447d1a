"""An Iceberg table that a stream writes to, with the package `pyiceberg`: Spark needs no jar.

The commit of a micro-batch sets a property of the table, the last batch of the query, together with
the new snapshot. Unlike a property of the snapshot it stays when old snapshots are expired.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from penstock.archive import ArchiveError
from penstock.archive.stores import LocalStore
from penstock.errors import InvalidInput, PenstockError
from penstock.spark.iceberg_tables import check_installed, load_named
from penstock.spark.table_sink import FIRST_IS_RECORDED, DataFile, added_columns, is_repeated

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_LAST_BATCH = "penstock.stream.{}"  # by query id
_PLANNED = "penstock.stream.{}.planned"  # when that batch was planned
_PROPERTIES = {
    # A stream commits every few seconds, and each commit writes a file of metadata.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    FIRST_IS_RECORDED: "true",
}
_ATTEMPTS = 20  # of a commit, while other writers are first


@dataclass(frozen=True, slots=True)
class IcebergTarget:
    """A table of a catalog."""

    catalog: str
    identifier: str  # namespace.table
    # How to reach the catalog, as the user's process knows it, and then the table's files.
    properties: dict[str, str] = field(repr=False)
    location: str = ""
    file_properties: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, name: str) -> "IcebergTarget":
        """Return the table `catalog.namespace.table`. Raise if the catalog is not configured."""
        check_installed()
        catalog, _, identifier = name.partition(".")
        if "." not in identifier or "/" in name or not all(name.split(".")):
            raise InvalidInput(
                f"{name!r} is not an Iceberg table: write catalog.namespace.table, with a catalog "
                f"that is configured for pyiceberg"
            )
        known = load_named(catalog).properties
        return cls(catalog, identifier, {one: str(value) for one, value in known.items()})

    @property
    def shown(self) -> str:
        return f"{self.catalog}.{self.identifier}"

    def prepare(self, schema: pa.Schema) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        with self._translated():
            catalog = self._catalog()
            try:
                table = catalog.load_table(self.identifier)
            except NoSuchTableError:
                catalog.create_namespace_if_not_exists(self.identifier.rpartition(".")[0])
                table = catalog.create_table_if_not_exists(
                    self.identifier, schema, properties=_PROPERTIES
                )
            if not table.spec().is_unpartitioned():
                raise InvalidInput(
                    f"{self.shown} is partitioned: a stream writes tables without partitions, so "
                    f"name another one"
                )
            self._add_columns(table, schema)

    def _add_columns(self, table: "Table", schema: pa.Schema) -> None:
        """Add columns that the table lacks. Old files have nulls there."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        stored = schema_to_pyarrow(table.schema(), include_field_ids=False)
        known = {one.name: str(_plain(one.type)) for one in stored}
        wanted = {one.name: str(one.type) for one in schema}
        added = added_columns(known, wanted, self.shown)
        if not added and "schema.name-mapping.default" in table.properties:
            return
        with table.transaction() as transaction:
            if added:
                with transaction.update_schema() as update:
                    update.union_by_name(schema)
            # Files have names of columns, not Iceberg's ids.
            mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({"schema.name-mapping.default": mapping})

    def opened(self) -> "IcebergTarget":
        with self._translated():
            table = self._catalog().load_table(self.identifier)
        properties = {name: str(value) for name, value in table.io.properties.items()}
        return replace(self, location=table.location(), file_properties=properties)

    def write(self, name: str, data: bytes) -> None:
        from pyiceberg.io import load_file_io

        with self._translated():
            if self.location.startswith(("/", "file:")):
                root = unquote(urlsplit(self.location).path)
                LocalStore(root).write(f"data/{name}", data)  # which syncs it
                return
            url = f"{self.location}/data/{name}"
            with load_file_io(self.file_properties, url).new_output(url).create() as stream:
                stream.write(data)

    def commit(
        self, query_id: str, batch_id: int, planned_us: int, files: Sequence[DataFile]
    ) -> None:
        from pyiceberg.exceptions import CommitFailedException

        with self._translated():
            catalog = self._catalog()
            for attempt in range(1, _ATTEMPTS + 1):
                table = catalog.load_table(self.identifier)
                known = table.properties
                done = (_LAST_BATCH.format(query_id), _PLANNED.format(query_id))
                last, last_us = (int(known[one]) if one in known else None for one in done)
                batch = batch_id, planned_us
                if is_repeated(
                    batch,
                    (last, last_us),
                    query_id,
                    self.shown,
                    first_is_recorded=FIRST_IS_RECORDED in known,
                ):
                    return
                try:
                    self._append(table, query_id, batch, files)
                except CommitFailedException:
                    if attempt == _ATTEMPTS:
                        raise
                    continue
                return

    def _append(
        self, table: "Table", query_id: str, batch: tuple[int, int], files: Sequence[DataFile]
    ) -> None:
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        # The package would repeat a commit that another was faster than, without the check for the
        # batch. Only the copy in memory is changed.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        batch_id, planned_us = map(str, batch)
        noted = {"penstock.query-id": query_id, "penstock.batch-id": batch_id}
        last = {_LAST_BATCH.format(query_id): batch_id, _PLANNED.format(query_id): planned_us}
        with table.transaction() as transaction:
            transaction.set_properties(last)
            if not files:
                return
            snapshot = transaction.update_snapshot(snapshot_properties=noted)
            with snapshot.fast_append() as changes:
                for file in files:
                    url = f"{table.location()}/data/{file.name}"
                    changes.append_data_file(
                        parquet_file_to_data_file(table.io, transaction.table_metadata, url)
                    )

    def _catalog(self) -> "Catalog":
        return load_named(self.catalog, self.properties)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

        try:
            yield
        except PenstockError:
            raise
        except (CommitFailedException, NoSuchTableError, OSError, ValueError) as error:
            raise ArchiveError(
                f"the Iceberg table {self.shown} could not be changed ({error}): start the stream "
                f"again with the same checkpoint, and it goes on"
            ) from None


def _plain(of: pa.DataType) -> pa.DataType:
    """Return a type with the small offsets that streams have; pyiceberg prefers large ones."""
    if pa.types.is_large_string(of):
        return pa.string()
    if pa.types.is_large_binary(of):
        return pa.binary()
    if pa.types.is_map(of):
        return pa.map_(_plain(of.key_type), _plain(of.item_type))
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        return pa.list_(_plain(of.value_type))
    if pa.types.is_struct(of):
        return pa.struct([(one.name, _plain(one.type)) for one in of])
    return of
