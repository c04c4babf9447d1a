"""Move everything that a store holds into an empty store of either kind.

Both stores keep a queue as the same files. So a queue is copied file by file: ids, seqs, receipts
and settings stay. At the end every row of both stores is read again and compared.

The target has a document that marks it as unfinished. A broker refuses to serve it, and the same
move can be run again after a crash: it keeps the queues that are complete, and copies the others.
"""

import json
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import NamedTuple, Protocol

from penstock.broker.embedded.layout import Layout
from penstock.broker.store import Documents, NamespaceInfo
from penstock.clock import SystemClock
from penstock.codec import Entry
from penstock.errors import BrokerError, InvalidInput, NotALedger, NotEmpty
from penstock.ledger import Ledger
from penstock.ledger.files import Files, OsFiles
from penstock.ledger.folder import write_fully
from penstock.ledger.log import Log
from penstock.ledger.queue_directory import LOCK_NAME, SOCKET_NAMES
from penstock.ledger.reading import Cursor
from penstock.names import QueueName

MARK = "moving.json"  # the document of a target that is not complete
_PIECE_BYTES = 1 << 20
_SYNC_BYTES = 4 << 20
_BATCH = 1000
_LOGS = ("messages", "events")
_OF_THE_WRITER = SOCKET_NAMES | {LOCK_NAME}


class Moved(NamedTuple):
    """What was moved: of one queue, or of all."""

    messages: int = 0
    events: int = 0
    size_bytes: int = 0


class MoveFailed(BrokerError):
    """The target does not hold what the source holds."""


Copy = Callable[[str, Files], int]  # fills a directory; returns the bytes written


class Site(Protocol):
    """A store whose files can be copied, while no broker uses it."""

    @property
    def name(self) -> str:
        """Return its location, without a password."""

    def open(self, *, create: bool) -> None:
        """Keep brokers away. Raise an error if there is no store, unless `create`."""

    def close(self) -> None: ...

    def keep(self) -> None:
        """Stay the owner of what is open; called often. Raise BrokerError if a broker started."""

    def namespaces(self) -> list[NamespaceInfo]: ...

    def save_namespace(self, namespace: NamespaceInfo) -> None: ...

    def queues(self) -> list[QueueName]:
        """Return the queues that are complete, sorted."""

    def enter(self, queue: QueueName) -> tuple[str, Files]:
        """Return the directory of a queue, to be read, and the files that hold it."""

    def leave(self, queue: QueueName) -> None: ...

    def add(self, queue: QueueName, identity: int, copy: Copy) -> None:
        """Let `copy` fill a new queue. It is there when all is durable, or not at all."""

    def documents(self) -> dict[str, bytes]: ...

    def save_document(self, name: str, content: bytes | None) -> None: ...


class DirectorySite:
    """The data directory of a broker."""

    def __init__(self, path: str, files: Files | None = None) -> None:
        self.name = path
        self._files = files or OsFiles()
        self._layout = Layout(self._files, path)

    def open(self, *, create: bool) -> None:
        if not create and not (self._files.exists(self.name) and self._layout.is_there()):
            raise NotALedger(f"{self.name} is not the data directory of a broker")
        self._layout.open(SystemClock())

    def close(self) -> None:
        self._layout.close()

    def keep(self) -> None:
        """Do nothing: the LOCK is kept as long as the process lives."""

    def namespaces(self) -> list[NamespaceInfo]:
        return self._layout.namespaces()

    def save_namespace(self, namespace: NamespaceInfo) -> None:
        self._layout.save_namespace(namespace)

    def queues(self) -> list[QueueName]:
        spaces = self._layout.namespaces()
        return sorted(queue for space in spaces for queue in self._layout.queues(space.name))

    def enter(self, queue: QueueName) -> tuple[str, Files]:
        return self._layout.enter(queue)

    def leave(self, queue: QueueName) -> None:
        """Do nothing: what is read from a directory needs no room."""

    def add(self, queue: QueueName, identity: int, copy: Copy) -> None:
        self._layout.add_queue(queue, copy)

    def documents(self) -> dict[str, bytes]:
        found = {name: self._layout.load_document(name) for name in self._layout.document_names()}
        return {name: content for name, content in found.items() if content is not None}

    def save_document(self, name: str, content: bytes | None) -> None:
        self._layout.replace_document(name, self._layout.load_document(name), content)


