"""Tables that follow an archive: its Delta log, and its Iceberg tables.

An archive job updates those that it is asked for. Jobs that remove files update all that the
archive has.
"""

import pyarrow as pa

from penstock.archive import Archive
from penstock.spark import delta_log, iceberg_tables


def check_asked(*, delta: bool, iceberg: str | None) -> None:
    """Raise if tables that a job asks for cannot be made."""
    if delta:
        delta_log.check_installed()
    if iceberg is not None:
        iceberg_tables.check_installed()
        iceberg_tables.check_catalog(iceberg)


def make_asked(archive: Archive, columns: pa.Schema, *, delta: bool, iceberg: str | None) -> None:
    """Make or update the tables that a job asks for. Caller holds the lock."""
    if delta:
        delta_log.follow_manifests(archive, columns)
    if iceberg is not None:
        iceberg_tables.follow_manifests(archive, columns, iceberg)


def check_followers(archive: Archive) -> None:
    """Raise if the tables that an archive has cannot be updated."""
    check_asked(delta=delta_log.exists(archive), iceberg=iceberg_tables.catalog_of(archive))


def follow(archive: Archive, columns: pa.Schema) -> None:
    """Update the tables that an archive has: files that they name are removed."""
    catalog = iceberg_tables.catalog_of(archive)
    make_asked(archive, columns, delta=delta_log.exists(archive), iceberg=catalog)
