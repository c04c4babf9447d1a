"""Where the queues are: in a directory that driver and executors both see, or at a broker.

A directory is a queue's own, or a broker's data directory with many of them. `Where` is the seam:
source, sink and jobs ask it for queues, and whoever has the files answers.
"""

import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from penstock.checking import check_local, is_url
from penstock.client.address import QueueAddress, broker_address, queue_address, queue_path
from penstock.client.administration import RemoteBroker
from penstock.client.call import get
from penstock.client.connection import Connection
from penstock.client.options import KEY_VARIABLE, ClientOptions
from penstock.errors import InvalidInput, NotALedger, PenstockError, Unreachable
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import MANIFEST_NAME
from penstock.names import QueueName, directory_of, is_name, name_of_directory

REACH_S = 5.0  # for the first answer of a broker
_PATIENCE_S = 60.0
_RETRY_S = 120.0  # a broker that is restarted recovers first
_MOST_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class QueueAt:
    """One queue, and where its files are."""

    namespace: str | None  # None: a queue directory that was named by itself
    name: str
    path: str  # of its directory; at a broker: its URL
    url: str = ""  # of the broker; empty: the files are in a directory
    api_key: str | None = field(default=None, repr=False)  # for that broker, or one on these files

    @property
    def key(self) -> str:
        """How offsets and options call it."""
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"

    def options(self) -> dict[str, str]:
        """How `spark.read` and `write` are told of it."""
        found = {"url": self.url, "queue": self.key} if self.url else {"path": self.path}
        return found if self.api_key is None else {**found, "key": self.api_key}


class Where(Protocol):
    """A place that has queues."""

    def queues(self) -> Sequence[QueueAt]:
        """All of them, by key."""


class Directory:
    """Queues in a directory that this process can see."""

    def __init__(self, path: str, api_key: str | None = None) -> None:
        self._root = Folder(OsFiles(), check_local(path))
        self._api_key = api_key

    @property
    def is_queue(self) -> bool:
        """Is it the directory of one queue?"""
        return self._root.has(MANIFEST_NAME)

    def queues(self) -> list[QueueAt]:
        path = self._root.path
        if not self._root.exists():
            raise NotALedger(f"{path} does not exist (on this machine)")
        if self.is_queue:
            name = path.rstrip("/").rpartition("/")[2] or path
            return [QueueAt(None, name, path, api_key=self._api_key)]
        found = [
            QueueAt(namespace, name, place.path, api_key=self._api_key)
            for namespace in self._names(self._root, "namespace")
            for folder in [self._root.child(directory_of(namespace))]
            for name in self._names(folder, "queue")
            for place in [folder.child(directory_of(name))]
            if place.has(MANIFEST_NAME)
        ]
        if not found:
            raise NotALedger(
                f"{path} is neither a queue (it has no {MANIFEST_NAME}) nor a broker's data "
                f"directory (it has no <namespace>/<queue>/{MANIFEST_NAME})"
            )
        return found

    def _names(self, folder: Folder, what: str) -> list[str]:
        try:
            names = map(name_of_directory, folder.names())
        except NotADirectoryError:
            return []
        return sorted(name for name in names if name is not None and is_name(what, name))


def queue_in_data(path: str) -> QueueName:
    """Which queue has this directory, if it is one of a broker's data directory."""
    namespace, name = (
        name_of_directory(part) or part for part in ["", *path.rstrip("/").split("/")][-2:]
    )
    return QueueName.parse(f"{namespace}/{name}")