async def refuse_unfinished(documents: Documents) -> None:
    """Raise BrokerError if a store is the target of a move that is not complete."""
    mark = await documents.load_document(MARK)
    if mark is not None:
        source = json.loads(mark)["from"]
        raise BrokerError(
            f"this store holds a part of {source}, because `penstock migrate-store` was "
            f"interrupted: run it again to the end before a broker uses the store"
        )


def move_store(
    source: Site, target: Site, on_queue: Callable[[QueueName, Moved], None]
) -> dict[QueueName, Moved]:
    """Copy a store into an empty one, and compare both row by row.

    `on_queue` is called when a queue was compared. Raise NotEmpty if the target holds anything that
    an interrupted move of the same source did not put there, MoveFailed if a row differs.
    """
    if source.name == target.name:
        raise InvalidInput(f"FROM and TO are the same store: {source.name}")
    source.open(create=False)
    try:
        target.open(create=True)
        try:
            return _move(source, target, on_queue)
        finally:
            target.close()
    finally:
        source.close()


def _move(
    source: Site, target: Site, on_queue: Callable[[QueueName, Moved], None]
) -> dict[QueueName, Moved]:
    documents = source.documents()
    if MARK in documents:
        raise BrokerError(f"{source.name} is itself the target of a move that was interrupted")
    _mark(source, target)

    def keep() -> None:
        source.keep()
        target.keep()

    keep()
    namespaces = source.namespaces()
    for namespace in namespaces:
        target.save_namespace(namespace._replace(max_queues=0, max_bytes=0))  # they are over soon
    queues, complete = source.queues(), set(target.queues())
    for queue in queues:
        if queue not in complete:
            _copy_queue(source, target, queue, keep)
    for name, content in documents.items():
        target.save_document(name, content)
    for namespace in namespaces:
        target.save_namespace(namespace)
    found = {}
    for queue in queues:
        found[queue] = _compare_queue(source, target, queue, keep)
        on_queue(queue, found[queue])
    keep()
    _compare("the queues", source.queues(), target.queues())
    _compare("the namespaces", sorted(namespaces), sorted(target.namespaces()))
    moved = {name: content for name, content in target.documents().items() if name != MARK}
    _compare("the documents", documents, moved)
    target.save_document(MARK, None)
    return found


def _mark(source: Site, target: Site) -> None:
    """Mark the target as unfinished; raise NotEmpty if it is in use."""
    documents = target.documents()
    mark = documents.get(MARK)
    if mark is not None:
        begun = json.loads(mark)["from"]
        if begun != source.name:
            raise NotEmpty(
                f"{target.name} holds a part of {begun}: run that move again, or empty it first"
            )
        return
    queues, namespaces = target.queues(), target.namespaces()
    if queues or documents or namespaces:
        held = (
            f"it holds {len(queues)} queues in {len(namespaces)} namespaces"
            if queues or namespaces
            else "a broker has been started on it"
        )
        raise NotEmpty(
            f"{target.name} is not empty ({held}): move the store into a new directory, or into a "
            f"new schema of the database (--schema)"
        )
    target.save_document(MARK, json.dumps({"from": source.name}).encode())


# -- copying ---------------------------------------------------------------------------------------


def _copy_queue(source: Site, target: Site, queue: QueueName, keep: Callable[[], None]) -> None:
    path, files = source.enter(queue)
    try:
        with Ledger.open(path, files=files, read_only=True) as ledger:
            identity = ledger.identity

        def copy(target_path: str, target_files: Files) -> int:
            return _copy_tree(files, path, target_files, target_path, keep)

        target.add(queue, identity, copy)
    finally:
        source.leave(queue)


