"""A broker for a command: the one at a URL, or the files of one in its data directory."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.cli.extras import needing
from penstock.cli.opening import look_options, looking
from penstock.client import (
    AsyncRemoteBroker,
    ClientOptions,
    RemoteBroker,
    connect_broker,
    connect_broker_async,
    is_url,
)
from penstock.errors import InvalidInput, NoSuchNamespace, NotALedger, PenstockError
from penstock.model import NS, Stats

_AT_A_TIME = 16


class NamespaceRow(NamedTuple):
    """A namespace of a listing."""

    name: str
    created_at: float | None
    max_queues: int
    max_bytes: int


class QueueRow(NamedTuple):
    """A queue of a listing; without counts where it cannot be read."""

    queue: str
    stats: Stats | None
    problem: str = ""


class BrokerView(Protocol):
    """What can be seen of a broker from both sides."""

    def namespaces(self) -> list[NamespaceRow]: ...

    def queues(self, namespace: str | None) -> list[str]: ...

    def rows(self, queues: Sequence[str]) -> list[QueueRow]: ...


def view_of(place: str, options: ClientOptions | None = None) -> BrokerView:
    """Look at a broker."""
    if is_url(place):
        return RemoteView(place, options or look_options())
    return FilesView(place)


def remote(place: str, options: ClientOptions | None = None) -> RemoteBroker:
    """A broker to change something of: only one that runs can do that."""
    if not is_url(place):
        raise InvalidInput(
            f"{place} is not a URL: this needs a running broker, such as http://127.0.0.1:8080"
        )
    return connect_broker(place, options=options or ClientOptions())


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
        """Several at a time: one after the other, each would wait for its own answer."""
        turn = asyncio.Semaphore(_AT_A_TIME)

        async def row(broker: AsyncRemoteBroker, queue: str) -> QueueRow:
            async with turn:
                try:
                    return QueueRow(queue, await broker.stats(queue))
                except PenstockError as error:
                    return QueueRow(queue, None, str(error))

        async with connect_broker_async(self._url, options=self._options) as broker:
            return list(await asyncio.gather(*(row(broker, queue) for queue in queues)))


class FilesView:
    """The data directory of a broker, which may be running."""

    def __init__(self, path: str) -> None:
        with needing("server"):
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
        spaces = [one.name for one in self.namespaces() if namespace in (None, one.name)]
        if not spaces and namespace is not None:
            raise NoSuchNamespace(f"there is no namespace {namespace!r} in {self._path}")
        return [str(queue) for space in spaces for queue in self._layout.queues(space)]

    def rows(self, queues: Sequence[str]) -> list[QueueRow]:
        return [self._row(queue) for queue in queues]

    def _row(self, queue: str) -> QueueRow:
        try:
            with looking(f"{self._path}/{queue}") as opened:
                return QueueRow(queue, opened.stats())
        except PenstockError as error:
            return QueueRow(queue, None, str(error))
