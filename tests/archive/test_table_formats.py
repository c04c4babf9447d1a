"""Delta and Iceberg tables have the files of the manifests: each once, at every point in time."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.config import Config

from penstock.archive import Archive, ArchiveError, ArchiveManifest, archive_at
from penstock.archive.keeping import (
    excess_of,
    merge,
    merges_of,
    remove_excess,
    replace_merged,
    sweep,
)
from penstock.archive.object_stores import ObjectStore
from penstock.errors import InvalidInput
from penstock.spark import delta_log, iceberg_tables
from penstock.spark.jobs.archive import archive_schema
from penstock.spark.table_formats import check_asked, follow, make_asked
from tests.archive.made_archives import add_file, filled, messages
from tests.archive.s3_server import S3Server, s3_process

SCHEMA = archive_schema()
OLD_SCHEMA = pa.schema([field for field in SCHEMA if field.name != "content_type"])


@pytest.fixture
def catalog_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A catalog in SQLite, as a user configures it."""
    (tmp_path / "warehouse").mkdir()
    for key, value in {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/catalog.db",
        "WAREHOUSE": f"file://{tmp_path}/warehouse",
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__TESTS__{key}", value)
    # pyiceberg reads its configuration once, when it is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    return "tests"


@pytest.fixture(scope="module")
def s3_apart() -> Iterator[S3Server]:
    with s3_process() as server:
        yield server


@pytest.fixture(params=["directory", "S3"])
def archive(request: pytest.FixtureRequest, tmp_path: Path, s3_apart: S3Server) -> Archive:
    if request.param == "S3":
        return archive_at(s3_apart.location(tmp_path.name))
    return archive_at(str(tmp_path / "archive"))


def catalog_with(archive: Archive, name: str) -> Catalog:
    if not isinstance(archive.store, ObjectStore):
        return load_catalog(name)
    options = archive.store.place.options
    return load_catalog(
        name,
        **{
            "s3.endpoint": options["endpoint"],
            "s3.access-key-id": options["access_key"],
            "s3.secret-access-key": options["secret_key"],
            "s3.region": options["region"],
        },
    )


def delta_table(archive: Archive, version: int | None = None) -> DeltaTable:
    if isinstance(archive.store, ObjectStore):
        place = archive.store.place
        options = delta_log.storage_options(place)
        return DeltaTable(place.url, version=version, storage_options=options)
    return DeltaTable(archive.shown, version=version)


def seqs(table: pa.Table) -> list[int]:
    found: list[int] = table.column("seq").to_pylist()
    return sorted(found)


def compact(archive: Archive, manifest: ArchiveManifest) -> None:
    for one in merges_of(manifest, 1 << 30):
        replace_merged(manifest, one, merge(archive.store, one, SCHEMA), 1)
    archive.commit(manifest)


# -- Iceberg ---------------------------------------------------------------------------------------


def test_an_iceberg_table_has_the_messages_of_its_queue(
    archive: Archive, catalog_name: str
) -> None:
    filled(archive, "shop/orders", days=2)
    filled(archive, "mails", days=1)
    iceberg_tables.follow_manifests(archive, SCHEMA, catalog_name)
    catalog = catalog_with(archive, catalog_name)
    orders = catalog.load_table("shop.orders")
    found = orders.scan().to_arrow()
    assert seqs(found) == list(range(1, 81))
    assert seqs(catalog.load_table("default.mails").scan().to_arrow()) == list(range(1, 41))
    row = orders.scan(row_filter="seq = 7").to_arrow().to_pylist()[0]
    (wanted,) = messages(7, 1).to_pylist()
    assert {**row, "headers": dict(row["headers"])} == {
        **wanted,
        "headers": dict(wanted["headers"]),
    }
    # The day is a partition, and the seqs of a file are known: other files are not opened.
    assert len(list(orders.scan(row_filter="seq = 7").plan_files())) == 1
    day = "timestamp >= '2023-11-15T00:00:00+00:00'"
    assert len(list(orders.scan(row_filter=day).plan_files())) == 4


def test_an_iceberg_table_is_changed_only_if_the_archive_was(
    archive: Archive, catalog_name: str
) -> None:
    manifest = filled(archive, days=1)
    for _ in range(3):
        iceberg_tables.follow_manifests(archive, SCHEMA, catalog_name)
    catalog = catalog_with(archive, catalog_name)
    assert len(catalog.load_table("shop.orders").snapshots()) == 1
    add_file(archive, manifest, messages(41, 10, 1), 1)
    for _ in range(2):
        iceberg_tables.follow_manifests(archive, SCHEMA, catalog_name)
    table = catalog.load_table("shop.orders")
    assert len(table.snapshots()) == 2
    assert seqs(table.scan().to_arrow()) == list(range(1, 51))


def test_iceberg_snapshots_show_the_archive_as_it_was(archive: Archive, catalog_name: str) -> None:
    manifest = filled(archive, days=2)
    iceberg_tables.follow_manifests(archive, SCHEMA, catalog_name)
    compact(archive, manifest)
    follow(archive, SCHEMA)  # finds the catalog by itself
    remove_excess(manifest, excess_of(manifest, max_bytes=manifest.files[1].size_bytes), 2)
    archive.commit(manifest)
    follow(archive, SCHEMA)
    table = catalog_with(archive, catalog_name).load_table("shop.orders")
    first, second, third = [one.snapshot_id for one in table.snapshots()]
    assert len(table.inspect.files()) == 1
    for snapshot, wanted in ((first, range(1, 81)), (second, range(1, 81)), (third, range(41, 81))):
        assert seqs(table.scan(snapshot_id=snapshot).to_arrow()) == list(wanted)
    # After the grace period the past ends where its files do.
    sweep(archive, manifest, before_ns=2**62, now_ns=2**62)
    assert seqs(table.scan().to_arrow()) == list(range(41, 81))
    with pytest.raises(FileNotFoundError):
        table.scan(snapshot_id=first).to_arrow()


def test_a_column_added_later_is_null_in_old_files_of_an_iceberg_table(
    archive: Archive, catalog_name: str
) -> None:
    manifest = ArchiveManifest("shop/orders", 7, first_seq=1, next_seq=1)
    add_file(archive, manifest, messages(1, 4, without=("content_type",)))
    iceberg_tables.follow_manifests(archive, OLD_SCHEMA, catalog_name)
    table = catalog_with(archive, catalog_name).load_table("shop.orders")
    assert "content_type" not in table.scan().to_arrow().column_names
    add_file(archive, manifest, messages(5, 4))
    iceberg_tables.follow_manifests(archive, SCHEMA, catalog_name)
    table.refresh()
    found = table.scan().to_arrow().sort_by("seq")
    assert found.column("content_type").to_pylist() == [None] * 4 + [
        "text/plain",
        None,
        "text/plain",
        None,
    ]
    old = table.scan(snapshot_id=table.snapshots()[0].snapshot_id).to_arrow()
    assert seqs(old) == [1, 2, 3, 4]
    assert "content_type" not in old.column_names


def test_an_iceberg_table_of_another_queue_is_left_alone(
    archive: Archive, catalog_name: str, tmp_path: Path
) -> None:
    filled(archive, days=1)
    iceberg_tables.follow_manifests(archive, SCHEMA, catalog_name)
    other = archive_at(str(tmp_path / "other"))
    manifest = filled(other, days=1)
    manifest.identity = 8
    other.commit(manifest)
    with pytest.raises(ArchiveError, match=r"shop\.orders is not of this queue"):
        iceberg_tables.follow_manifests(other, SCHEMA, catalog_name)


def test_a_catalog_that_is_not_configured_is_named() -> None:
    with pytest.raises(InvalidInput, match="'nowhere' is not configured"):
        check_asked(delta=False, iceberg="nowhere")


def test_an_archive_keeps_to_one_catalog(
    archive: Archive, catalog_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(archive, days=1)
    iceberg_tables.follow_manifests(archive, SCHEMA, catalog_name)
    assert iceberg_tables.catalog_of(archive) == catalog_name
    archive.store.write("_iceberg.json", b'{"catalog": "another"}')
    with pytest.raises(ArchiveError, match="in the catalog 'another'"):
        iceberg_tables.follow_manifests(archive, SCHEMA, catalog_name)


# -- Delta -----------------------------------------------------------------------------------------


def test_delta_versions_show_the_archive_as_it_was(archive: Archive) -> None:
    manifest = filled(archive, days=2)
    make_asked(archive, SCHEMA, delta=True, iceberg=None)
    compact(archive, manifest)
    follow(archive, SCHEMA)  # finds the log by itself
    remove_excess(manifest, excess_of(manifest, max_bytes=manifest.files[1].size_bytes), 2)
    archive.commit(manifest)
    follow(archive, SCHEMA)
    follow(archive, SCHEMA)  # no difference: no commit
    assert delta_table(archive).version() == 2
    for version, wanted in ((0, range(1, 81)), (1, range(1, 81)), (2, range(41, 81))):
        found = delta_table(archive, version).to_pyarrow_table(columns=["seq"])
        assert seqs(found) == list(wanted)


def test_a_column_added_later_is_null_in_old_files_of_a_delta_table(archive: Archive) -> None:
    manifest = ArchiveManifest("shop/orders", 7, first_seq=1, next_seq=1)
    add_file(archive, manifest, messages(1, 2, without=("content_type",)))
    delta_log.follow_manifests(archive, OLD_SCHEMA)
    add_file(archive, manifest, messages(3, 2))
    delta_log.follow_manifests(archive, SCHEMA)
    found = delta_table(archive).to_pyarrow_table(columns=["seq", "content_type"]).sort_by("seq")
    assert found.column("content_type").to_pylist() == [None, None, "text/plain", None]
    assert "content_type" not in delta_table(archive, 0).to_pyarrow_table().column_names
    last = delta_table(archive).version()
    delta_log.follow_manifests(archive, SCHEMA)
    assert delta_table(archive).version() == last


def test_a_delta_table_with_a_column_that_the_archive_lost_is_left_alone(
    archive: Archive,
) -> None:
    filled(archive, days=1)
    delta_log.follow_manifests(archive, SCHEMA)
    with pytest.raises(ArchiveError, match="a table with other columns"):
        delta_log.follow_manifests(archive, OLD_SCHEMA)
