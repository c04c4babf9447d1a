"""Where queues are: in a directory that driver and executors both see, or at a broker.

A directory is that of one queue, or the data directory of a broker, which has many queues.
"""

import errno
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from penstock.checking import check_local, check_not_empty, is_url
from penstock.client.address import broker_address, queue_address, queue_path
from penstock.client.administration import RemoteBroker
from penstock.client.connection import Connection
from penstock.client.options import KEY_VARIABLE, ClientOptions
from penstock.client.request import get
from penstock.errors import InvalidInput, NotALedger, PenstockError, Unreachable
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import MANIFEST_NAME
from penstock.names import QueueName, directory_of, is_name, name_of_directory

log = logging.getLogger("penstock.arrow")

REACH_S = 5.0  # for the first answer of a broker
RETRY_S = 120.0  # for later calls: a broker that restarts recovers its queues first
_TIMEOUT_S = 60.0
_MAX_CONNECTIONS = 16
_NO_DIRECTORY = (errno.ENOTDIR, errno.ELOOP)  # a file; a link to itself


@dataclass(frozen=True, slots=True)
class QueueLocation:
    """One queue, and where its files are."""

    namespace: str | None  # None: the directory of a queue was named, not a data directory
    name: str
    path: str  # of its directory; at a broker: its URL
    url: str = ""  # of the broker; empty: the files are in a directory
    api_key: str | None = field(default=None, repr=False)  # for that broker, or one on these files

    @property
    def key(self) -> str:
        """The queue's name in offsets and options."""
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"

    @property
    def api_path(self) -> str:
        """The path of the queue's API, below the broker's URL."""
        return self.path.removeprefix(self.url)

    @property
    def connection(self) -> Connection:
        """The connection to the queue's broker, shared by all tasks of this process."""
        return connection_to(self.url, self.api_key)

    def options(self) -> dict[str, str]:
        """Return the options by which `spark.read` and `write` find this queue."""
        found = {"url": self.url, "queue": self.key} if self.url else {"path": self.path}
        return found if self.api_key is None else {**found, "key": self.api_key}


class Directory:
    """Queues in a directory that this process can see."""

    def __init__(self, path: str, api_key: str | None = None) -> None:
        self._root = Folder(OsFiles(), check_local(check_not_empty("the location", path)))
        self._api_key = api_key

    @property
    def is_queue(self) -> bool:
        """Whether this is the directory of one queue."""
        return self._root.has(MANIFEST_NAME)

    def queues(self) -> list[QueueLocation]:
        """Return all queues, by name. Raise NotALedger if there is none."""
        path = self._root.path
        if not self._root.exists():
            raise NotALedger(f"{path} does not exist (on this machine)")
        if self.is_queue:
            name = path.rstrip("/").rpartition("/")[2] or path
            return [QueueLocation(None, name, path, api_key=self._api_key)]
        found = [
            QueueLocation(namespace, name, directory.path, api_key=self._api_key)
            for namespace in _names_in(self._root, "namespace")
            for folder in [self._root.child(directory_of(namespace))]
            for name in _names_in(folder, "queue")
            for directory in [folder.child(directory_of(name))]
            if directory.has(MANIFEST_NAME)
        ]
        if not found:
            raise NotALedger(
                f"{path} is neither a queue (it has no {MANIFEST_NAME}) nor a broker's data "
                f"directory (it has no <namespace>/<queue>/{MANIFEST_NAME})"
            )
        return found


def _names_in(folder: Folder, kind: str) -> list[str]:
    try:
        directories = folder.names()
    except OSError as error:
        if error.errno not in _NO_DIRECTORY:
            raise
        return []
    names = []
    for directory in directories:
        name = name_of_directory(directory)
        if name is not None and is_name(kind, name):
            names.append(name)
        elif kind == "queue" and folder.child(directory).has(MANIFEST_NAME):
            _report_left_out(folder.path, directory)
    return sorted(names)


@lru_cache(maxsize=1000)  # once each: a stream looks for new queues before every micro-batch
def _report_left_out(parent: str, directory: str) -> None:
    renamed = f"rename it to {directory_of(directory)}, or " if is_name("queue", directory) else ""
    log.warning(
        "%s/%s is left out: it is a queue, but no name's directory in the data directory of a "
        "broker. To read it, %sgive its own path.",
        parent,
        directory,
        renamed,
    )


def queue_of_directory(path: str) -> QueueName:
    """Return the name of the queue that a directory inside a data directory belongs to."""
    namespace, name = (
        name_of_directory(part) or part for part in os.path.abspath(path).split("/")[-2:]
    )
    return QueueName.parse(f"{namespace}/{name}")


# -- brokers ---------------------------------------------------------------------------------------

_connections: OrderedDict[tuple[str, str | None], Connection] = OrderedDict()


def connection_to(url: str, api_key: str | None) -> Connection:
    """Return the connection to a broker, shared by all tasks of this process."""
    known = _connections.pop((url, api_key), None)
    if known is None:
        options = ClientOptions(key=api_key, timeout_s=_TIMEOUT_S, retry_s=RETRY_S)
        known = Connection(url, options)
    _connections[url, api_key] = known
    while len(_connections) > _MAX_CONNECTIONS:
        _connections.popitem(last=False)[1].close()
    return known


