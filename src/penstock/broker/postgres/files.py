"""The files of one queue, with PostgreSQL as their disk.

A directory of this machine is the page cache: every call works on it as on any other directory.
Changes are noted in a journal. A sync writes the journal to the database in one transaction, in the
order of the changes. A crash of this process is to the queue what a power cut is to files: what was
not synced is lost, and recovery handles it.

Each transaction carries the queue's fencing token. After another broker took the queue over, it is
refused, and the ledger stops. A transaction is idempotent: if its outcome is unknown, because the
connection broke or the standby was not waited for, it is sent again before the sync returns.
"""

import errno
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, count
from threading import Lock

import psycopg

from penstock.broker.postgres.database import Database, Session, one_line
from penstock.broker.postgres.journal import (
    EMPTY,
    MAKE,
    MAX_CHUNK_BYTES,
    MAX_STATEMENT_BYTES,
    MOVE,
    REMOVE,
    WRITE,
    Change,
    Commit,
    Write,
    fence,
    values_of,
    write_again,
)
from penstock.ledger.files import Mapping, OpenMode, OsFiles, holder_name, os_error
from penstock.ledger.folder import write_fully

ROOT_NODE = 0
MAX_UNSYNCED_BYTES = 4 << 20  # more are sent before the sync, to bound memory and the sync's time
# A version, and the number of a file, is the token and a counter: no two owners use the same.
_COUNTER_BITS = 40
_FETCH_ROWS = 64
_FILLED_BYTES = 512  # this many zeros at the end of a write are not sent
_ZEROS = bytes(_FILLED_BYTES)


class Fenced(psycopg.Error):
    """Another broker took the queue over."""


