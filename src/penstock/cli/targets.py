"""Opening what a command works on: a queue or a broker, by directory or by URL."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import penstock
from penstock.cli.formatting import printable
from penstock.cli.terminal import print_stderr
from penstock.client import (
    AsyncRemoteBroker,
    ClientOptions,
    RemoteBroker,
    connect_broker,
    connect_broker_async,
    is_url,
)
from penstock.errors import (
    InvalidInput,
    NoSuchNamespace,
    NotALedger,
    NotAllowed,
    PenstockError,
)
from penstock.ledger import Damage, Ledger
from penstock.ledger.manifest import MANIFEST_NAME
from penstock.model import NS, Stats
from penstock.names import directory_of
from penstock.queue import Queue, QueueSettings
from penstock.queue.queue import open_queue

READ_RETRY_S = 3.0  # a user who only reads waits at a terminal, and can try again
_CONCURRENT_STATS = 16


@contextmanager
def requires_extra(extra: str) -> Iterator[None]:
    """Wrap an import: report a missing package with the extra that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("penstock"):
            raise
        raise PenstockError(
            f"this needs the package {error.name!r}, which is not installed; "
            f"run: pip install 'penstock[{extra}]'"
        ) from None


# -- one queue -------------------------------------------------------------------------------------


def read_options() -> ClientOptions:
    """Return the client options of commands that only read."""
    return ClientOptions(retry_s=READ_RETRY_S)


def open_to_read(path: str) -> Queue:
    """Open a queue read-only: nothing on disk changes, and another process may write."""
    if is_url(path):
        return penstock.open(path, retry_s=READ_RETRY_S)
    return open_queue(path, {}, read_only=True, create=False, on_damage=warn_of_damage)


def open_to_write(path: str, *, create: bool = False) -> Queue:
    """Open a queue: a directory as its only writer, a URL as one client of many."""
    if is_url(path):
        return penstock.open(path)
    return open_queue(path, {}, create=create, on_damage=warn_of_damage)


def check_exists(queue: Queue) -> None:
    """Raise NoSuchQueue if a broker does not have the queue; a lease does not tell."""
    try:
        queue.stats()
    except NotAllowed:
        pass  # this key may consume, but not read


def is_queue_directory(path: str) -> bool:
    """Return whether a directory is a queue, not a broker's data directory."""
    return (Path(path) / MANIFEST_NAME).exists()


# -- files of a queue ------------------------------------------------------------------------------


def local_path(path: str) -> str:
    """Return a path; raise InvalidInput if it is a URL."""
    if is_url(path):
        raise InvalidInput(f"{path} is a URL: this reads files, so give a directory")
    return path


def stored_settings(path: str) -> QueueSettings:
    """Return the settings that are stored with a queue."""
    return QueueSettings.of_stored(Ledger.stored_queue_settings(local_path(path)))


def open_ledger(path: str, *, on_damage: Callable[[Damage], None] | None = None) -> Ledger:
    """Open the files of a queue read-only, without computing the states of its messages."""
    return Ledger.open(
        path,
        stored_settings(path).ledger_settings(),
        read_only=True,
        create=False,
        on_damage=on_damage or warn_of_damage,
    )


def warn_of_damage(damage: Damage) -> None:
    """Report damage on stderr. The command continues without the damaged part."""
    # An unfinished write at the end is normal while another process writes.
    if damage.lost or not damage.torn:
        print_stderr(f"warning: {printable(str(damage))}")


# -- a broker --------------------------------------------------------------------------------------


class NamespaceRow(NamedTuple):
    """A namespace in a list."""

    name: str
    created_at: float | None
    max_queues: int
    max_bytes: int


class QueueRow(NamedTuple):
    """A queue in a list. It has a problem instead of counts if it cannot be read."""

    queue: str
    stats: Stats | None
    problem: str = ""


def open_broker(target: str, options: ClientOptions | None = None) -> RemoteBroker:
    """Connect to a running broker; raise InvalidInput if the target is not a URL."""
    if not is_url(target):
        raise InvalidInput(
            f"{target} is not a URL: this needs a running broker, such as http://127.0.0.1:8080"
        )
    return connect_broker(target, options=options or ClientOptions())


def broker_view(target: str, options: ClientOptions | None = None) -> "RemoteView | FilesView":
    """Return a read-only view of a broker, running or not."""
    if is_url(target):
        return RemoteView(target, options or read_options())
    return FilesView(target)


def queue_rows(target: str) -> list[QueueRow]:
    """Return all queues of a target, which is a broker or one queue."""
    one_queue = urlsplit(target).path.strip("/") if is_url(target) else is_queue_directory(target)
    if one_queue:
        return [_queue_row(target, target)]
    view = broker_view(target, ClientOptions(retry_s=0))  # the caller looks again anyway
    return view.rows(view.queues(None))


def _queue_row(name: str, path: str) -> QueueRow:
    try:
        with open_to_read(path) as queue:
            return QueueRow(name, queue.stats())
    except PenstockError as error:
        return QueueRow(name, None, str(error))


class RemoteView:
    """A broker at a URL."""

    def __init__(self, url: str, options: ClientOptions) -> None:
        self._url = url
        self._options = options

    def namespaces(self) -> list[NamespaceRow]:
        with connect_broker(self._url, options=self._options) as broker:
            return [
                NamespaceRow(one.name, one.created_at, one.max_queues, one.max_bytes)
                for one in broker.namespaces()
            ]

    def queues(self, namespace: str | None) -> list[str]:
        with connect_broker(self._url, options=self._options) as broker:
            return broker.queues(namespace)

    def rows(self, queues: Sequence[str]) -> list[QueueRow]:
        return asyncio.run(self._rows(queues))

    async def _rows(self, queues: Sequence[str]) -> list[QueueRow]:
        """Ask for several queues at a time: one by one, the round trips would add up."""
        slots = asyncio.Semaphore(_CONCURRENT_STATS)

        async def row(broker: AsyncRemoteBroker, queue: str) -> QueueRow:
            async with slots:
                try:
                    return QueueRow(queue, await broker.stats(queue))
                except PenstockError as error:
                    return QueueRow(queue, None, str(error))

        async with connect_broker_async(self._url, options=self._options) as broker:
            return list(await asyncio.gather(*(row(broker, queue) for queue in queues)))


class FilesView:
    """The data directory of a broker, which may be running."""

    def __init__(self, path: str) -> None:
        with requires_extra("server"):
            from penstock.broker.embedded.layout import Layout
            from penstock.ledger.files import OsFiles
        self._path = path
        self._layout = Layout(OsFiles(), path)

    def namespaces(self) -> list[NamespaceRow]:
        if not Path(self._path).exists():
            raise NotALedger(f"{self._path} does not exist")
        if not Path(self._path).is_dir() or not self._layout.is_there():
            raise NotALedger(f"{self._path} is not a broker's data directory, and not a queue")
        return [
            NamespaceRow(
                one.name,
                one.created_at_ns / NS if one.created_at_ns else None,
                one.max_queues,
                one.max_bytes,
            )
            for one in self._layout.namespaces()
        ]

    def queues(self, namespace: str | None) -> list[str]:
        names = [one.name for one in self.namespaces() if namespace in (None, one.name)]
        if not names and namespace is not None:
            raise NoSuchNamespace(f"there is no namespace {namespace!r} in {self._path}")
        return [str(queue) for name in names for queue in self._layout.queues(name)]

    def rows(self, queues: Sequence[str]) -> list[QueueRow]:
        return [
            _queue_row(queue, "/".join([self._path, *map(directory_of, queue.split("/"))]))
            for queue in queues
        ]
