"""Read a queue of persist-queue that is stored in SQLite.

Each queue is a table: `queue_NAME`, `filo_queue_NAME`, `unique_queue_NAME`, or one whose messages
have a status (`ack_queue_NAME` and so on). Payloads are what its serializer wrote, by default
pickles: they are imported as they are, and are never unpickled.
"""

from collections.abc import Iterator
from pathlib import Path

from penstock.importing.databases import as_bytes, read_database, tables
from penstock.importing.record import Imported, ImportFailed, State, content_type_of
from penstock.model import NS

_FILE = "data.db"
_KINDS = ("ack_unique_queue_", "ack_filo_queue_", "ack_queue_", "unique_queue_", "filo_queue_")
_KINDS_IN_ORDER = (*_KINDS, "queue_")
_UNACKED, _ACKED, _FAILED = 2, 5, 9
_REASON = "ack_failed in persist-queue"


class PersistQueueDatabase:
    """A queue in a directory of persist-queue, or in its database file."""

    max_attempts: int | None = None

    def __init__(self, path: str, *, queue: str | None = None) -> None:
        """Choose the queue. `queue` may be left out if the database has only one."""
        self._path = Path(path) / _FILE if Path(path).is_dir() else Path(path)
        self.problems: list[str] = []
        with read_database(self._path) as database:
            found = {_name(one): one for one in tables(database) if one.startswith(_KINDS_IN_ORDER)}
        if not found:
            raise ImportFailed(f"{self._path} has no tables of persist-queue.")
        if queue is None and len(found) == 1:
            [queue] = found
        if queue not in found:
            raise ImportFailed(
                f"{self._path} has the queues {', '.join(found) or '(none)'}: "
                "choose one with --queue."
            )
        self._table = found[queue]
        self.name = f"persist-queue {queue!r} at {path}"

    def messages(self) -> Iterator[Imported]:
        has_status = self._table.startswith("ack_")
        order = "DESC" if "filo_" in self._table else "ASC"
        columns = "_id, data, timestamp" + (", status" if has_status else "")
        quoted = self._table.replace('"', '""')
        with read_database(self._path) as database:
            for row in database.execute(f'SELECT {columns} FROM "{quoted}" ORDER BY _id {order}'):
                number, data, timestamp = row[:3]
                payload = as_bytes(data)
                state, failures = _fate(int(row[3])) if has_status else ("waiting", 0)
                yield Imported(
                    origin=f"row {number}",
                    payload=payload,
                    timestamp_ns=round((timestamp or 0) * NS),
                    state=state,
                    content_type=content_type_of(payload),
                    failures=failures,
                    reason=_REASON if state == "dead" else "",
                )


def _name(table: str) -> str:
    prefix = next(one for one in _KINDS_IN_ORDER if table.startswith(one))
    return table.removeprefix(prefix)


def _fate(status: int) -> tuple[State, int]:
    """Return the state of a message with this status, and its failed deliveries."""
    if status == _ACKED:
        return "done", 0
    if status == _FAILED:
        return "dead", 1
    return "waiting", 0  # one that was taken and not acknowledged is delivered again, as there
