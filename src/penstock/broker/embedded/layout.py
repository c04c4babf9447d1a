"""Where things are in a broker's data directory.

    LOCK                     one broker at a time
    _broker/<document>       keys, webhooks, … of the broker itself
    _trash/<number>/         queues that were deleted and are being removed
    <namespace>/namespace.json
    <namespace>/<queue>/     a queue's directory, as the embedded library has it

Names of namespaces and queues begin with a letter or digit, so none collides with the rest.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.broker.names import QueueName, check_name
from penstock.broker.store import NamespaceInfo
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, LedgerError
from penstock.ledger.files import Files
from penstock.ledger.folder import Folder
from penstock.ledger.lock import DirectoryLock
from penstock.ledger.place import is_made, make_with_parents, refuse_url

_NAMESPACE_FILE = "namespace.json"
_MAX_NAMESPACE_BYTES = 1 << 20
_MAX_DOCUMENT_BYTES = 64 << 20


class Layout:
    """The data directory. Every call may raise OSError; all are for a thread, not the loop."""

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._root = Folder(files, path)
        self._documents = self._root.child("_broker")
        self._trash = self._root.child("_trash")
        self._lock = DirectoryLock(self._root)

    def open(self, clock: Clock) -> None:
        """Become the broker of this directory, and finish what a crash interrupted."""
        self._make_root()
        self._lock.take(clock)
        for folder in (self._documents, self._trash):
            folder.make()
            folder.sweep()
        self._root.sync()
        self._empty_trash()

    def _make_root(self) -> None:
        refuse_url(self.path, "a broker's data is in a directory, such as ./data")
        if not self._root.exists():
            make_with_parents(self._root)
        elif not self._documents.exists():
            self._root.parent().sync()  # a process may have died right after making it

    def announce(self, clock: Clock, url: str) -> None:
        """Say in the LOCK where this broker is reached."""
        self._lock.announce(clock, url)

    def close(self) -> None:
        self._lock.release()

    # -- namespaces --------------------------------------------------------------------------------

    def namespaces(self) -> list[NamespaceInfo]:
        """All that are there, by name."""
        return [self._namespace(name) for name in self._names_in(self._root, "namespace")]

    def _namespace(self, name: str) -> NamespaceInfo:
        try:
            data = self._root.child(name).read(_NAMESPACE_FILE, max_bytes=_MAX_NAMESPACE_BYTES)
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
                f"{self._root.child(name).file(_NAMESPACE_FILE)} cannot be read ({error!r}): mend "
                f"it, or remove it to go on with the defaults"
            ) from None

    def save_namespace(self, namespace: NamespaceInfo) -> None:
        folder = self._root.child(namespace.name)
        if not folder.exists():
            folder.make()
            self._root.sync()
        content = namespace._asdict()
        del content["name"]
        folder.replace(_NAMESPACE_FILE, (json.dumps(content, indent=1) + "\n").encode())

    def delete_namespace(self, name: str) -> None:
        self._throw_away(self._root, name)

    # -- queues ------------------------------------------------------------------------------------

    def queues(self, namespace: str) -> list[QueueName]:
        """Those of a namespace, by name. One whose making was cut off is not there: it has no
        settings yet, and would go on with others than it was to have."""
        folder = self._root.child(namespace)
        names = self._names_in(folder, "queue")
        return [QueueName(namespace, name) for name in names if is_made(folder.child(name))]

    def path_of(self, queue: QueueName) -> str:
        return self._root.child(queue.namespace).child(queue.name).path

    def delete_queue(self, queue: QueueName) -> None:
        self._throw_away(self._root.child(queue.namespace), queue.name)

    def _throw_away(self, folder: Folder, name: str) -> None:
        """Out of sight in one step; a crash later leaves only rubbish to be removed."""
        target = self._trash.child(secrets.token_hex(8))
        folder.files.rename(folder.child(name).path, target.path)
        folder.sync()
        self._trash.sync()
        self._empty_trash()

    def _empty_trash(self) -> None:
        for name in self._trash.names():
            _remove_tree(self._trash.child(name))
        self._trash.sync()

    def _names_in(self, folder: Folder, what: str) -> list[str]:
        found = []
        for name in folder.names():
            try:
                check_name(what, name)
                folder.child(name).files.names(folder.child(name).path)
            except (InvalidInput, NotADirectoryError):
                continue  # not one of ours
            found.append(name)
        return found

    @contextmanager
    def documents_turn(self) -> Iterator[None]:
        """For a process that is not the broker and changes a document: one at a time."""
        self._make_root()
        self._documents.make()
        self._root.sync()
        turn = DirectoryLock(self._documents)
        turn.take(SystemClock())
        try:
            yield
        finally:
            turn.release()

    # -- documents ---------------------------------------------------------------------------------

    def load_document(self, name: str) -> bytes | None:
        try:
            return self._documents.read(name, max_bytes=_MAX_DOCUMENT_BYTES)
        except FileNotFoundError:
            return None

    def save_document(self, name: str, data: bytes) -> None:
        self._documents.replace(name, data)

    def delete_document(self, name: str) -> None:
        if self._documents.has(name):
            self._documents.remove(name)
            self._documents.sync()


def _remove_tree(folder: Folder) -> None:
    files = folder.files
    try:
        names = files.names(folder.path)
    except NotADirectoryError:
        files.unlink(folder.path)
        return
    for name in names:
        _remove_tree(folder.child(name))
    files.remove_directory(folder.path)
