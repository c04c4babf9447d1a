"""A location chooses the store: `memory:` leaves nothing on disk."""

import asyncio
from pathlib import Path

import pytest

from penstock.broker import Broker, BrokerSettings
from penstock.broker.access import INSIDE
from penstock.broker.stores import open_store
from penstock.clock import SystemClock
from penstock.errors import NotSupported
from penstock.names import QueueName
from penstock.operations import GetStats
from tests.broker.conftest import OpenBroker

ORDERS = QueueName("shop", "orders")


def test_a_broker_in_memory_serves_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def published() -> int:
        settings = BrokerSettings()
        store = open_store(
            "memory:", settings, observe_commit=lambda seconds, answers: None, clock=SystemClock()
        )
        broker = Broker(store, settings)
        await broker.start()
        try:
            await broker.publish(INSIDE, ORDERS, [b"x"])
            return (await broker.run(INSIDE, GetStats(), ORDERS)).ready
        finally:
            await broker.stop()

    assert asyncio.run(published()) == 1
    assert list(tmp_path.iterdir()) == []
    assert not Path("/memory:").exists()


async def test_a_store_without_files_refuses_calls_that_need_them(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker() as broker:
        await broker.publish(INSIDE, ORDERS, [b"x"])
        monkeypatch.setattr(broker.store, "files", None)
        for call in (
            lambda: broker.files.segments(INSIDE, ORDERS),
            lambda: broker.files.read_segment(INSIDE, ORDERS, "messages", 1),
            lambda: broker.files.staging(INSIDE, ORDERS),
            lambda: broker.files.adopt(INSIDE, ORDERS, []),
        ):
            with pytest.raises(NotSupported, match="no segment files"):
                await call()
        (leased,) = await broker.lease(INSIDE, ORDERS)
        assert leased.payload == b"x"
