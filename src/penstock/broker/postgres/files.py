"""The files of one queue, with PostgreSQL as their disk.

A directory of this machine is the page cache: every call works on it as on any other directory.
Changes are noted in a journal. A sync writes the journal to the database in one transaction, in the
order of the changes. A crash of this process is to the queue what a power cut is to files: what was
not synced is lost, and recovery handles it.

A file whose content is in the database is fetched when it is first read. Of a sealed file, the size
and the first bytes are known without that.
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from itertools import count

import psycopg

from penstock.broker.postgres.content import HEAD_BYTES, Content, Node
from penstock.broker.postgres.database import Database, Session, one_line
from penstock.broker.postgres.journal import (
    MAKE,
    MAX_CHUNK_BYTES,
    MAX_UNSYNCED_BYTES,
    MOVE,
    UNSEAL,
    Journal,
    Write,
    first_number,
)
from penstock.ledger.files import Mapping, OpenMode, OsFiles, holder_name, os_error
from penstock.ledger.folder import read_fully, write_fully
from penstock.locks import Lock

log = logging.getLogger("penstock.broker")

ROOT_NODE = 0
_FEW_ROWS = 8  # are not worth a rewrite
_FILLED_BYTES = 512  # this many zeros at the end of a write are not sent
_MAX_BEHIND_BYTES = 64 << 20  # in memory before even an event loop waits for a sync
_ZEROS = bytes(_FILLED_BYTES)


def _is_in_loop() -> bool:
    """Return whether this thread runs an event loop, which must not wait for the database."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Reopened(Exception):
    """A file that was to be sealed is written to again."""


