"""Changes of files that are not in the database yet, and how they are written there.

Each transaction carries the queue's fencing token. After another broker took the queue over, it is
refused, and the ledger stops. Each write has a version: the order of the writes of a file, also if
a later one is committed first. So a transaction is idempotent: if its outcome is unknown, because
the connection broke or the standby was not waited for, it is sent again before the sync returns.
"""

import errno
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, groupby
from struct import Struct

import psycopg

from penstock.broker.postgres.database import Database, Session, one_line
from penstock.locks import Lock

# A row with its header fits a page of the database: it is not split once more, into a side table.
MAX_CHUNK_BYTES = 8064
MAX_STATEMENT_BYTES = 16 << 20
MAX_UNSYNCED_BYTES = 4 << 20  # more are sent before the sync, to bound memory and the sync's time
_COUNTER_BITS = 40

_FENCE = "select from queue where id = %s and token = %s for share"
_FENCE_AGAIN = "update queue set repeats = repeats + 1 where id = %s and token = %s"
_WRITE_AGAIN = (
    "insert into chunk (queue, node, version, start, data) select %s, w.* from "
    "unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[]) as w(node, version, start, "
    "data) on conflict do nothing"
)
MAKE = (
    "insert into node (queue, id, parent, name, is_directory) values (%s, %s, %s, %s, %s) "
    "on conflict do nothing"
)
MOVE = "update node set parent = %s, name = %s where queue = %s and id = %s"
REMOVE = "delete from node where queue = %s and id = %s"
UNSEAL = "update node set size = null, head = null where queue = %s and id = %s"
EMPTY = "delete from chunk where queue = %s and node = %s"
# Writes of several queues. Those of a queue whose token is out of date are left out.
WRITE = (
    "with fence as materialized (select f.id from unnest($1::bigint[], $2::bigint[]) as f(id, "
    "token), lateral (select from queue q where q.id = f.id and q.token = f.token for share) as l) "
    "insert into chunk (queue, node, version, start, data) select w.* from fence, "
    "unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[]) "
    "as w(queue, node, version, start, data) where w.queue = fence.id"
)


class Write:
    """A change of content: data from `start` on; without data, the file ends at `start`."""

    __slots__ = ("data", "node", "start", "version")

    def __init__(self, node: int, version: int, start: int, data: bytearray | None) -> None:
        self.node = node
        self.version = version
        self.start = start
        self.data = data


Change = Write | tuple[str, tuple[object, ...]]


class Commit:
    """Writes of one queue that are on their way to the database."""

    __slots__ = ("queue", "token", "writes")

    def __init__(self, queue: int, token: int, writes: "list[Write]") -> None:
        self.queue = queue
        self.token = token
        self.writes = writes


def first_number(token: int) -> int:
    """Return the first version, or number of a file, of an owner: no two owners use the same."""
    return (token << _COUNTER_BITS) + 1


class Fenced(psycopg.Error):
    """Another broker took the queue over."""


