"""Read the tasks of huey that wait in SQLite: those to run now, and those scheduled.

Tasks are what huey's serializer wrote, by default pickles: they are imported as they are, and are
never unpickled. Huey does not store when a task was enqueued, so the time of the import counts.
Results and locks (the table `kv`) are not messages and stay behind.
"""

from collections.abc import Iterator
from pathlib import Path

from penstock.clock import Clock, SystemClock
from penstock.importing.databases import as_bytes, read_database, tables
from penstock.importing.record import MAX_PROBLEMS, Imported, ImportFailed, content_type_of
from penstock.model import NS

_HIGHEST = 9


class HueyDatabase:
    """The tasks of one huey in an SQLite file."""

    max_attempts: int | None = None

    def __init__(self, path: str, *, queue: str | None = None, clock: Clock | None = None) -> None:
        """Choose the huey by its name. It may be left out if the file has only one."""
        self._path = Path(path)
        self.problems: list[str] = []
        self._now_ns = (clock or SystemClock()).now_ns()
        with read_database(self._path) as database:
            if not {"task", "schedule"} <= set(tables(database)):
                raise ImportFailed(f"{path} has no tables of huey.")
            named = "SELECT queue FROM task UNION SELECT queue FROM schedule ORDER BY queue"
            found = [name for (name,) in database.execute(named)]
        if queue is None and len(found) == 1:
            [queue] = found
        if queue not in found:
            raise ImportFailed(
                f"{path} has tasks of {', '.join(found) or '(none)'}: choose one with --queue."
            )
        self._queue = queue
        self.name = f"huey {queue!r} at {path}"

    def messages(self) -> Iterator[Imported]:
        with read_database(self._path) as database:
            waiting = "SELECT id, data, priority FROM task WHERE queue = ? ORDER BY id"
            for number, data, priority in database.execute(waiting, (self._queue,)):
                yield self._imported(f"task {number}", as_bytes(data), priority=priority)
            later = (
                "SELECT id, data, timestamp FROM schedule WHERE queue = ? ORDER BY timestamp, id"
            )
            for number, data, timestamp in database.execute(later, (self._queue,)):
                deliver_ns = round(timestamp * NS)
                yield self._imported(
                    f"scheduled task {number}", as_bytes(data), deliver_ns=deliver_ns
                )

    def _imported(
        self, origin: str, payload: bytes, *, priority: float = 0, deliver_ns: int | None = None
    ) -> Imported:
        lowered = min(max(int(priority), 0), _HIGHEST) if priority else None
        if lowered != (priority or None):
            self._note(f"{origin}: the priority {priority:g} became {lowered}")
        return Imported(
            origin=origin,
            payload=payload,
            timestamp_ns=self._now_ns,
            priority=lowered,
            content_type=content_type_of(payload),
            deliver_ns=deliver_ns,
        )

    def _note(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
