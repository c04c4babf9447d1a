"""Open the SQLite database of another queue for reading."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from penstock.importing.record import ImportFailed


@contextmanager
def read_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database that must exist, read only. Errors of SQLite become ImportFailed."""
    if not path.is_file():
        raise ImportFailed(f"{path} is not a file.")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("BEGIN")  # one moment for all that is read
            yield database
    except sqlite3.Error as error:
        raise ImportFailed(f"{path} cannot be read as an SQLite database: {error}.") from None


def tables(database: sqlite3.Connection) -> list[str]:
    """Return the names of the tables, sorted."""
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for (name,) in found]


def as_bytes(value: bytes | str) -> bytes:
    """Return a stored value as a payload."""
    return value.encode() if isinstance(value, str) else value
