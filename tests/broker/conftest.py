"""A broker on a virtual clock, on each store. `ON_DISK = True` in a module: it needs real files."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from penstock.broker import Broker, BrokerSettings, EmbeddedStore
from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.store import Store
from penstock.ledger.files import Files
from penstock.ledger.memory_files import MemoryFiles
from tests.harness.distant_store import DistantStore
from tests.harness.postgres_server import PostgresServer
from tests.harness.virtual_loop import LoopClock, LoopThreads
from tests.harness.virtual_tests import clock, run_coroutine_test

__all__ = ["clock"]

_T = TypeVar("_T")
OpenBroker = Callable[..., AbstractAsyncContextManager[Broker]]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_coroutine_test(pyfuncitem)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "open_broker" in metafunc.fixturenames:
        on_disk = getattr(metafunc.module, "ON_DISK", False)
        stores = ["embedded"] if on_disk else ["embedded", "memory", "distant", "postgres"]
        if hasattr(metafunc.function, "in_this_process"):
            stores.remove("distant")
        metafunc.parametrize("open_broker", stores, indirect=True)


def in_this_process(test: _T) -> _T:
    """Mark a test of what only a store in this process does, such as exact counts at any time."""
    test.in_this_process = True  # type: ignore[attr-defined]
    return test


@pytest.fixture
def open_broker(request: pytest.FixtureRequest, tmp_path: Path, clock: LoopClock) -> OpenBroker:
    """`async with open_broker(setting=…) as broker`, again and again on the same data."""
    in_memory = None if request.param in ("embedded", "postgres") else MemoryFiles()
    path = "/data" if in_memory else str(tmp_path / "data")
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        options = ClusterOptions(
            schema=request.getfixturevalue("new_schema")(),
            beat_s=1e9,
            rebalance_s=1e9,
            outbox_s=1e9,
            locks_clock=clock,
            cache=str(tmp_path),
        )

    def make_store(max_open: int, idle_close_s: float, files: Files | None) -> Store:
        if request.param == "postgres":
            return PostgresStore(
                server.url,
                options,
                clock=clock,
                max_open=max_open,
                idle_close_s=idle_close_s,
                sync_threads=LoopThreads,
            )
        store = EmbeddedStore(
            path,
            clock=clock,
            max_open=max_open,
            idle_close_s=idle_close_s,
            files=files or in_memory,
            sync_threads=LoopThreads,
        )
        return cast(Store, DistantStore(store)) if request.param == "distant" else store

    @asynccontextmanager
    async def opened(
        *,
        max_open: int = 256,
        idle_close_s: float = 300.0,
        files: Files | None = None,
        **settings: Any,
    ) -> AsyncIterator[Broker]:
        settings.setdefault("max_wait_s", 3600)
        store = make_store(max_open, idle_close_s, files)
        broker = Broker(store, BrokerSettings(**settings), clock=clock)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()

    return opened
