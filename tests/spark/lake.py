"""Delta and Iceberg tables for streams: a catalog, writes as tasks make them, and reads."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from penstock.spark.delta_stream import DeltaTarget
from penstock.spark.iceberg_stream import IcebergTarget
from penstock.spark.table_sink import DataFile, TableTarget, write_files

SCHEMA = pa.schema([("seq", pa.int64()), ("payload", pa.binary())])
FORMATS = ("delta", "iceberg")
QUERY = "7d3c6d91-26f3-4d2f-9d0f-0123456789ab"


def make_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure a catalog in SQLite, as a user does."""
    (tmp_path / "warehouse").mkdir()
    for key, value in {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/catalog.db",
        "WAREHOUSE": f"file://{tmp_path}/warehouse",
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key}", value)
    # pyiceberg reads its configuration once, when it is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def name_of(kind: str, place: Path, table: str = "orders") -> str:
    return str(place / table) if kind == "delta" else f"lake.shop.{table}"


def target_of(name: str) -> TableTarget:
    if name.startswith("lake."):
        return IcebergTarget.parse(name)
    return DeltaTarget.parse(name)


def written(target: TableTarget, numbers: list[int], schema: pa.Schema = SCHEMA) -> list[DataFile]:
    """Write files as a task does."""
    values = {"seq": numbers, "payload": [b"%d" % n for n in numbers]}
    columns = [pa.array(values.get(one.name, ["new"] * len(numbers)), one.type) for one in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return list(write_files(target.opened(), schema, iter([batch])))


def rows(name: str, version: int | None = None) -> pa.Table:
    """Return a table, or one of its versions: the number of rows' commits before it."""
    if not name.startswith("lake."):
        return pa.table(DeltaTable(name, version=version).to_pyarrow_table())
    table = load_catalog("lake").load_table(name.removeprefix("lake."))
    snapshots = sorted(table.snapshots(), key=lambda one: one.sequence_number or 0)
    snapshot = None if version is None else snapshots[version - 1].snapshot_id
    return table.scan(snapshot_id=snapshot).to_arrow()


def seqs(name: str, version: int | None = None) -> list[int]:
    found: list[int] = rows(name, version)["seq"].to_pylist()
    return sorted(found)