class PostgresFiles:
    """The files of one queue, which has a number and a token, below the path `cache`."""

    def __init__(
        self,
        database: Database,
        queue: int,
        token: int,
        cache: str,
        *,
        identity: int = 0,
        on_lost: Callable[[], object] | None = None,
    ) -> None:
        """`on_lost` is called, in any thread, when no more writes are possible."""
        self._database = database
        self._queue = queue
        self._token = token
        self._local = OsFiles()
        self._root = cache.rstrip("/")
        self._identity = identity
        self._on_lost = on_lost
        self._nodes: dict[str, int] = {self._root: ROOT_NODE}
        self._not_fetched: set[int] = set()
        self._data_ends: dict[int, int] = {}  # zeros behind them need not be sent
        self._handles: dict[int, int] = {}  # open for writing: file descriptor → node
        self._lock = Lock()  # of journal and names; never held while the database is asked
        self._sync_lock = Lock()  # one transaction at a time; taken before `_lock`
        self._journal: list[Change] = []
        self._has_names = False  # whether the journal changes names
        self._under_way: deque[Commit] = deque()  # writes that a committer has sent, oldest first
        self._removed: list[int] = []  # files of which such writes may arrive late
        self._versions = count((token << _COUNTER_BITS) + 1)
        self._numbers = count((token << _COUNTER_BITS) + 1)
        self._durable: dict[int, int] = {}  # the last version of each node that was synced
        self._unsynced_bytes = 0
        self._server = ""  # the server that took the last sync
        self._failure: str | None = None
        self._load()

    @property
    def failure(self) -> str | None:
        """Return why no more writes are possible, or None."""
        return self._failure

    # -- open files --------------------------------------------------------------------------------

    def open(self, path: str, mode: OpenMode) -> int:
        with self._lock:
            is_fetched = self._nodes.get(path, ROOT_NODE) not in self._not_fetched
        if not is_fetched:
            self._fetch(path)
        with self._lock:
            fd = self._local.open(path, mode)
            if mode == "create":
                self._add(path, is_directory=False)
            if mode != "read":
                self._handles[fd] = self._nodes[path]
            return fd

    def close(self, fd: int) -> None:
        self._handles.pop(fd, None)
        self._local.close(fd)

    def size(self, fd: int) -> int:
        return self._local.size(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        return self._local.pread(fd, length, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        with self._lock:
            written = self._local.pwrite(fd, data, offset)
            if written:
                self._note_write(fd, offset, data[:written])
            return written

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            self._local.truncate(fd, size)
            self._note_size(self._handles[fd], size)

    def fdatasync(self, fd: int) -> None:
        self._local.size(fd)  # EBADF if it is closed
        self._sync()

    def write_again(self, fd: int, offset: int) -> None:
        self._local.size(fd)  # the database wrote to its disk what it confirmed

    def start_writing(self, fd: int, offset: int, length: int) -> None:
        self._local.size(fd)
        if self._unsynced_bytes > MAX_UNSYNCED_BYTES:
            self._sync()

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        if writable:  # a store into memory would not be noted
            raise os_error(errno.EACCES if fd not in self._handles else errno.ENODEV)
        return self._local.map(fd, size, writable=False)

    def lock(self, fd: int) -> bool:
        return self._local.lock(fd)

    # -- names -------------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        with self._lock:
            is_new = not self._local.exists(path)
            self._local.make_directory(path)
            if is_new:
                self._add(path, is_directory=True)

    def names(self, path: str) -> list[str]:
        return self._local.names(path)

    def exists(self, path: str) -> bool:
        return self._local.exists(path)

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._local.rename(source, target)
            if source == target:
                return
            if target in self._nodes:
                self._forget(target)
            inner = [path for path in self._nodes if path.startswith(f"{source}/")]
            for path in [source, *inner]:
                self._nodes[target + path[len(source) :]] = self._nodes.pop(path)
            parent, name = self._parent(target)
            self._note_names(MOVE, parent, name, self._queue, self._nodes[target])

    def unlink(self, path: str) -> None:
        with self._lock:
            self._local.unlink(path)
            self._forget(path)

    def remove_directory(self, path: str) -> None:
        with self._lock:
            self._local.remove_directory(path)
            self._forget(path)

    def sync_directory(self, path: str) -> None:
        self._local.names(path)  # ENOENT, ENOTDIR
        self._sync()

    def free_bytes(self, path: str) -> int:
        return self._local.free_bytes(path)

    def file_system(self, path: str) -> str:
        return "postgresql"

    def join(self, directory: str, name: str) -> str:
        return self._local.join(directory, name)

    def holder_name(self) -> tuple[int, str]:
        return holder_name()

    def random_identity(self) -> int:
        """Return the identity that the database gave the queue: no other queue has it."""
        return self._identity or self._local.random_identity()

    # -- the journal; the caller holds `_lock` -----------------------------------------------------

    def _add(self, path: str, *, is_directory: bool) -> None:
        number = self._nodes[path] = next(self._numbers)
        parent, name = self._parent(path)
        self._note_names(MAKE, self._queue, number, parent, name, is_directory)

    def _forget(self, path: str) -> None:
        number = self._nodes.pop(path)
        self._not_fetched.discard(number)
        self._data_ends.pop(number, None)
        self._durable.pop(number, None)
        self._note_names(REMOVE, self._queue, number)
        self._note_names(EMPTY, self._queue, number)
        if self._under_way:
            self._removed.append(number)

    def _note_names(self, statement: str, *values: object) -> None:
        self._journal.append((statement, values))
        self._has_names = True

    def _parent(self, path: str) -> tuple[int, str]:
        directory, _, name = path.rpartition("/")
        return self._nodes[directory], name

    def _note_size(self, node: int, size: int) -> None:
        self._journal.append(Write(node, next(self._versions), size, None))
        self._data_ends[node] = min(self._data_ends.get(node, 0), size)

    def _note_write(self, fd: int, start: int, data: bytes | memoryview) -> None:
        node = self._handles[fd]
        if len(data) >= _FILLED_BYTES and data[-_FILLED_BYTES:] == _ZEROS:
            whole = bytes(data)
            rest = b"" if whole == bytes(len(whole)) else whole.rstrip(b"\0")
            if start + len(rest) >= self._data_ends.get(node, 0):
                # Filled ahead: only the size changes.
                if rest:
                    self._note_data(node, start, rest)
                self._note_size(node, self._local.size(fd))
                return
        self._note_data(node, start, data)

    def _note_data(self, node: int, start: int, data: bytes | memoryview) -> None:
        self._data_ends[node] = max(self._data_ends.get(node, 0), start + len(data))
        self._unsynced_bytes += len(data)
        last = self._journal[-1] if self._journal else None
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
            self._journal.append(Write(node, next(self._versions), start + at, part))

    # -- writing to the database -------------------------------------------------------------------

    def begin_commit(self, server: str) -> Commit | None:
        """Return what a sync would write, for a committer. It calls `end_commit` in this order.

        Return None if `_sync` must do it: names changed, or the connection is to another server.
        """
        if not self._sync_lock.acquire(blocking=False):
            return None
        try:
            with self._lock:
                if self._has_names or self._failure is not None or server != self._server:
                    return None
                if self._unsynced_bytes > MAX_UNSYNCED_BYTES:
                    return None
                commit = Commit(self._queue, self._token, self._take_journal())  # type: ignore[arg-type]
                self._under_way.append(commit)
                return commit
        finally:
            self._sync_lock.release()

    def end_commit(self, commit: Commit) -> None:
        """Note that the oldest commit under way is in the database."""
        with self._lock:
            self._under_way.remove(commit)
            self._note_durable(commit.writes)
            if self._removed and not self._under_way:
                for number in self._removed:
                    self._note_names(EMPTY, self._queue, number)
                self._removed.clear()

    def send_again(self, commit: Commit) -> None:
        """Write a commit whose outcome is unknown. Raise OSError if that fails."""
        try:
            self._database.repeat(lambda session, _: self._send(session, commit.writes, True))
        except BaseException as error:
            raise self._fail(error) from error

    def _sync(self) -> None:
        """Write the journal to the database. An error is final: the outcome may be unknown.

        Commits under way are written as well: this thread cannot wait for the event loop.
        """
        with self._sync_lock:
            with self._lock:
                if self._failure is not None:
                    raise OSError(errno.EIO, self._failure)
                journal = self._take_journal()
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

    def _take_journal(self) -> list[Change]:
        journal, self._journal = self._journal, []
        self._unsynced_bytes = 0
        self._has_names = False
        return journal

    def _note_durable(self, journal: "list[Change] | list[Write]") -> None:
        for change in journal:
            if isinstance(change, Write):
                self._durable[change.node] = change.version
            elif change[0] is REMOVE:
                self._durable.pop(change[1][1], None)  # type: ignore[call-overload]

    def _fail(self, error: BaseException) -> BaseException:
        """Take no more writes. Return the error to raise."""
        self._failure = f"PostgreSQL did not take the write: {one_line(error)}"
        if self._on_lost is not None:
            self._on_lost()
        if isinstance(error, psycopg.Error):
            number = errno.ENOSPC if error.sqlstate == "53100" else errno.EIO
            return OSError(number, self._failure)
        return error

    def _send(
        self, session: Session, journal: "list[Change] | list[Write]", is_repeat: bool
    ) -> None:
        if session.server != self._server:
            if self._server:
                self._check_not_behind(session, journal)
            self._server = session.server
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
            elif not (is_repeat and self._is_written(session, journal[-1:])):
                raise self._fenced()
            # Else it was committed before the other broker took over, which has it.

    def _is_written(self, session: Session, last: "list[Change] | list[Write]") -> bool:
        """Return whether a transaction was committed, by its last change."""
        query = "select 1 from chunk where queue = %s and node = %s and version = %s"
        return any(
            session.one(query, (self._queue, one.node, one.version)) is not None
            for one in last
            if isinstance(one, Write)
        )

    def _check_not_behind(self, session: Session, journal: "list[Change] | list[Write]") -> None:
        """Raise an error if this server lacks what another one confirmed.

        A standby that is not synchronous may have become the primary. To write on would leave a
        hole in the log. To open the queue again shows what is left.
        """
        with self._lock:
            expected = dict(self._durable)
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

    # -- reading from the database -----------------------------------------------------------------

    def _load(self) -> None:
        """Make the directories, and an empty file for each that can be fetched."""

        def nodes(session: Session) -> list[tuple[int, int, str, bool]]:
            self._server = session.server
            query = "select id, parent, name, is_directory from node where queue = %s"
            return session.execute(query, (self._queue,)).fetchall()

        rows = self._database.read(nodes)
        children: dict[int, list[tuple[int, str, bool]]] = {}
        for number, parent, name, is_directory in rows:
            children.setdefault(parent, []).append((number, name, is_directory))
        waiting = [(ROOT_NODE, self._root)]
        while waiting:
            parent, directory = waiting.pop()
            for number, name, is_directory in children.get(parent, ()):
                path = self._local.join(directory, name)
                self._nodes[path] = number
                if is_directory:
                    self._local.make_directory(path)
                    waiting.append((number, path))
                else:
                    self._local.close(self._local.open(path, "create"))
                    self._not_fetched.add(number)

    def _fetch(self, path: str) -> None:
        """Fill a file of the cache with its content."""
        with self._sync_lock:
            node = self._nodes.get(path, ROOT_NODE)
            if node not in self._not_fetched:
                return
            fd = self._local.open(path, "write")
            try:
                end = last = 0
                for version, start, data in self._chunks(node):
                    last = version
                    if data is None:
                        self._local.truncate(fd, start)
                        end = min(end, start)
                    else:
                        write_fully(self._local, fd, data, start)
                        end = max(end, start + len(data))
            finally:
                self._local.close(fd)
            with self._lock:
                self._data_ends[node] = end
                if last:
                    self._durable[node] = last
                self._not_fetched.discard(node)

    def _chunks(self, node: int) -> Iterator[tuple[int, int, bytes | None]]:
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
            yield from rows
            if len(rows) < _FETCH_ROWS:
                return
            version = rows[-1][0]
