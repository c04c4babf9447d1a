"""Opening what a command works on: a queue or a broker, by directory or by URL."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
    LedgerLocked,
    NoSuchNamespace,
    NotALedger,
    NotAllowed,
    PenstockError,
)
from penstock.extras import requires_extra
from penstock.ledger import Damage, Ledger
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import MANIFEST_NAME
from penstock.ledger.queue_directory import announced_url
from penstock.model import NS, Stats
from penstock.names import ONE_QUEUE, QueueName, directory_of, name_of_directory
from penstock.queue import QueueSettings
from penstock.queue.facade import AnyQueue
from penstock.queue.queue import open_queue

if TYPE_CHECKING:
    from penstock.broker.embedded.layout import Layout

READ_RETRY_S = 3.0  # a user who only reads waits at a terminal, and can try again
_CONCURRENT_STATS = 16


# -- one queue -------------------------------------------------------------------------------------


def read_options() -> ClientOptions:
    """Return the client options of commands that only read."""
    return ClientOptions(retry_s=READ_RETRY_S)


def open_to_read(path: str) -> AnyQueue:
    """Open a queue read-only: nothing on disk changes, and another process may write."""
    if is_url(path):
        return penstock.open(path, retry_s=READ_RETRY_S)
    return open_queue(path, {}, read_only=True, create=False, on_damage=warn_of_damage)


def name_at(path: str) -> str:
    """Return the name of the queue that a directory or a URL is about."""
    if is_url(path):
        return path.rstrip("/").rpartition("/")[2]
    directory = Path(path).resolve().name
    return name_of_directory(directory) or directory


def neighbour_of(path: str, queue: str) -> str:
    """Return where another queue of the same directory or namespace is."""
    if is_url(path):
        return f"{path.rstrip('/').rpartition('/')[0]}/{queue}"
    return str(Path(path).resolve().parent / directory_of(queue))


def open_to_write(path: str, *, create: bool = False) -> AnyQueue:
    """Open a queue: a directory as its only writer, a URL as one client of many.

    If a process or a broker has the directory and says where it is reached, become its client.
    """
    if is_url(path):
        return penstock.open(path)
    try:
        return open_queue(path, {}, create=create, on_damage=warn_of_damage)
    except LedgerLocked:
        url = _holder_url(path)
        if url is None:
            raise
        return penstock.open(url)


def open_shared(path: str) -> AnyQueue:
    """Open a queue that other processes use as well: see `penstock.shared`."""
    if is_url(path):
        raise InvalidInput(f"{path} is a URL: --shared is for directories, so leave it out")
    queue = _queue_in_data(path)
    if queue is None:
        return penstock.open(path, shared=True)
    return penstock.open(Path(path).resolve().parent.parent, shared=True, queue=str(queue))


def _holder_url(path: str) -> str | None:
    """Return the URL of a queue whose directory another process has; None if it gives none."""
    files = OsFiles()
    url = announced_url(Folder(files, path))
    if url is not None:
        return f"{url}/{ONE_QUEUE}"
    queue = _queue_in_data(path)
    if queue is None:
        return None
    url = announced_url(Folder(files, str(Path(path).resolve().parent.parent)))
    return None if url is None else f"{url}/{queue}"


def _queue_in_data(path: str) -> QueueName | None:
    """Return the name of a queue in a broker's data directory; None if it is in none."""
    place = Path(path).resolve()
    names = [name_of_directory(one) for one in (place.parent.name, place.name)]
    if None in names or not (place.parent.parent / "_broker").is_dir():
        return None
    return QueueName.parse("/".join(map(str, names)))


def check_exists(queue: AnyQueue) -> None:
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
        stored_settings(path).storage.ledger_settings(),
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


def namespace_rows(target: str) -> list[NamespaceRow]:
    """Return the namespaces of a broker, running or not."""
    if is_url(target):
        with connect_broker(target, options=read_options()) as broker:
            return [
                NamespaceRow(one.name, one.created_at, one.max_queues, one.max_bytes)
                for one in broker.namespaces()
            ]
    return [
        NamespaceRow(one.name, one.created_at_ns / NS or None, one.max_queues, one.max_bytes)
        for one in _layout(target).namespaces()
    ]


def queue_names(
    target: str, namespace: str | None = None, options: ClientOptions | None = None
) -> list[str]:
    """Return the queues of a broker, running or not, as namespace/queue."""
    if is_url(target):
        with connect_broker(target, options=options or read_options()) as broker:
            return broker.queues(namespace)
    layout = _layout(target)
    names = [one.name for one in layout.namespaces() if namespace in (None, one.name)]
    if not names and namespace is not None:
        raise NoSuchNamespace(f"there is no namespace {namespace!r} in {target}")
    return [str(queue) for name in names for queue in layout.queues(name)]


def queue_rows(
    target: str, namespace: str | None = None, options: ClientOptions | None = None
) -> list[QueueRow]:
    """Return the queues of a broker with their counts."""
    queues = queue_names(target, namespace, options)
    if is_url(target):
        return asyncio.run(_remote_rows(target, queues, options or read_options()))
    paths = ["/".join([target, *map(directory_of, queue.split("/"))]) for queue in queues]
    return [queue_row(queue, path) for queue, path in zip(queues, paths, strict=True)]


def queue_row(name: str, path: str) -> QueueRow:
    """Return one queue with its counts."""
    try:
        with open_to_read(path) as queue:
            return QueueRow(name, queue.stats())
    except PenstockError as error:
        return QueueRow(name, None, str(error))


async def _remote_rows(url: str, queues: list[str], options: ClientOptions) -> list[QueueRow]:
    """Ask for several queues at a time: one by one, the round trips would add up."""
    slots = asyncio.Semaphore(_CONCURRENT_STATS)

    async def row(broker: AsyncRemoteBroker, queue: str) -> QueueRow:
        async with slots:
            try:
                return QueueRow(queue, await broker.stats(queue))
            except PenstockError as error:
                return QueueRow(queue, None, str(error))

    async with connect_broker_async(url, options=options) as broker:
        return list(await asyncio.gather(*(row(broker, queue) for queue in queues)))


def _layout(path: str) -> "Layout":
    """Return the data directory of a broker; raise NotALedger if it is none."""
    with requires_extra("server"):
        from penstock.broker.embedded.layout import Layout
    layout = Layout(OsFiles(), path)
    if not Path(path).exists():
        raise NotALedger(f"{path} does not exist")
    if is_queue_directory(path):
        raise NotALedger(f"{path} is a queue, not a broker's data directory")
    if not Path(path).is_dir() or not layout.is_there():
        raise NotALedger(f"{path} is not a broker's data directory, and not a queue")
    return layout
