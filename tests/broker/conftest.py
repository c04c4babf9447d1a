"""A broker on a virtual clock, on each store. `ON_DISK = True` in a module: it needs real files."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.broker import Broker, BrokerSettings, EmbeddedStore
from penstock.ledger.files import Files
from penstock.ledger.memory_files import MemoryFiles
from tests.harness.distant_store import DistantStore
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
        stores = ["embedded"] if on_disk else ["embedded", "memory", "distant"]
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
    in_memory = None if request.param == "embedded" else MemoryFiles()
    path = "/data" if in_memory else str(tmp_path / "data")

    @asynccontextmanager
    async def opened(
        *,
        max_open: int = 256,
        idle_close_s: float = 300.0,
        files: Files | None = None,
        **settings: Any,
    ) -> AsyncIterator[Broker]:
        settings.setdefault("max_wait_s", 3600)
        store = EmbeddedStore(
            path,
            clock=clock,
            max_open=max_open,
            idle_close_s=idle_close_s,
            files=files or in_memory,
            sync_threads=LoopThreads,
        )
        used: Any = DistantStore(store) if request.param == "distant" else store
        broker = Broker(used, BrokerSettings(**settings), clock=clock)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()

    return opened
