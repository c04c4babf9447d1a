"""Threads of the same process that use an open queue of the broker directly, as a holder's do."""

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import cast

import pytest

from penstock.broker import Broker, Caller, EmbeddedStore, QueueName
from penstock.queue.queue import Queue
from tests.broker.conftest import OpenBroker
from tests.harness.virtual_loop import LoopClock

ON_DISK = True
ANN = Caller("ip:ann")
ORDERS = QueueName("shop", "orders")


def in_a_thread(work: Callable[[], object]) -> None:
    thread = Thread(target=work)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def own_queue(broker: Broker) -> Queue:
    return Queue(cast(EmbeddedStore, broker.store).open_queues[ORDERS].core)


async def test_a_waiting_call_gets_what_another_thread_publishes(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker() as broker:
        answer = broker.lease(ANN, ORDERS, n=1, wait_s=60)
        await asyncio.sleep(20)
        in_a_thread(lambda: own_queue(broker).enqueue(b"news"))
        assert [one.payload for one in await answer] == [b"news"]
        assert clock.passed_ns == pytest.approx(20e9, abs=1e6)


async def test_a_waiting_call_gets_it_when_it_is_due(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker() as broker:
        answer = broker.lease(ANN, ORDERS, n=1, wait_s=60)
        await asyncio.sleep(10)
        in_a_thread(lambda: own_queue(broker).enqueue(b"later", delay=15))
        assert [one.payload for one in await answer] == [b"later"]
        assert clock.passed_ns == pytest.approx(25e9, abs=1e6)


async def test_a_waiting_call_gets_what_another_thread_leased_and_lost(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker(queues={"backoff_base_s": 0}) as broker:
        await broker.publish(ANN, ORDERS, [b"one"])
        in_a_thread(lambda: own_queue(broker).lease(lease_s=5))
        answer = broker.lease(ANN, ORDERS, n=1, wait_s=60)
        await asyncio.sleep(1)
        in_a_thread(lambda: own_queue(broker).stats())
        assert [one.attempt for one in await answer] == [2]
        assert clock.passed_ns == pytest.approx(5e9, abs=1e6)


async def test_another_event_loop_is_another_thread(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    """A listener that runs in the loop of a user must not act as if it were in the broker's."""
    asyncio.get_running_loop().set_debug(True)  # it refuses calls from other threads
    async with open_broker() as broker:
        answer = broker.lease(ANN, ORDERS, n=1, wait_s=60)
        await asyncio.sleep(1)

        async def publish() -> None:
            await own_queue(broker).for_tasks().enqueue(b"news")

        in_a_thread(lambda: asyncio.run(publish()))
        assert [one.payload for one in await answer] == [b"news"]
        assert clock.passed_ns == pytest.approx(1e9, abs=1e6)