class Journal:
    """The changes of one queue's files that are not in the database yet, in their order."""

    def __init__(
        self,
        database: Database,
        queue: int,
        token: int,
        lock: Lock,
        on_lost: Callable[[], object] | None,
    ) -> None:
        """`lock` guards the changes; callers of `note_…` and `has_writes` hold it."""
        self._database = database
        self._queue = queue
        self._token = token
        self._lock = lock
        self._on_lost = on_lost
        self.sync_lock = Lock()  # one transaction at a time; taken before `lock`
        self._changes: list[Change] = []
        self._has_names = False  # whether the changes are not only writes
        self._under_way: deque[Commit] = deque()  # writes that a committer has sent, oldest first
        self._late: list[int] = []  # removed files of which such writes may arrive late
        self._versions = count(first_number(token))
        self.durable: dict[int, int] = {}  # the last version of each file that was synced
        self.rows: Counter[int] = Counter()  # in the database, by file
        self.unsynced_bytes = 0
        self.server = ""  # the server that took the last sync
        self.failure: str | None = None  # why no more writes are possible

    # -- noting changes ----------------------------------------------------------------------------

    def note_names(self, statement: str, *values: object) -> None:
        self._changes.append((statement, values))
        self._has_names = True

    def note_removed(self, node: int) -> None:
        """Note that a file or directory is removed, with its content."""
        self.durable.pop(node, None)
        self.rows.pop(node, None)
        self.note_names(REMOVE, self._queue, node)
        self.note_names(EMPTY, self._queue, node)
        if self._under_way:
            self._late.append(node)

    def note_size(self, node: int, size: int) -> None:
        self._changes.append(self.new_write(node, size, None))

    def note_data(self, node: int, start: int, data: bytes | memoryview) -> None:
        self.unsynced_bytes += len(data)
        last = self._changes[-1] if self._changes else None
        if (
            isinstance(last, Write)
            and last.node == node
            and last.data is not None
            and last.start + len(last.data) == start
            and len(last.data) + len(data) <= MAX_CHUNK_BYTES
        ):
            last.data += data
            return
        for at in range(0, len(data), MAX_CHUNK_BYTES):
            part = bytearray(data[at : at + MAX_CHUNK_BYTES])
            self._changes.append(self.new_write(node, start + at, part))

    def new_write(self, node: int, start: int, data: bytearray | None) -> Write:
        """Return a write that comes after all earlier ones."""
        return Write(node, next(self._versions), start, data)

    def has_writes(self, node: int) -> bool:
        """Return whether writes of a file are not in the database, as far as is known."""
        waiting = chain(self._changes, *(one.writes for one in self._under_way))
        return any(isinstance(change, Write) and change.node == node for change in waiting)

    # -- writing them to the database --------------------------------------------------------------

    def begin_commit(self, server: str) -> Commit | None:
        """Return what a sync would write, for a committer. It calls `end_commit` in this order.

        Return None if `sync` must do it: names changed, or the connection is to another server.
        """
        if not self.sync_lock.acquire(blocking=False):
            return None
        try:
            with self._lock:
                if self._has_names or self.failure is not None or server != self.server:
                    return None
                if self.unsynced_bytes > MAX_UNSYNCED_BYTES:
                    return None
                commit = Commit(self._queue, self._token, self._take())  # type: ignore[arg-type]
                self._under_way.append(commit)
                return commit
        finally:
            self.sync_lock.release()

    def end_commit(self, commit: Commit) -> None:
        """Note that the oldest commit under way is in the database."""
        with self._lock:
            self._under_way.remove(commit)
            self._note_durable([one for one in commit.writes if one.node not in self._late])
            if self._late and not self._under_way:
                for node in self._late:
                    self.note_names(EMPTY, self._queue, node)
                self._late.clear()

    def send_again(self, commit: Commit) -> None:
        """Write a commit whose outcome is unknown. Raise OSError if that fails."""
        try:
            self._database.repeat(lambda session, _: self._send(session, commit.writes, True))
        except BaseException as error:
            raise self._fail(error) from error

    def sync(self) -> None:
        """Write the journal to the database. An error is final: the outcome may be unknown.

        Commits under way are written as well: this thread cannot wait for the event loop.
        """
        with self.sync_lock:
            with self._lock:
                if self.failure is not None:
                    raise OSError(errno.EIO, self.failure)
                journal = self._take()
                sent: list[Change] = list(chain(*(one.writes for one in self._under_way)))
            if not journal and not sent:
                return
            try:
                self._database.repeat(
                    lambda session, again: self._send(
                        session, [*sent, *journal], again or bool(sent)
                    )
                )
            except BaseException as error:
                raise self._fail(error) from error
            with self._lock:
                self._note_durable(journal)

    def _take(self) -> list[Change]:
        journal, self._changes = self._changes, []
        self.unsynced_bytes = 0
        self._has_names = False
        return journal

    def _note_durable(self, journal: "list[Change] | list[Write]") -> None:
        for change in journal:
            if isinstance(change, Write):
                self.durable[change.node] = change.version
                self.rows[change.node] += 1
            elif change[0] is REMOVE:
                self.durable.pop(change[1][1], None)  # type: ignore[call-overload]
                self.rows.pop(change[1][1], None)  # type: ignore[call-overload]

    def _fail(self, error: BaseException) -> BaseException:
        """Take no more writes. Return the error to raise."""
        self.failure = f"PostgreSQL did not take the write: {one_line(error)}"
        if self._on_lost is not None:
            self._on_lost()
        if isinstance(error, psycopg.Error):
            number = errno.ENOSPC if error.sqlstate == "53100" else errno.EIO
            return OSError(number, self.failure)
        return error

    def _send(
        self, session: Session, journal: "list[Change] | list[Write]", is_repeat: bool
    ) -> None:
        if session.server != self.server:
            if self.server:
                self._check_not_behind(session, journal)
            self.server = session.server
        writes = [change for change in journal if isinstance(change, Write)]
        is_small = len(writes) * MAX_CHUNK_BYTES <= MAX_STATEMENT_BYTES
        if not is_repeat and is_small and len(writes) == len(journal):
            # One statement, which commits by itself.
            values, rows = values_of([Commit(self._queue, self._token, writes)])
            if session.insert(WRITE, values) != rows:
                raise self._fenced()
            return
        with session.transaction():
            if fence(session, self._queue, self._token, is_repeat=is_repeat):
                write_again(session, self._queue, journal)
            elif not (is_repeat and self._are_written(session, journal)):
                raise self._fenced()
            # Else it was committed before the other broker took over, which has it.

    def _are_written(self, session: Session, journal: "list[Change] | list[Write]") -> bool:
        """Return whether changes were committed, by their writes: perhaps by several transactions.

        Each must be there. If a commit under way is missing, the other broker has cut the log off
        at the hole, and later commits with it.
        """
        writes = [change for change in journal if isinstance(change, Write)]
        if not writes or writes[-1] is not journal[-1]:  # names, which leave no trace
            return False
        query = (
            "select count(*) from unnest(%s::bigint[], %s::bigint[]) as w(node, version) "
            "join chunk c on c.queue = %s and c.node = w.node and c.version = w.version"
        )
        nodes = [write.node for write in writes]
        versions = [write.version for write in writes]
        found: int = session.one(query, (nodes, versions, self._queue))[0]
        return found == len(writes)

    def _check_not_behind(self, session: Session, journal: "list[Change] | list[Write]") -> None:
        """Raise an error if this server lacks what another one confirmed.

        A standby that is not synchronous may have become the primary. To write on would leave a
        hole in the log. To open the queue again shows what is left.
        """
        with self._lock:
            expected = dict(self.durable)
        for change in journal:
            if not isinstance(change, Write) and change[0] is REMOVE:
                expected.pop(change[1][1], None)  # type: ignore[call-overload]
        rows = session.execute(
            "select node, max(version) from chunk where queue = %s group by node", (self._queue,)
        ).fetchall()
        found = dict(rows)
        for node, version in expected.items():
            if found.get(node, 0) < version:
                raise psycopg.DataError(
                    "the database lost what it had confirmed: a standby that was behind became "
                    "the primary (see synchronous_commit)"
                )

    def _fenced(self) -> Fenced:
        return Fenced(f"another broker took the queue over (token {self._token} is out of date)")


