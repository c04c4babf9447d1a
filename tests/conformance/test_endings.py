"""Waiting for the end of a message, on every store: woken by an event, until a deadline."""

import asyncio

import pytest

from penstock.broker.endings import Endings
from penstock.broker.store import Settlement, Store
from penstock.errors import NoSuchMessage, NoSuchQueue, TooManyRequests
from penstock.names import QueueName
from penstock.operations import AwaitEnding, Cancel
from tests.conformance.conftest import ORDERS, Heard, StoreLife


class Told(Heard):
    """A listener that wakes the calls that wait."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.endings = Endings(store, most=2)

    def on_ready(self, queue: QueueName) -> None:
        self.endings.on_ready(queue)


async def opened(life: StoreLife) -> Endings:
    await life.open()
    await life.store.close()
    life.store = life.new_store()
    told = Told(life.store)
    await life.store.open(told)
    return told.endings


async def test_a_wait_ends_with_the_message(life: StoreLife) -> None:
    endings = await opened(life)
    for verdict in ("ack", "nack", "cancel"):
        (id_,) = await life.publish(b"x")
        (leased,) = await life.lease(1)
        waits = asyncio.ensure_future(endings.wait(ORDERS, AwaitEnding(id_, wait_s=20)))
        await asyncio.sleep(0.01)
        assert not waits.done()
        if verdict == "cancel":
            assert await life.store.run(ORDERS, Cancel(id_))
        else:
            settled = Settlement(verdict, leased.receipt, dead=verdict == "nack")  # type: ignore[arg-type]
            await life.store.settle(ORDERS, [settled])
        assert await waits
        assert await endings.wait(ORDERS, AwaitEnding(id_))
    await life.store.close()


async def test_a_wait_has_a_deadline_and_other_messages_do_not_end_it(life: StoreLife) -> None:
    endings = await opened(life)
    (id_,) = await life.publish(b"x")
    assert not await endings.wait(ORDERS, AwaitEnding(id_))
    waits = asyncio.ensure_future(endings.wait(ORDERS, AwaitEnding(id_, wait_s=5)))
    await life.publish(b"other")
    assert not await waits
    with pytest.raises(NoSuchMessage):
        await endings.wait(ORDERS, AwaitEnding(id_[:-1] + "9", wait_s=5))
    await life.store.close()


async def test_calls_are_bounded_and_end_with_the_broker_and_the_queue(life: StoreLife) -> None:
    endings = await opened(life)
    (id_,) = await life.publish(b"x")
    asked = AwaitEnding(id_, wait_s=20)
    waits = [asyncio.ensure_future(endings.wait(ORDERS, asked)) for _ in range(2)]
    await asyncio.sleep(0.01)
    with pytest.raises(TooManyRequests):
        await endings.wait(ORDERS, asked)
    endings.gone(ORDERS)
    for one in waits:
        with pytest.raises(NoSuchQueue):
            await one
    last = asyncio.ensure_future(endings.wait(ORDERS, asked))
    await asyncio.sleep(0.01)
    endings.close()
    assert not await last
    assert not await endings.wait(ORDERS, asked)
    await life.store.close()


async def test_another_broker_ends_it(life: StoreLife) -> None:
    endings = await opened(life)
    second, _ = await life.open_another()
    (id_,) = await life.publish(b"x")
    waits = asyncio.ensure_future(endings.wait(ORDERS, AwaitEnding(id_, wait_s=20)))
    (leased,) = await second.lease(ORDERS, 1)
    await second.settle(ORDERS, [Settlement("ack", leased.receipt)])
    assert await waits
    await second.close()
    await life.store.close()
