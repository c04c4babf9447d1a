"""The suite that every store must pass. To add a store: a way to make it, in `MAKERS`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.broker.embedded import EmbeddedStore
from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import NamespaceInfo, QueueIdentities, Store
from penstock.ledger.memory_files import MemoryFiles
from penstock.model import LeasedMessage, NewMessage
from penstock.names import QueueName
from tests.harness.postgres_server import PostgresServer
from tests.harness.virtual_loop import LoopClock, LoopThreads
from tests.harness.virtual_tests import clock, run_coroutine_test

__all__ = ["clock"]


class Stores(NamedTuple):
    """How to make stores on the same data."""

    first: Callable[[], Store]  # after the one before was closed
    another: Callable[[Any], Store]  # beside one that is open, for another broker
    look: Callable[[Any], Awaitable[None]] | None = None  # have a store look for changes at once


def _embedded(path: Path, clock: LoopClock, request: pytest.FixtureRequest) -> Stores:
    data = str(path / "data")
    return Stores(
        lambda: EmbeddedStore(data, clock=clock, sync_threads=LoopThreads),
        EmbeddedStore.for_another,
    )


def _postgres(path: Path, clock: LoopClock, request: pytest.FixtureRequest) -> Stores:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    # No beats: they would be many, and on a virtual clock at no particular time.
    options = ClusterOptions(
        schema=request.getfixturevalue("new_schema")(),
        beat_s=1e9,
        rebalance_s=1e9,
        outbox_s=1e9,
        locks_clock=clock,
        cache=str(path),
    )

    def make() -> PostgresStore:
        return PostgresStore(server.url, options, clock=clock, sync_threads=LoopThreads)

    return Stores(make, lambda _: make(), PostgresStore.refresh)


def _memory(path: Path, clock: LoopClock, request: pytest.FixtureRequest) -> Stores:
    files = MemoryFiles()  # outlives the store, as a directory does
    return Stores(
        lambda: EmbeddedStore("/data", files=files, clock=clock, sync_threads=LoopThreads),
        EmbeddedStore.for_another,
    )


MAKERS: dict[str, Callable[[Path, LoopClock, pytest.FixtureRequest], Stores]] = {
    "embedded": _embedded,
    "memory": _memory,
    "postgres": _postgres,
}
ORDERS = QueueName("shop", "orders")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_coroutine_test(pyfuncitem)


class Heard:
    """A listener that remembers the catalogue and the notices of a store."""

    def __init__(self) -> None:
        self.ready: list[QueueName] = []
        self.namespaces: dict[str, NamespaceInfo] = {}
        self.queues: dict[QueueName, int] = {}
        self.documents: list[str] = []

    def on_ready(self, queue: QueueName) -> None:
        self.ready.append(queue)

    def on_catalogue(self, namespaces: Sequence[NamespaceInfo], queues: QueueIdentities) -> None:
        self.namespaces = {one.name: one for one in namespaces}
        self.queues = dict(queues)

    def on_namespace(self, name: str, namespace: NamespaceInfo | None) -> None:
        self.namespaces.pop(name, None)
        if namespace is not None:
            self.namespaces[name] = namespace

    def on_queue(self, queue: QueueName, identity: int | None) -> None:
        self.queues.pop(queue, None)
        if identity is not None:
            self.queues[queue] = identity

    def on_document(self, name: str) -> None:
        self.documents.append(name)

    async def on_question(self, question: Any) -> Any:
        return [question, sorted(map(str, self.queues))]


class StoreLife:
    """A store, and what it told of."""

    def __init__(self, stores: "Stores", clock: LoopClock) -> None:
        self._stores = stores
        self.clock = clock
        self.heard = Heard()
        self._others: list[Store] = []

    @property
    def ready(self) -> list[QueueName]:
        return self.heard.ready

    async def open(self, **settings: Any) -> Store:
        """Return the store, opened, with the queue `shop/orders` in it if it is new."""
        self.store = self._stores.first()
        await self.store.open(self.heard)
        if ORDERS not in self.heard.queues:
            await self.store.replace_namespace(None, NamespaceInfo("shop", 1, {}))
            await self.store.create(ORDERS, BrokerSettings().queue_settings(settings))
        return self.store

    def new_store(self) -> Store:
        """Return a store on the same data, not opened, after the one before was closed."""
        return self._stores.first()

    async def open_another(self) -> tuple[Store, Heard]:
        """Return the store of a second broker, opened beside the first."""
        store, heard = self._stores.another(self.store), Heard()
        await store.open(heard)
        self._others.append(store)
        return store, heard

    async def told(self) -> None:
        """Let the notices of other brokers arrive."""
        await asyncio.sleep(0.1)
        if self._stores.look is not None:
            for store in [self.store, *self._others]:
                await self._stores.look(store)

    async def reopen(self) -> Store:
        await self.store.close()
        return await self.open()

    async def publish(self, *payloads: bytes | NewMessage) -> list[str]:
        return [one.id for one in await self.store.publish(ORDERS, list(payloads))]

    async def lease(self, n: int = 10, **options: Any) -> list[LeasedMessage]:
        return await self.store.lease(ORDERS, n, **options)

    async def payloads(self, n: int = 10, **options: Any) -> list[bytes]:
        return [one.payload for one in await self.lease(n, **options)]


@pytest.fixture(params=list(MAKERS))
def life(request: pytest.FixtureRequest, tmp_path: Path, clock: LoopClock) -> StoreLife:
    return StoreLife(MAKERS[request.param](tmp_path, clock, request), clock)
