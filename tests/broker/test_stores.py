"""A location chooses the store: `memory:` leaves nothing on disk."""

import asyncio
from pathlib import Path

import pytest

from penstock.broker import Broker, BrokerSettings
from penstock.broker.access import INSIDE
from penstock.broker.stores import open_store
from penstock.clock import SystemClock
from penstock.names import QueueName
from penstock.operations import GetStats

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
