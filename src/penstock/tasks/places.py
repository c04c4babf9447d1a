"""Where the queues of tasks are: below a directory, at a broker, or in memory."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Protocol

import penstock
from penstock.checking import MEMORY, check_local, is_url, path_of
from penstock.client import ClientOptions, connect, connect_broker
from penstock.client.administration import make_queue
from penstock.clock import Clock
from penstock.errors import InvalidInput, NoSuchQueue, PenstockError
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import MANIFEST_NAME
from penstock.ledger.queue_directory import is_made
from penstock.locks import Lock
from penstock.names import BROKER_DIRECTORY, directory_of, name_of_directory
from penstock.queue.facade import AnyQueue
from penstock.queue.queue import Queue, open_queue
from penstock.queue.settings import QueueSettings

URL_VARIABLE = "PENSTOCK_URL"


class Place(Protocol):
    """Opens queues by name."""

    follows: bool  # messages of one queue are let go after those of another, as at a broker

    def queues(self) -> list[str]:
        """Return the names of the queues that are there, if this process has to know them."""
        ...

    def open(self, queue: str, limits: Mapping[str, Any]) -> AnyQueue:
        """Open a queue. `limits` are settings that a store in this process sets with it."""
        ...

    def prepare(self, queue: str, limits: Mapping[str, Any]) -> None:
        """Set the limits of a queue that `open` does not set."""
        ...


class Directory:
    """A directory with a queue in each subdirectory, for one process or for several."""

    follows = False

    def __init__(self, path: str, settings: Mapping[str, Any], *, shared: bool) -> None:
        self._path = path
        self._settings = settings
        self._shared = shared

    def open(self, queue: str, limits: Mapping[str, Any]) -> AnyQueue:
        settings: Any = {**self._settings, **limits}
        path = Path(self._path) / directory_of(queue)
        there = Path(self._path) / "default" / directory_of(queue)
        is_of_broker = _is_queue(there) or (Path(self._path) / BROKER_DIRECTORY).exists()
        if is_of_broker and not _is_queue(path):
            raise InvalidInput(
                f"{self._path} is the data directory of a broker, where queue {queue!r} is in "
                f"{there}, and tasks would make another one in {path}: give Tasks the URL of the "
                f"broker, or a directory of its own"
            )
        data = Path(self._path).resolve().parent
        if (data / BROKER_DIRECTORY).exists():
            raise InvalidInput(
                f"{self._path} is a namespace in {data}, the data directory of a broker, which "
                f"would be shut out of its queues: give Tasks the URL of the broker, or a "
                f"directory of its own"
            )
        sharing: Any = {"shared": True} if self._shared else {}
        opened: AnyQueue = penstock.open(path, **sharing, **settings)
        return opened

    def prepare(self, queue: str, limits: Mapping[str, Any]) -> None:
        pass

    def queues(self) -> list[str]:
        root = Path(self._path)
        names = [name_of_directory(one) for one in Folder(OsFiles(), self._path).names()]
        return [name for name in names if name and _is_queue(root / directory_of(name))]


def _is_queue(path: Path) -> bool:
    return is_made(Folder(OsFiles(), str(path)))


class Broker:
    """The queues of a namespace of a broker."""

    follows = True

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url
        self._options = options

    def open(self, queue: str, limits: Mapping[str, Any]) -> AnyQueue:
        options: Any = self._options
        root, namespace = _split(self._url)
        opened: AnyQueue = penstock.open(root, queue=f"{namespace}/{queue}", **options)
        return opened

    def prepare(self, queue: str, limits: Mapping[str, Any]) -> None:
        """Set the limits, unless the queue has them. That needs a key that may manage queues, and
        an HTTP address."""
        root, namespace = _split(self._url)
        name = f"{namespace}/{queue}"
        with suppress(NoSuchQueue), connect(root, queue=name, options=self._client_options) as one:
            known = one.details().settings
            if QueueSettings.of(limits, known) == known:
                return
        with connect_broker(root, options=self._client_options) as broker:
            make_queue(broker, name, limits)

    def queues(self) -> list[str]:
        return []  # the broker knows them

    @property
    def _client_options(self) -> ClientOptions:
        known = {one.name for one in fields(ClientOptions)}
        return ClientOptions(**{name: v for name, v in self._options.items() if name in known})


class Memory:
    """Queues in memory, of the real core. They last as long as they are open."""

    follows = False

    def __init__(
        self, settings: Mapping[str, Any] | None = None, clock: Clock | None = None
    ) -> None:
        self._settings = settings or {}
        self._clock = clock

    def open(self, queue: str, limits: Mapping[str, Any]) -> AnyQueue:
        return open_queue(MEMORY, {**self._settings, **limits}, clock=self._clock)

    def prepare(self, queue: str, limits: Mapping[str, Any]) -> None:
        pass

    def queues(self) -> list[str]:
        return []  # only those that are open exist


def place_of(
    where: str | PathLike[str] | None, settings: Mapping[str, Any], *, shared: bool
) -> Place:
    """Return the place that a path or URL names; None: the environment variable PENSTOCK_URL."""
    if where is None:
        where = os.environ.get(URL_VARIABLE)
        if not where:
            raise InvalidInput(
                f"Tasks() names no place, and the environment variable {URL_VARIABLE} is not set: "
                f"give a directory or the URL of a broker"
            )
    if is_url(where):
        if not _split(where)[0].partition("://")[2]:
            raise InvalidInput(f"the place of tasks is {where!r}, which names no host")
        return Broker(fspath(where), settings)
    if where == MEMORY:
        return Memory(settings)
    path = check_local(path_of(where), "give a directory, or the URL of a broker (http://…)")
    if Folder(OsFiles(), path).has(MANIFEST_NAME):
        raise InvalidInput(
            f"the place of tasks is {path!r}, which is a queue itself: give the directory that has "
            f"the queues, such as {str(Path(path).parent)!r}"
        )
    return Directory(path, settings, shared=shared)


def _split(url: str) -> tuple[str, str]:
    """Return the address of a broker, and the namespace that a URL names.

    >>> _split("http://127.0.0.1:8080"), _split("http://127.0.0.1:8080/shop/")
    (('http://127.0.0.1:8080', 'default'), ('http://127.0.0.1:8080', 'shop'))
    """
    scheme, _, rest = url.rstrip("/").partition("://")
    host, _, path = rest.partition("/")
    base, _, namespace = path.rpartition("/")
    root = f"{scheme}://{host}" + (f"/{base}" if base else "")
    return root, namespace or "default"


def max_attempts_of(queue: AnyQueue) -> int | None:
    """Return the queue's own `max_attempts`; None if this caller may not read it."""
    if isinstance(queue, Queue):
        return queue.settings.max_attempts
    details: Any = getattr(queue, "details", None)
    try:
        return None if details is None else int(details().settings.max_attempts)
    except PenstockError:
        return None


class OpenQueues:
    """The queues of one `Tasks` that were opened so far, each once in a process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: dict[str, AnyQueue] = {}
        self._process = os.getpid()

    def get(self, name: str, place: Place, limits: Mapping[str, Any]) -> AnyQueue:
        """Return a queue, open. After a fork, a child opens its own."""
        if self._process == os.getpid() and (found := self._open.get(name)) is not None:
            return found
        with self._lock:
            if self._process != os.getpid():
                self._open, self._process = {}, os.getpid()
            if name not in self._open:
                self._open[name] = place.open(name, limits)
            return self._open[name]

    def names(self) -> list[str]:
        """Return the names of the queues that are open."""
        return list(self._open)

    def close(self) -> None:
        with self._lock:
            opened, self._open = self._open, {}
            if self._process == os.getpid():
                for queue in opened.values():
                    queue.close()