class AtBroker:
    """Queues of a running broker."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = broker_address(url)
        self._api_key = api_key

    def queues(self) -> list[QueueAt]:
        """All that the key may read."""
        names = RemoteBroker(connection_to(self.url, self._api_key).exchange).queues()
        return [self.queue(QueueName.parse(name)) for name in names]

    def queue(self, name: QueueName) -> QueueAt:
        """One of them; whether it is there is seen when it is used."""
        path = f"{self.url}{queue_path(name)}"
        return QueueAt(name.namespace, name.name, path, self.url, self._api_key)


_connections: OrderedDict[tuple[str, str | None], Connection] = OrderedDict()


def connection_to(url: str, api_key: str | None) -> Connection:
    """One for all tasks of a worker that speak to the same broker."""
    known = _connections.pop((url, api_key), None)
    if known is None:
        options = ClientOptions(key=api_key, timeout_s=_PATIENCE_S, retry_s=_RETRY_S)
        known = Connection(url, options)
    _connections[url, api_key] = known
    while len(_connections) > _MOST_CONNECTIONS:
        _connections.popitem(last=False)[1].close()
    return known


def check_reachable(place: str | None) -> None:
    """Raise Unreachable if `place` is a URL at which nothing answers within REACH_S.

    Called where a read, a write or a job begins, so that a wrong URL is reported soon. Later calls
    are retried for much longer, because a broker may be restarted while a job runs.
    """
    if place is None or not is_url(place):
        return
    parts = urlsplit(broker_address(place))
    url = f"{parts.scheme}://{parts.netloc}"
    options = ClientOptions(timeout_s=REACH_S, retry_s=REACH_S, max_connections=1)
    connection = Connection(url, options)
    try:
        connection.do(get("/livez", lambda reply: reply.status))
    except Unreachable as error:
        raise Unreachable(
            f"no broker answers at {url} ({error}). Check the URL, and that the broker is running."
        ) from None
    except PenstockError:
        pass  # An answer, whatever it says: the call that follows reports its own error.
    finally:
        connection.close()


def close_connections() -> None:
    """Let go of all brokers; who needs one again connects again."""
    while _connections:
        _connections.popitem()[1].close()


def known_key(api_key: str | None) -> str | None:
    """The API key to use: executors do not have the environment of the driver."""
    return api_key if api_key is not None else os.environ.get(KEY_VARIABLE)


def queues_at(
    place: str, *, names: Sequence[str] = (), pattern: str | None = None, api_key: str | None = None
) -> list[QueueAt]:
    """The queues that were asked for, of a directory or of a broker's URL."""
    api_key = known_key(api_key)
    if not is_url(place):
        return chosen(Directory(place, api_key), names, pattern)
    if names:
        # A URL that names the one queue as well says the same twice.
        broker = AtBroker(broker_address(place).removesuffix(f"/{','.join(names)}"), api_key)
        return [broker.queue(QueueName.parse(name)) for name in dict.fromkeys(names)]
    if pattern is None and (address := _queue_in(place)) is not None:
        return [AtBroker(address.base, api_key).queue(address.queue)]
    return chosen(AtBroker(place, api_key), (), pattern)


def place_options(place: str, queue: str | None) -> dict[str, str]:
    """How `spark.read` and `write` are told of a place, and of one of its queues."""
    options = {"url" if is_url(place) else "path": place}
    return options if queue is None else {**options, "queue": queue}


def _queue_in(url: str) -> QueueAddress | None:
    """The queue that the URL itself names, as everywhere: http://host:port/namespace/queue."""
    return queue_address(url) if urlsplit(broker_address(url)).path.strip("/") else None


def chosen(where: Where, names: Sequence[str], pattern: str | None) -> list[QueueAt]:
    """The queues that were asked for: by name, by pattern, or all."""
    found = {queue.key: queue for queue in where.queues()}
    if pattern is not None:
        matching = [queue for key, queue in found.items() if re.fullmatch(pattern, key)]
        if not matching:
            raise InvalidInput(
                f"no queue matches subscribePattern {pattern!r}; there are {_listed(found)}"
            )
        return matching
    if not names:
        return list(found.values())
    return [_named(found, name) for name in dict.fromkeys(names)]


def _named(found: dict[str, QueueAt], name: str) -> QueueAt:
    if name in found:
        return found[name]
    alone = next(iter(found.values())) if len(found) == 1 else None
    if alone is not None and alone.namespace is None and name.rpartition("/")[2] == alone.name:
        return alone
    raise InvalidInput(f"there is no queue {name!r}; there are {_listed(found)}")


def _listed(found: dict[str, QueueAt]) -> str:
    keys = sorted(found)
    shown = ", ".join(keys[:10])
    return shown if len(keys) <= 10 else f"{shown} and {len(keys) - 10} more"
