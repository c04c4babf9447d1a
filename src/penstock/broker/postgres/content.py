"""What the database holds of the files of one queue: their names, and their content in rows.

A file that is complete is sealed: the row of its name says how large it is and how it begins. So
the next owner opens a queue without fetching every file of it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.broker.postgres.database import Database, Session
from penstock.broker.postgres.journal import EMPTY, Write, fence, write_again

HEAD_BYTES = 64  # the header of a segment
_FETCH_ROWS = 512  # of 8 KB


class Node(NamedTuple):
    """A file or directory. Size and head are None unless it is a sealed file."""

    id: int
    parent: int
    name: str
    is_directory: bool
    size: int | None
    head: bytes | None


class Content:
    """The files of one queue in the database. Every call blocks."""

    def __init__(self, database: Database, queue: int, token: int) -> None:
        self._database = database
        self._queue = queue
        self._token = token
        self.fetched_bytes = 0  # so far

    def nodes(self) -> tuple[str, list[Node]]:
        """Return the server that answers, and all files and directories."""

        def read(session: Session) -> tuple[str, list[Node]]:
            query = "select id, parent, name, is_directory, size, head from node where queue = %s"
            rows = session.execute(query, (self._queue,)).fetchall()
            return session.server, [Node._make(row) for row in rows]

        return self._database.read(read)

    def chunks(self, node: int) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield the writes of a file in their order: version, start, data."""
        version = 0
        while True:
            values = (self._queue, node, version, _FETCH_ROWS)
            rows = self._database.read(
                lambda session, values=values: session.execute(  # type: ignore[misc]
                    "select version, start, data from chunk where queue = %s and node = %s "
                    "and version > %s order by version limit %s",
                    values,
                    binary=True,
                ).fetchall()
            )
            for row in rows:
                self.fetched_bytes += len(row[2] or b"")
                yield row
            if len(rows) < _FETCH_ROWS:
                return
            version = rows[-1][0]

    def seal(
        self, session: Session, node: int, size: int, head: bytes, rewritten: Sequence[Write]
    ) -> bool:
        """Seal a file, in a transaction of the caller; return False if it is not this broker's.

        `rewritten`: its whole content, in place of the rows that it has; empty: leave them.
        """
        if not fence(session, self._queue, self._token, is_repeat=False):
            return False
        lock = "select from node where queue = %s and id = %s for update"
        if session.one(lock, (self._queue, node)) is None:
            return False
        if rewritten:
            session.execute(EMPTY, (self._queue, node))
            write_again(session, self._queue, rewritten)
        update = "update node set size = %s, head = %s where queue = %s and id = %s"
        session.execute(update, (size, head, self._queue, node))
        return True