def close_connections() -> None:
    """Close all connections of this process. A later call opens a new one."""
    while _connections:
        _connections.popitem()[1].close()


def check_reachable(location: str | None) -> None:
    """Raise Unreachable if `location` is a URL at which nothing answers within REACH_S.

    Called where a read, a write or a job begins, so that a wrong URL is reported soon. Later calls
    are retried for much longer, because a broker may be restarted while a job runs.
    """
    if location is None or not is_url(location):
        return
    parts = urlsplit(broker_address(location))
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


def default_key(api_key: str | None) -> str | None:
    """Return the API key, or that of the environment, which executors do not share."""
    return api_key if api_key is not None else os.environ.get(KEY_VARIABLE)


def queue_at_broker(url: str, name: QueueName, api_key: str | None) -> QueueLocation:
    """Return the location of a queue, which need not exist."""
    url = broker_address(url)
    return QueueLocation(name.namespace, name.name, f"{url}{queue_path(name)}", url, api_key)


def _queues_at_broker(url: str, api_key: str | None) -> list[QueueLocation]:
    """Return all queues that the key may read."""
    names = RemoteBroker(connection_to(broker_address(url), api_key).exchange).queues()
    return [queue_at_broker(url, QueueName.parse(name), api_key) for name in names]


# -- choosing queues -------------------------------------------------------------------------------


def queues_at(
    location: str,
    *,
    names: Sequence[str] = (),
    pattern: str | None = None,
    api_key: str | None = None,
) -> list[QueueLocation]:
    """Return the queues of a directory or broker that have these names or match the pattern."""
    api_key = default_key(api_key)
    if not is_url(location):
        return choose(Directory(location, api_key).queues(), names, pattern)
    address = broker_address(location)
    if names:
        # The URL may name the queue as well.
        base = address.removesuffix(f"/{','.join(names)}")
        return [
            queue_at_broker(base, QueueName.parse(name), api_key) for name in dict.fromkeys(names)
        ]
    if pattern is None and urlsplit(address).path.strip("/"):
        named = queue_address(location)
        return [queue_at_broker(named.base, named.queue, api_key)]
    return choose(_queues_at_broker(location, api_key), (), pattern)


def queues_of_job(location: str, queue: str | None) -> list[QueueLocation]:
    """Return the queues that a job runs on: all of a location, or the one that is named."""
    check_reachable(location)
    return queues_at(location, names=[] if queue is None else [queue])


def location_options(location: str, queue: str | None) -> dict[str, str]:
    """Return the options by which `spark.read` and `write` find a location and its queue.

    A path is made absolute: Spark's processes may have another working directory.
    """
    check_not_empty("the location", location)
    options = {"url": location} if is_url(location) else {"path": absolute_path(location)}
    return options if queue is None else {**options, "queue": queue}


def absolute_path(location: str) -> str:
    """Return a local path as an absolute one; a location with a scheme as it is."""
    return location if ":/" in location else os.path.abspath(location)


def choose(
    queues: Iterable[QueueLocation], names: Sequence[str], pattern: str | None
) -> list[QueueLocation]:
    """Return the queues with these names, or that match the pattern, or all."""
    found = {queue.key: queue for queue in queues}
    if pattern is not None:
        matching = [queue for key, queue in found.items() if re.fullmatch(pattern, key)]
        if not matching:
            raise InvalidInput(
                f"no queue matches subscribePattern {pattern!r}; there are {_shown(found)}"
            )
        return matching
    if not names:
        return list(found.values())
    return [_named(found, name) for name in dict.fromkeys(names)]


def _named(found: dict[str, QueueLocation], name: str) -> QueueLocation:
    if name in found:
        return found[name]
    only = next(iter(found.values())) if len(found) == 1 else None
    if only is not None and only.namespace is None:
        _check_name_of_directory(only.path, name)
        return only
    raise InvalidInput(f"there is no queue {name!r}; there are {_shown(found)}")


def _check_name_of_directory(path: str, name: str) -> None:
    """Raise InvalidInput if the queue at a path has another name.

    A directory `<namespace>/<name>` is named so in the data directory that has it. In a directory
    that is no namespace's, a queue has only the name of its own directory.
    """
    path = os.path.abspath(path)
    parent, directory = path.split("/")[-2:]
    namespace, own = name_of_directory(parent), name_of_directory(directory)
    if is_name("namespace", namespace) and is_name("queue", own):
        shown = f"{namespace}/{own}"
        is_right = name in (own, shown)
    else:
        shown = f"{directory}, in no namespace"
        is_right = name in (own, directory)
    if not is_right:
        raise InvalidInput(
            f"there is no queue {name!r}: the queue at {path} is {shown}. Give that name or none, "
            f"or the path of another queue."
        )


def _shown(found: dict[str, QueueLocation]) -> str:
    keys = sorted(found)
    shown = ", ".join(keys[:10])
    return shown if len(keys) <= 10 else f"{shown} and {len(keys) - 10} more"