class PostgresFiles:
    """The files of one queue, which has a number and a token, below the path `cache`."""

    keeps_order = True  # one journal, see `journal`

    def __init__(
        self,
        database: Database,
        queue: int,
        token: int,
        cache: str,
        *,
        identity: int = 0,
        on_lost: Callable[[], object] | None = None,
        on_behind: Callable[[], object] | None = None,
    ) -> None:
        """`on_lost` is called, in any thread, when no more writes are possible. `on_behind` is
        called in an event loop when a sync is due, for which the loop must not wait."""
        self._database = database
        self._queue = queue
        self._local = OsFiles()
        self._root = cache.rstrip("/")
        self._identity = identity
        self._on_behind = on_behind
        self._nodes: dict[str, int] = {self._root: ROOT_NODE}
        self._content = Content(database, queue, token)
        self._not_fetched: set[int] = set()
        self._sealed: dict[int, tuple[int, bytes]] = {}  # complete: their sizes and first bytes
        self._sealing = -1  # the file that is being sealed, until it is opened for writing
        self._complete: set[int] = set()  # closed after writing, and not sealed yet
        self._unread: dict[int, int] = {}  # open, of sealed files: file descriptor → node
        self._used: dict[int, int] = {}  # when a fetched file was last opened
        self._turns = count(1)
        self._data_ends: dict[int, int] = {}  # zeros behind them need not be sent
        self._handles: dict[int, int] = {}  # open for writing: file descriptor → node
        self._lock = Lock()  # of journal and names; never held while the database is asked
        self.journal = Journal(database, queue, token, self._lock, on_lost)
        self._numbers = count(first_number(token))
        self._load()

    @property
    def fetched_bytes(self) -> int:
        """Return how many bytes of content were read from the database."""
        return self._content.fetched_bytes

    # -- open files --------------------------------------------------------------------------------

    def open(self, path: str, mode: OpenMode) -> int:
        while True:
            with self._lock:
                node = self._nodes.get(path, ROOT_NODE)
                is_unread = node in self._not_fetched
                if not is_unread or (mode == "read" and node in self._sealed):
                    return self._open(path, mode, is_unread=is_unread)
            self._fetch(node)

    def _open(self, path: str, mode: OpenMode, *, is_unread: bool) -> int:
        fd = self._local.open(path, mode)
        if mode == "create":
            self._add(path, is_directory=False)
        node = self._nodes[path]
        self._used[node] = next(self._turns)
        if is_unread:
            self._unread[fd] = node
        elif mode != "read":
            self._handles[fd] = node
            self._complete.discard(node)
            if self._sealed.pop(node, None) is not None or node == self._sealing:
                self.journal.note_names(UNSEAL, self._queue, node)
            if node == self._sealing:
                self._sealing = -1  # what is being sealed is out of date, also if it is closed soon
        return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._unread.pop(fd, None)
            node = self._handles.pop(fd, None)
            if node in self.journal.durable or node in self._data_ends:
                self._complete.add(node)
            self._local.close(fd)

    def size(self, fd: int) -> int:
        node = self._unread.get(fd)
        if node is not None and node in self._not_fetched:
            return self._sealed[node][0]
        return self._local.size(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        node = self._unread.get(fd)
        if node is not None and node in self._not_fetched:
            size, head = self._sealed[node]
            if min(offset + length, size) <= len(head):
                return head[offset : offset + length]
            self._read(fd)
        return self._local.pread(fd, length, offset)

    def _read(self, fd: int) -> None:
        """Fetch the file behind a descriptor, if that was not necessary before."""
        node = self._unread.pop(fd, None)
        if node is not None:
            self._fetch(node)

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
        self.journal.sync()

    def write_again(self, fd: int, offset: int) -> None:
        self._local.size(fd)  # the database wrote to its disk what it confirmed

    def start_writing(self, fd: int, offset: int, length: int) -> None:
        self._local.size(fd)
        unsynced = self.journal.unsynced_bytes
        if unsynced <= MAX_UNSYNCED_BYTES:
            return
        if self._on_behind is not None and unsynced <= _MAX_BEHIND_BYTES and _is_in_loop():
            self._on_behind()
        else:
            self.journal.sync()

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        if writable:  # a store into memory would not be noted
            raise os_error(errno.EACCES if fd not in self._handles else errno.ENODEV)
        self._read(fd)
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
        self._keep_for_readers(target)
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
            self.journal.note_names(MOVE, parent, name, self._queue, self._nodes[target])

    def unlink(self, path: str) -> None:
        self._keep_for_readers(path)
        with self._lock:
            self._local.unlink(path)
            self._forget(path)

    def remove_directory(self, path: str) -> None:
        with self._lock:
            self._local.remove_directory(path)
            self._forget(path)

    def sync_directory(self, path: str) -> None:
        self._local.names(path)  # ENOENT, ENOTDIR
        self.journal.sync()

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
        self.journal.note_names(MAKE, self._queue, number, parent, name, is_directory)

    def _forget(self, path: str) -> None:
        number = self._nodes.pop(path)
        self._not_fetched.discard(number)
        self._complete.discard(number)
        self._data_ends.pop(number, None)
        self._sealed.pop(number, None)
        self._used.pop(number, None)
        self.journal.note_removed(number)

    def _parent(self, path: str) -> tuple[int, str]:
        directory, _, name = path.rpartition("/")
        return self._nodes[directory], name

    def _note_size(self, node: int, size: int) -> None:
        self.journal.note_size(node, size)
        self._data_ends[node] = min(self._data_ends.get(node, 0), size)

    def _note_data(self, node: int, start: int, data: bytes | memoryview) -> None:
        self.journal.note_data(node, start, data)
        self._data_ends[node] = max(self._data_ends.get(node, 0), start + len(data))

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

    # -- reading from the database -----------------------------------------------------------------

    def _load(self) -> None:
        """Make the directories, and an empty file for each that can be fetched."""
        self.journal.server, nodes = self._content.nodes()
        children: dict[int, list[Node]] = {}
        for node in nodes:
            children.setdefault(node.parent, []).append(node)
        waiting = [(ROOT_NODE, self._root)]
        while waiting:
            parent, directory = waiting.pop()
            for node in children.get(parent, ()):
                path = self._local.join(directory, node.name)
                self._nodes[path] = node.id
                if node.is_directory:
                    self._local.make_directory(path)
                    waiting.append((node.id, path))
                    continue
                self._local.close(self._local.open(path, "create"))
                self._not_fetched.add(node.id)
                if node.size is not None and node.head is not None:
                    self._sealed[node.id] = node.size, bytes(node.head)

    def _fetch(self, node: int) -> None:
        """Fill a file of the cache with its content."""
        with self.journal.sync_lock:
            if node not in self._not_fetched:
                return
            fd = self._open_copy(node, "write")
            try:
                end = last = rows = 0
                for version, start, data in self._content.chunks(node):
                    last = version
                    rows += 1
                    if data is None:
                        self._local.truncate(fd, start)
                        end = min(end, start)
                    else:
                        write_fully(self._local, fd, data, start)
                        end = max(end, start + len(data))
            finally:
                self._local.close(fd)
            with self._lock:
                if node not in self._not_fetched:
                    return  # it was removed meanwhile
                self._data_ends[node] = end
                self.journal.rows[node] = rows
                self._used[node] = next(self._turns)
                if last:
                    self.journal.durable[node] = last
                self._not_fetched.discard(node)

    @property
    def has_all(self) -> bool:
        """Return whether every file is in the cache, so that no read waits for the database."""
        return not self._not_fetched

    def is_fetched(self, path: str) -> bool:
        return self._nodes.get(path) not in self._not_fetched

    def prefetch(self, path: str) -> None:
        """Fetch a file, if it is there and not fetched yet."""
        node = self._nodes.get(path)
        if node in self._not_fetched:
            self._fetch(node)

    def _path_of(self, node: int) -> str:
        """Return where a file is now. Caller holds `_lock`: another may get this path."""
        for path, number in self._nodes.items():
            if number == node:
                return path
        raise os_error(errno.ENOENT)

    def _open_copy(self, node: int, mode: OpenMode) -> int:
        with self._lock:
            return self._local.open(self._path_of(node), mode)

    def _keep_for_readers(self, path: str) -> None:
        """Fetch a file that is about to be removed, if it is open and was not read yet."""
        node = self._nodes.get(path, ROOT_NODE)
        if node in self._not_fetched and node in list(self._unread.values()):
            self._fetch(node)

    # -- sealing, and the size of the cache --------------------------------------------------------

    def seal_complete(self) -> None:
        """Seal the files that were closed after writing. Rewrite those in many small rows."""
        for node in list(self._complete):
            with self._lock:
                if not self._is_at_rest(node):
                    continue
                self._sealing = node
            try:
                self._seal(node)
            except FileNotFoundError:
                pass  # it was removed, or its queue was closed
            except psycopg.Error as error:  # the next owner fetches more, that is all
                log.warning("a file of queue %d is not sealed: %s", self._queue, one_line(error))
            finally:
                self._sealing = -1

    def _is_at_rest(self, node: int) -> bool:
        """Return whether a file is complete, and all of it in the database."""
        return (
            self.journal.failure is None
            and node in self._complete
            and node not in self._handles.values()
            and not self.journal.has_writes(node)
        )

    def _may_be_sealed(self, node: int) -> bool:
        """Return whether a file is as it was when its sealing began."""
        return node == self._sealing and self._is_at_rest(node)

    def _seal(self, node: int) -> None:
        fd = self._open_copy(node, "read")
        try:
            size = self._local.size(fd)
            head = read_fully(self._local, fd, HEAD_BYTES, 0)
            least = size // MAX_CHUNK_BYTES + 1
            rewritten: list[Write] = []
            if self.journal.rows[node] > max(_FEW_ROWS, 2 * least):
                rewritten = self._whole(fd, node, size)
        finally:
            self._local.close(fd)

        def work(session: Session, is_repeat: bool) -> bool:
            with session.transaction():
                if not self._content.seal(session, node, size, head, rewritten):
                    return False
                # It is locked. If it was opened again, its unsealing may have been committed, and
                # what was written to it since: the size and the content are those of before.
                with self._lock:
                    if not self._may_be_sealed(node):
                        raise _Reopened
            return True

        try:
            is_sealed = self._database.repeat(work)
        except _Reopened:
            return
        with self._lock:
            if is_sealed and self._may_be_sealed(node):
                self._complete.discard(node)
                self._sealed[node] = size, head
            if is_sealed and rewritten and node in self._nodes.values():
                self.journal.rows[node] = len(rewritten)
                self.journal.durable[node] = max(
                    rewritten[-1].version, self.journal.durable.get(node, 0)
                )

    def _whole(self, fd: int, node: int, size: int) -> list[Write]:
        """Return the content of a file as few writes."""
        writes = []
        for start in range(0, size, MAX_CHUNK_BYTES):
            data = read_fully(self._local, fd, min(MAX_CHUNK_BYTES, size - start), start)
            writes.append(self.journal.new_write(node, start, bytearray(data)))
        return writes

    def cached(self) -> list[tuple[int, int, int]]:
        """Return the files that can be fetched again: when they were used, size and number."""
        with self._lock:
            return [
                (self._used.get(node, 0), size, node)
                for node, (size, _) in self._sealed.items()
                if node not in self._not_fetched and node not in self._handles.values()
            ]

    def evict(self, node: int) -> None:
        """Remove the content of a sealed file from the cache. Open readers keep it."""
        with self.journal.sync_lock, self._lock:
            if node in self._sealed:
                path = self._path_of(node)
                empty = f"{self._root}/.evicted"
                self._local.close(self._local.open(empty, "create"))
                self._local.rename(empty, path)
                self._not_fetched.add(node)
