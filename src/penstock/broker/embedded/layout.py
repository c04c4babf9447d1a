"""Where things are in a broker's data directory.

    LOCK                     one broker at a time
    _broker/<document>       keys, webhooks, … of the broker itself
    _trash/<number>/         queues that were deleted and are being removed
    <namespace>/namespace.json
    <namespace>/<queue>/     a queue's directory, as the embedded library has it

The directories of names are those of `penstock.names`: none begins with _ or has a dot, so none
collides with the rest.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

from penstock.broker.store import NamespaceInfo
from penstock.checking import check_local
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, LedgerError, LedgerLocked
from penstock.ledger.files import Files, OsFiles
from penstock.ledger.folder import Folder, remove_tree
from penstock.ledger.queue_directory import (
    LOCK_NAME,
    DirectoryLock,
    is_made,
    make_with_parents,
)
from penstock.names import BROKER_DIRECTORY, QueueName, directory_of, is_name, name_of_directory
from penstock.queue.core import QueueCore

_NAMESPACE_FILE = "namespace.json"
_MAX_NAMESPACE_BYTES = 1 << 20
_MAX_DOCUMENT_BYTES = 64 << 20
_LOCK_WAIT_NS = 10_000_000_000
_LOCK_RETRY_S = 0.01


class Layout:
    """The data directory. Every call may raise OSError; all are for a thread, not the loop."""

    has_locks_of_queues = True  # each queue's directory has a lock as well
    can_delete = True

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._root = Folder(
            files, check_local(path, "a broker's data is in a directory, such as ./data")
        )
        self._documents = self._root.child(BROKER_DIRECTORY)
        self._trash = self._root.child("_trash")
        self._lock = DirectoryLock(self._root)

    def open(self, clock: Clock, url: str = "") -> None:
        """Become the broker of this directory, and finish what a crash interrupted.

        `url`: where others reach the broker, if it is known already.
        """
        self._make_root()
        self._lock.take(clock, url)
        for folder in (self._documents, self._trash):
            folder.make()
            folder.sweep()
        self._root.sync()
        self._empty_trash()

    def _make_root(self) -> None:
        if not self._root.exists():
            make_with_parents(self._root)
        elif not self._documents.exists():
            self._root.parent().sync()  # a process may have died right after making it

    def is_there(self) -> bool:
        """Return whether a broker used the directory, or queues were put into it by hand."""
        if self._documents.exists():
            return True
        spaces = self._names_in(self._root, "namespace")
        return any(self._folder(one).has(_NAMESPACE_FILE) or self.queues(one) for one in spaces)

    def misplaced(self) -> list[str]:
        """Return queues that are not in a namespace, where no broker finds them, sorted by name."""
        if not self._root.exists():
            return []
        names = self._names_in(self._root, "queue")
        return [name for name in names if is_made(self._root.child(directory_of(name)))]

    def announce(self, clock: Clock, url: str) -> None:
        """Write the URL of this broker into the LOCK file."""
        self._lock.announce(clock, url)

    def close(self) -> None:
        self._lock.release()

    def free_bytes(self) -> int:
        """Return the free space of the disk."""
        return self._root.files.free_bytes(self._root.path)

    # -- namespaces --------------------------------------------------------------------------------

    def namespaces(self) -> list[NamespaceInfo]:
        """Return all namespaces, sorted by name."""
        return [self._namespace(name) for name in self._names_in(self._root, "namespace")]

    def _namespace(self, name: str) -> NamespaceInfo:
        folder = self._folder(name)
        try:
            data = folder.read(_NAMESPACE_FILE, max_bytes=_MAX_NAMESPACE_BYTES)
            stored = json.loads(data)
            return NamespaceInfo(
                name,
                int(stored["created_at_ns"]),
                dict(stored["defaults"]),
                int(stored["max_queues"]),
                int(stored["max_bytes"]),
            )
        except FileNotFoundError:
            return NamespaceInfo(name, 0, {})  # queues that were put there by hand
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{folder.file(_NAMESPACE_FILE)} cannot be read ({error!r}): repair it, or "
                f"remove it to use the defaults"
            ) from None

    def save_namespace(self, namespace: NamespaceInfo) -> None:
        folder = self._folder(namespace.name)
        if not folder.exists():
            folder.make()
            self._root.sync()
        content = namespace._asdict()
        del content["name"]
        folder.replace(_NAMESPACE_FILE, (json.dumps(content, indent=1) + "\n").encode())

    def delete_namespace(self, name: str) -> None:
        self._throw_away(self._root, directory_of(name))

    def _folder(self, namespace: str) -> Folder:
        return self._root.child(directory_of(namespace))

    # -- queues ------------------------------------------------------------------------------------

    def queues(self, namespace: str) -> list[QueueName]:
        """Return the queues of a namespace, sorted by name.

        A queue whose creation was interrupted has no settings yet and is not listed.
        """
        found = [
            QueueName(namespace, name) for name in self._names_in(self._folder(namespace), "queue")
        ]
        return [queue for queue in found if is_made(self._queue_folder(queue))]

    def enter(self, queue: QueueName) -> tuple[str, Files]:
        """Return the directory of a queue, and the files that hold it."""
        folder = self._queue_folder(queue)
        return folder.path, folder.files

    def opened(self, core: QueueCore) -> bool:
        """Return False: the files are here."""
        return False

    def made(self, queue: QueueName) -> None:
        """Do nothing: its settings, which are written last, show that a queue is whole."""

    def leave(self, queue: QueueName, size_bytes: int) -> None:
        """Do nothing: the LOCK of the data directory is kept."""

    def _queue_folder(self, queue: QueueName) -> Folder:
        return self._folder(queue.namespace).child(directory_of(queue.name))

    def delete_queue(self, queue: QueueName) -> None:
        self._throw_away(self._folder(queue.namespace), directory_of(queue.name))

    def add_queue(self, queue: QueueName, fill: Callable[[str, Files], object]) -> None:
        """Let `fill` make a queue's directory, and put it into its namespace in one step."""
        made = self._trash.child(secrets.token_hex(8))
        fill(made.path, made.files)
        folder = self._folder(queue.namespace)
        folder.files.rename(made.path, folder.child(directory_of(queue.name)).path)
        folder.sync()
        self._trash.sync()

    def _throw_away(self, folder: Folder, directory: str) -> None:
        """Move a directory to the trash in one step. After a crash, the trash is emptied."""
        target = self._trash.child(secrets.token_hex(8))
        folder.files.rename(folder.child(directory).path, target.path)
        folder.sync()
        self._trash.sync()
        self._empty_trash()

    def _empty_trash(self) -> None:
        for name in self._trash.names():
            remove_tree(self._trash.child(name))
        self._trash.sync()

    def _names_in(self, folder: Folder, what: str) -> list[str]:
        """Return the valid names that have a directory in a folder, sorted."""
        found = []
        for directory in folder.names():
            name = name_of_directory(directory)
            if name is None or not is_name(what, name):
                continue
            try:
                folder.files.names(folder.child(directory).path)
            except NotADirectoryError:
                continue
            found.append(name)
        return sorted(found)

    # -- documents ---------------------------------------------------------------------------------

    def document_names(self) -> list[str]:
        """Return the names of all documents, sorted."""
        names = self._documents.names() if self._documents.exists() else []
        return [name for name in names if name != LOCK_NAME]

    def load_document(self, name: str) -> bytes | None:
        try:
            return self._documents.read(name, max_bytes=_MAX_DOCUMENT_BYTES)
        except FileNotFoundError:
            return None

    def replace_document(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace a document if it still holds `old`; None means no document.

        The command line changes documents beside the broker, so that each change holds a lock.
        """
        with self._documents_lock():
            if self.load_document(name) != old:
                return False
            if new is not None:
                self._documents.replace(name, new)
            elif old is not None:
                self._documents.remove(name)
                self._documents.sync()
            return True

    @contextmanager
    def _documents_lock(self) -> Iterator[None]:
        """Hold the lock of the documents; wait for a process that changes one."""
        self._make_root()
        if not self._documents.exists():
            self._documents.make()
            self._root.sync()
        lock, clock = DirectoryLock(self._documents), SystemClock()
        ends_ns = clock.monotonic_ns() + _LOCK_WAIT_NS
        waiting = Condition()
        while True:
            try:
                lock.take(clock)
                break
            except LedgerLocked:
                if clock.monotonic_ns() >= ends_ns:
                    raise
                with waiting:
                    clock.wait(waiting, _LOCK_RETRY_S)
        try:
            yield
        finally:
            lock.release()


def check_has_no_queues_of_tasks(path: str) -> None:
    """Raise InvalidInput if queues are in a directory itself, where a broker would not find them.

    `Tasks` makes them there. A broker would make others of the same names, without a word.
    """
    misplaced = Layout(OsFiles(), path).misplaced()
    if misplaced:
        name = misplaced[0]
        raise InvalidInput(
            f"{path} has queue {name!r}, as Tasks makes it, where a broker does not find it: serve "
            f"another directory; or close what uses it, move {path}/{directory_of(name)} to "
            f"{path}/default/{directory_of(name)}, and give Tasks the URL of the broker"
        )
