"""The suite that every store must pass. To add a store: a way to make it, in `MAKERS`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedStore
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import NamespaceInfo, Store
from penstock.ledger.memory_files import MemoryFiles
from penstock.model import LeasedMessage, NewMessage
from penstock.names import QueueName
from tests.harness.virtual_loop import LoopClock, LoopThreads
from tests.harness.virtual_tests import clock, run_coroutine_test

__all__ = ["clock"]

Make = Callable[[], Store]


def _embedded(path: Path, clock: LoopClock) -> Make:
    data = str(path / "data")
    return lambda: EmbeddedStore(data, clock=clock, sync_threads=LoopThreads)


def _memory(path: Path, clock: LoopClock) -> Make:
    files = MemoryFiles()  # outlives the store, as a directory does
    return lambda: EmbeddedStore("/data", files=files, clock=clock, sync_threads=LoopThreads)


MAKERS: dict[str, Callable[[Path, LoopClock], Make]] = {"embedded": _embedded, "memory": _memory}
ORDERS = QueueName("shop", "orders")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_coroutine_test(pyfuncitem)


class StoreLife:
    """A store, and what it told of."""

    def __init__(self, make: Make, clock: LoopClock) -> None:
        self._make = make
        self.clock = clock
        self.ready: list[QueueName] = []

    async def open(self, **settings: Any) -> Store:
        """Opened, with the queue `shop/orders` in it if it is new."""
        self.store = self._make()
        await self.store.open(on_ready=self.ready.append)
        if not self.store.has(ORDERS):
            await self.store.save_namespace(NamespaceInfo("shop", 1, {}))
            await self.store.create(ORDERS, BrokerSettings().queue_settings(settings))
        return self.store

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
    return StoreLife(MAKERS[request.param](tmp_path, clock), clock)
