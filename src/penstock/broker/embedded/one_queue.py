"""The directory of one queue, for a broker that serves nothing else.

The broker sees a namespace with one queue. The lock is that of the queue's directory. Documents of
the broker are kept in memory: a queue has no keys, and no other files than the embedded library
makes.
"""

from penstock.broker.store import NamespaceInfo
from penstock.checking import check_local
from penstock.clock import Clock
from penstock.errors import NotSupported
from penstock.ledger.files import Files
from penstock.ledger.folder import Folder
from penstock.ledger.queue_directory import DirectoryLock, check_location, is_made
from penstock.names import ONE_QUEUE, QueueName
from penstock.queue.core import QueueCore


class OneQueue:
    """Where the broker of a single queue has its files; see `Layout` for the calls."""

    has_locks_of_queues = False  # there is one lock, and this holds it
    can_delete = False

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._root = Folder(files, check_local(path, "a queue is a directory, such as ./orders"))
        self._lock = DirectoryLock(self._root)
        self._documents: dict[str, bytes] = {}

    def open(self, clock: Clock, url: str = "") -> None:
        """Become the writer of the queue, or of the one that will be made here."""
        check_location(self._root, create=True, network_too=True)  # opening the queue checks that
        self._lock.take(clock, url)

    def close(self) -> None:
        self._lock.release()

    def announce(self, clock: Clock, url: str) -> None:
        self._lock.announce(clock, url)

    def free_bytes(self) -> int:
        return self._root.files.free_bytes(self._root.path)

    # -- the catalogue -----------------------------------------------------------------------------

    def namespaces(self) -> list[NamespaceInfo]:
        return [NamespaceInfo(ONE_QUEUE.namespace, 0, {})]

    def save_namespace(self, namespace: NamespaceInfo) -> None:
        raise NotSupported(f"{self.path} is one queue: it has no namespaces")

    def delete_namespace(self, name: str) -> None:
        raise NotSupported(f"{self.path} is one queue: it has no namespaces")

    def queues(self, namespace: str) -> list[QueueName]:
        return [ONE_QUEUE] if is_made(self._root) else []

    def enter(self, queue: QueueName) -> tuple[str, Files]:
        if queue != ONE_QUEUE:
            raise NotSupported(f"{self.path} is one queue: there is no queue {queue}")
        return self._root.path, self._root.files

    def made(self, queue: QueueName) -> None:
        """Do nothing: its settings, which are written last, show that a queue is whole."""

    def opened(self, core: QueueCore) -> bool:
        return False

    def leave(self, queue: QueueName, size_bytes: int) -> None:
        """Do nothing: the lock is kept."""

    def delete_queue(self, queue: QueueName) -> None:
        raise NotSupported(f"{self.path} is a queue: remove the directory to delete it")

    # -- documents ---------------------------------------------------------------------------------

    def load_document(self, name: str) -> bytes | None:
        return self._documents.get(name)

    def replace_document(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        if self._documents.get(name) != old:
            return False
        if new is None:
            self._documents.pop(name, None)
        else:
            self._documents[name] = new
        return True