def _copy_tree(
    source: Files, path: str, target: Files, target_path: str, keep: Callable[[], None]
) -> int:
    """Copy a directory with all in it; return the bytes. The files of the writer are left out."""
    target.make_directory(target_path)
    copied = 0
    for name in source.names(path):
        if name in _OF_THE_WRITER:
            continue
        inner, target_inner = source.join(path, name), target.join(target_path, name)
        if _is_directory(source, inner):
            copied += _copy_tree(source, inner, target, target_inner, keep)
        else:
            copied += _copy_file(source, inner, target, target_inner, keep)
    target.sync_directory(target_path)
    return copied


def _copy_file(
    source: Files, path: str, target: Files, target_path: str, keep: Callable[[], None]
) -> int:
    fd = source.open(path, "read")
    try:
        target_fd = target.open(target_path, "create")
        try:
            at = unsynced = 0
            while piece := source.pread(fd, _PIECE_BYTES, at):
                write_fully(target, target_fd, piece, at)
                at += len(piece)
                unsynced += len(piece)
                if unsynced >= _SYNC_BYTES:
                    target.fdatasync(target_fd)
                    unsynced = 0
                keep()
            target.fdatasync(target_fd)
            return at
        finally:
            target.close(target_fd)
    finally:
        source.close(fd)


def _is_directory(files: Files, path: str) -> bool:
    try:
        files.names(path)
    except NotADirectoryError:
        return False
    return True


# -- comparing -------------------------------------------------------------------------------------


def _compare_queue(source: Site, target: Site, queue: QueueName, keep: Callable[[], None]) -> Moved:
    """Compare every row of both logs, and every other file. Raise MoveFailed at a difference."""
    one, other = source.enter(queue), target.enter(queue)
    try:
        with _opened(*one) as left, _opened(*other) as right:
            what = f"queue {queue}"
            _compare(f"the identity of {what}", left.identity, right.identity)
            messages = _compare_logs(what, left.messages, right.messages, keep)
            events = _compare_logs(what, left.events, right.events, keep)
            size_bytes = left.messages.size_bytes() + left.events.size_bytes()
        names = list(_other_files(one[1], one[0]))
        _compare(f"the files of {what}", names, list(_other_files(other[1], other[0])))
        for name in names:
            keep()
            _compare(f"{name} of {what}", _content(*one, name), _content(*other, name))
        return Moved(messages, events, size_bytes)
    finally:
        source.leave(queue)
        target.leave(queue)


def _opened(path: str, files: Files) -> Ledger:
    return Ledger.open(path, files=files, read_only=True)


def _compare_logs(what: str, left: Log, right: Log, keep: Callable[[], None]) -> int:
    _compare(f"the first seq of {what}", left.first_seq, right.first_seq)
    _compare(f"the next seq of {what}", left.next_seq, right.next_seq)
    count = 0
    for one, other in zip_longest(_entries(left), _entries(right)):
        if one != other:
            seqs = [entry.seq for entry in (one, other) if entry is not None]
            raise MoveFailed(f"{what}: seq {min(seqs)} differs between the two stores")
        count += 1
        if not count % _BATCH:
            keep()
    return count


def _entries(log: Log) -> Iterator[Entry]:
    cursor = Cursor(log, log.first_seq, unsynced=True)
    while entries := cursor.read(_BATCH):
        yield from entries


def _other_files(files: Files, path: str, below: str = "") -> Iterator[str]:
    """Return the files of a queue that are not its logs or its lock, relative to its directory."""
    for name in files.names(path):
        if name in _OF_THE_WRITER or (not below and name in _LOGS):
            continue
        inner = files.join(path, name)
        if _is_directory(files, inner):
            yield from _other_files(files, inner, f"{below}{name}/")
        else:
            yield f"{below}{name}"


def _content(path: str, files: Files, name: str) -> bytes:
    for part in name.split("/"):
        path = files.join(path, part)
    fd = files.open(path, "read")
    try:
        return files.pread(fd, files.size(fd), 0)
    finally:
        files.close(fd)


def _compare(what: str, left: object, right: object) -> None:
    if left != right:
        raise MoveFailed(f"{what} differ between the two stores")
