"""The addresses of brokers and queues: URLs as a user writes them, and paths of the API."""

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from penstock.errors import InvalidInput
from penstock.names import QueueName

UNIX_SCHEME = "http+unix"
_GRPC = ("grpc", "grpcs")
_API_PATH = re.compile(r"(?P<base>.*)/api/v1/namespaces/(?P<ns>[^/]+)/queues/(?P<q>[^/]+)")


class QueueAddress(NamedTuple):
    """A queue of a broker."""

    base: str  # of the broker, without a slash at the end
    queue: QueueName

    @property
    def path(self) -> str:
        """The path of its API, below the base."""
        return queue_path(self.queue)

    def __str__(self) -> str:
        return f"{self.base}/{self.queue}"


def queue_path(queue: QueueName) -> str:
    """Return the path of a queue's API, below the broker's address."""
    return f"/api/v1/namespaces/{queue.namespace}/queues/{queue.name}"


def broker_address(url: str) -> str:
    """Return the address of a broker, checked.

    >>> broker_address("http://127.0.0.1:8080/")
    'http://127.0.0.1:8080'
    """
    if not isinstance(url, str):
        raise InvalidInput(f"url is {url!r}; it must be text, such as http://host:port")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(f"{url!r} is not a URL: {error}") from None
    if parts.scheme == UNIX_SCHEME and not unquote(parts.netloc).startswith("/"):
        raise InvalidInput(
            f"{url!r} does not name a Unix socket: write http+unix://%2Frun%2Fpenstock.sock, with "
            f"%2F for each slash of its absolute path"
        )
    if parts.scheme in _GRPC and (not host or parts.port is None):
        raise InvalidInput(f"{url!r} names no port of gRPC: write grpc://host:port/namespace/queue")
    if parts.scheme not in ("http", "https", UNIX_SCHEME, *_GRPC) or not host:
        raise InvalidInput(f"{url!r} is not the URL of a broker: write http://host:port")
    if "@" in parts.netloc:
        raise InvalidInput(
            "a broker's URL has no user or password in it: give the API key as the option key, or "
            "in the environment as PENSTOCK_KEY"
        )
    if parts.query or parts.fragment:
        raise InvalidInput(f"{url!r} has a ? or # in it: options are given by name, not in the URL")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def is_grpc(base: str) -> bool:
    """Return whether an address is one of gRPC.

    >>> is_grpc("grpc://127.0.0.1:9090"), is_grpc("http://127.0.0.1:8080")
    (True, False)
    """
    return urlsplit(base).scheme in _GRPC


def unix_socket_of(base: str) -> str | None:
    """Return the path of the Unix socket that a broker's address names; None for other addresses.

    >>> unix_socket_of("http+unix://%2Frun%2Fpenstock.sock")
    '/run/penstock.sock'
    """
    parts = urlsplit(base)
    return unquote(parts.netloc) if parts.scheme == UNIX_SCHEME else None


def queue_address(url: str, queue: str | None = None) -> QueueAddress:
    """Return the queue that a URL names by its last two parts, or that `queue` names at the URL.

    >>> str(queue_address("http://127.0.0.1:8080/shop/orders"))
    'http://127.0.0.1:8080/shop/orders'
    >>> str(queue_address("http://127.0.0.1:8080", "orders"))
    'http://127.0.0.1:8080/default/orders'
    """
    address = broker_address(url)
    if queue is not None:
        return QueueAddress(address, QueueName.parse(queue))
    if found := _API_PATH.fullmatch(address):
        return QueueAddress(found["base"], QueueName.parse(f"{found['ns']}/{found['q']}"))
    parts = urlsplit(address)
    root, steps = f"{parts.scheme}://{parts.netloc}", parts.path.split("/")[1:]
    if len(steps) < 2:
        example = f", such as {root}/default/{steps[0]}" if steps else ""
        raise InvalidInput(f"{url!r} names no queue: write {root}/namespace/queue{example}")
    steps = [unquote(step) for step in steps]
    name = QueueName.parse("/".join(steps[-2:]))
    return QueueAddress("/".join([root, *steps[:-2]]), name)
