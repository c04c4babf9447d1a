"""A Delta table that a stream writes to, with the package `deltalake`: Spark needs no jar for it.

Each commit has Delta's `txn` action with the query id and the batch id. That is how Delta itself
makes a stream exactly-once, and any reader of the log sees it. A second one has the plan time.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.archive import ArchiveError, ArchiveStore
from penstock.archive.object_stores import ObjectStore
from penstock.archive.places import Place, place_of
from penstock.archive.stores import LocalStore
from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.spark.delta_log import check_installed, storage_options, sync_log
from penstock.spark.table_sink import (
    FIRST_IS_RECORDED,
    DataFile,
    Values,
    added_columns,
    is_repeated,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

_ATTEMPTS = 20  # of a commit, while other writers are first


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """A Delta table in a directory or an object store."""

    place: Place

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "DeltaTarget":
        return cls(Place(**fields["place"]))

    @classmethod
    def parse(cls, location: str) -> "DeltaTarget":
        """Return the table at a location. Raise if none can be there."""
        check_installed()
        place = place_of(location)
        if place.kind == "hadoop":
            raise InvalidInput(
                f"{place.shown} is on Hadoop's file systems, where no Delta log can be written "
                f"from Python: stream to a directory or an object store"
            )
        made = cls(place)
        made._store().check()
        return made

    def prepare(self, schema: pa.Schema) -> None:
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction

        created = Transaction(FIRST_IS_RECORDED, 1)
        wanted = Schema.from_arrow(schema)
        with self._translated():
            if not DeltaTable.is_deltatable(self._uri, storage_options=self._options):
                DeltaTable.create(
                    self._uri,
                    wanted,
                    mode="ignore",
                    storage_options=self._options,
                    commit_properties=CommitProperties(app_transactions=[created]),
                )
            table = self._table()
            if partitions := table.metadata().partition_columns:
                raise InvalidInput(
                    f"{self.place.shown} is partitioned by {', '.join(partitions)}: a stream "
                    f"writes tables without partitions, so name another one"
                )
            fields = {field.name: field for field in wanted.fields}
            known = {field.name: str(field.type) for field in table.schema().fields}
            types = {name: str(field.type) for name, field in fields.items()}
            if added := added_columns(known, types, self.place.shown):
                table.alter.add_columns([fields[name] for name in added])
            self._sync()

    def opened(self) -> "DeltaTarget":
        return self

    def write(self, name: str, data: bytes) -> None:
        self._store().write(name, data)

    def commit(
        self, query_id: str, batch_id: int, planned_us: int, files: Sequence[DataFile]
    ) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        adds: list[Any] = [_add(file, SystemClock().now_ns() // 1_000_000) for file in files]
        # Not repeated by the package: another driver of this query may have been first.
        planned_id = f"{query_id}.planned"
        recorded = [Transaction(query_id, batch_id), Transaction(planned_id, planned_us)]
        properties = CommitProperties(max_commit_retries=0, app_transactions=recorded)
        with self._translated():
            for attempt in range(1, _ATTEMPTS + 1):
                table = self._table()
                done = table.transaction_version(query_id), table.transaction_version(planned_id)
                if is_repeated(
                    (batch_id, planned_us),
                    done,
                    query_id,
                    self.place.shown,
                    first_is_recorded=table.transaction_version(FIRST_IS_RECORDED) is not None,
                ):
                    return
                try:
                    table.create_write_transaction(
                        adds, "append", table.schema(), commit_properties=properties
                    )
                except CommitFailedError:
                    if attempt == _ATTEMPTS:
                        raise
                    continue
                self._sync()
                return

    @property
    def _uri(self) -> str:
        return self.place.root if self.place.kind == "local" else self.place.url

    @property
    def _options(self) -> dict[str, str] | None:
        return None if self.place.kind == "local" else storage_options(self.place)

    def _table(self) -> "DeltaTable":
        from deltalake import DeltaTable

        return DeltaTable(self._uri, storage_options=self._options)

    def _store(self) -> ArchiveStore:
        return (
            LocalStore(self.place.root) if self.place.kind == "local" else ObjectStore(self.place)
        )

    def _sync(self) -> None:
        store = self._store()
        if isinstance(store, LocalStore):
            sync_log(store)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            yield
        except DeltaError as error:
            what = str(error).partition("\n")[0]  # without the package's own traceback
            raise ArchiveError(
                f"the Delta table {self.place.shown} could not be changed ({what}): start the "
                f"stream again with the same checkpoint, and it goes on"
            ) from None


def _add(file: DataFile, now_ms: int) -> "AddAction":
    from deltalake.transaction import AddAction

    stats = {
        "numRecords": file.rows,
        "minValues": _texts(file.lowest),
        "maxValues": _texts(file.highest),
        "nullCount": file.nulls,
    }
    return AddAction(
        path=file.name,
        size=file.size_bytes,
        partition_values={},
        modification_time=now_ms,
        data_change=True,
        stats=json.dumps(stats),
    )


def _texts(values: Values) -> Values:
    return {name: _text(value) for name, value in values.items()}


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else value