# -- statements ------------------------------------------------------------------------------------


def values_of(commits: Iterable[Commit]) -> tuple[list[bytes], int]:
    """Return the values of `WRITE` in PostgreSQL's binary form, and the number of rows."""
    by_queue = sorted(commits, key=lambda commit: commit.queue)  # one order of locks
    tokens = {commit.queue: commit.token for commit in by_queue}
    rows = [(_int8(commit.queue), write) for commit in by_queue for write in commit.writes]
    values = [
        _array(_INT8, [_int8(queue) for queue in tokens]),
        _array(_INT8, [_int8(token) for token in tokens.values()]),
        _array(_INT8, [queue for queue, _ in rows]),
        _array(_INT8, [_int8(write.node) for _, write in rows]),
        _array(_INT8, [_int8(write.version) for _, write in rows]),
        _array(_INT8, [_int8(write.start) for _, write in rows]),
        _array(_BYTEA, [write.data for _, write in rows]),
    ]
    return values, len(rows)


def fence(session: Session, queue: int, token: int, *, is_repeat: bool) -> bool:
    """Lock a queue against takeovers until the commit. Return False if the token is out of date.

    A repetition writes, so that its commit waits for the standby.
    """
    statement = _FENCE_AGAIN if is_repeat else _FENCE
    return session.execute(statement, (queue, token)).rowcount == 1


def write_again(session: Session, queue: int, journal: Iterable[Change]) -> None:
    """Carry out changes of which some may have been carried out before."""
    for is_write, changes in groupby(journal, lambda change: isinstance(change, Write)):
        if is_write:
            for part in _parts(changes):  # type: ignore[arg-type]
                values = (
                    queue,
                    [write.node for write in part],
                    [write.version for write in part],
                    [write.start for write in part],
                    [write.data for write in part],
                )
                session.execute(_WRITE_AGAIN, values, binary=True)
            continue
        for change in changes:
            assert isinstance(change, tuple)
            session.execute(*change)


def _parts(changes: Iterator[Write]) -> Iterator[list[Write]]:
    """Split writes into statements of a moderate size."""
    part: list[Write] = []
    size = 0
    for write in changes:
        part.append(write)
        size += len(write.data or b"")
        if size >= MAX_STATEMENT_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


# -- PostgreSQL's binary form of values ------------------------------------------------------------

_INT8, _BYTEA = 20, 17  # numbers of the types
_ARRAY = Struct(">iiIii")  # dimensions, may have nulls, type; length and first index
_NULL = b"\xff\xff\xff\xff"


def _int8(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _array(kind: int, items: Sequence[bytes | bytearray | None]) -> bytes:
    parts = [_ARRAY.pack(1, 1, kind, len(items), 1)]
    for item in items:
        parts.append(_NULL if item is None else len(item).to_bytes(4, "big"))
        if item is not None:
            parts.append(bytes(item))
    return b"".join(parts)
