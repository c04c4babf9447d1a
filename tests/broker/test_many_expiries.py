"""Many leases that end together, or delayed messages due together, do not block the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from threading import current_thread, main_thread
from typing import Any

import pytest

from penstock.broker import Broker, Caller, QueueName, Settlement
from penstock.broker.embedded.timer import Timer
from penstock.broker.embedded.wakeups import MOST_DUE_IN_LOOP, Wakeups
from penstock.errors import DiskFull
from penstock.ledger import Ledger
from penstock.model import NewMessage
from penstock.operations import GetStats, Pause, Purge, Resume
from penstock.queue.core import QueueCore
from penstock.queue.decisions import count_messages, decide_due, decide_expired_keyed
from penstock.queue.events import Event
from penstock.queue.group import Group
from penstock.queue.waiting import Waiting
from tests.broker.conftest import OpenBroker

ON_DISK = True
ANN = Caller("ip:ann")
ORDERS = QueueName("shop", "orders")
QUEUES = {"sync": "never", "backoff_base_s": 0}


Call = Callable[[Broker], Awaitable[object]]
CALLS: dict[str, Call] = {
    "lease": lambda broker: broker.lease(ANN, ORDERS),
    "stats": lambda broker: broker.run(ANN, GetStats(), ORDERS),
    "purge": lambda broker: broker.run(ANN, Purge(), ORDERS),
    "lease dead": lambda broker: broker.lease_dead(ANN, ORDERS),
}


@pytest.mark.parametrize("per_lease", [1, MOST_DUE_IN_LOOP + 500])
async def test_many_leases_that_end_together_are_expired_in_a_thread(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch, per_lease: int
) -> None:
    in_loop, in_threads = [0], [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        events = decide_due(*arguments, **options)
        (in_loop if current_thread() is main_thread() else in_threads).append(len(events))
        return events

    monkeypatch.setattr("penstock.queue.core.decide_due", counted)
    most = MOST_DUE_IN_LOOP + 500
    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [b"x"] * most)
        for _ in range(most // per_lease):
            await broker.lease(ANN, ORDERS, n=per_lease, lease_s=10)
        waiting = broker.lease(ANN, ORDERS, n=1, wait_s=60)
        (again,) = await waiting
        assert (again.attempt, sum(in_threads), sum(in_loop)) == (2, most, 0)


async def test_few_leases_that_end_together_are_expired_in_the_loop(
    open_broker: OpenBroker,
) -> None:
    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [b"x"] * 10)
        await broker.lease(ANN, ORDERS, n=10, lease_s=10)
        (again,) = await broker.lease(ANN, ORDERS, n=1, wait_s=60)
        assert again.attempt == 2


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
async def test_a_call_before_the_timer_fires_waits_for_a_thread_that_expires_many_leases(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    in_loop, in_threads = [0], [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        events = decide_due(*arguments, **options)
        (in_loop if current_thread() is main_thread() else in_threads).append(len(events))
        return events

    monkeypatch.setattr("penstock.queue.core.decide_due", counted)
    monkeypatch.setattr(Timer, "plan", lambda *_: None)  # it fires too late
    most = MOST_DUE_IN_LOOP + 500
    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [b"x"] * most)
        await broker.lease(ANN, ORDERS, n=most, lease_s=10)
        await asyncio.sleep(11)
        await asyncio.gather(*(call(broker) for _ in range(3)))
        assert (sum(in_threads), sum(in_loop)) == (most, 0)


async def test_a_call_that_waited_for_a_long_one_does_not_expire_many_leases_in_the_loop(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_loop = [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        events = decide_due(*arguments, **options)
        if current_thread() is main_thread():
            in_loop.append(len(events))
        return events

    monkeypatch.setattr("penstock.queue.core.decide_due", counted)
    most = MOST_DUE_IN_LOOP + 500
    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [b"x"] * most)
        await broker.lease(ANN, ORDERS, n=most, lease_s=10)
        queue = broker.store.open_queues[ORDERS]  # type: ignore[attr-defined]
        async with queue.threads.turn:  # as a long call in a thread has it
            queue.threads.is_occupied = True
            waiting = broker.lease(ANN, ORDERS)
            await asyncio.sleep(11)
            queue.threads.is_occupied = False
        (again,) = await waiting
        assert (again.attempt, sum(in_loop)) == (2, 0)


@pytest.mark.parametrize("has_timer", [True, False])
async def test_many_delayed_messages_that_are_due_together_are_promoted_in_a_thread(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch, has_timer: bool
) -> None:
    promote, in_loop, in_threads = Waiting.promote, [0], [0]

    def counted(waiting: Waiting, now_ns: int) -> None:
        before = waiting.scheduled
        promote(waiting, now_ns)
        (in_loop if current_thread() is main_thread() else in_threads).append(
            before - waiting.scheduled
        )

    monkeypatch.setattr(Waiting, "promote", counted)
    if not has_timer:
        monkeypatch.setattr(Timer, "plan", lambda *_: None)
    most = MOST_DUE_IN_LOOP + 500
    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [NewMessage(payload=b"x", delay=10)] * most)
        await asyncio.sleep(11)
        assert len(await broker.lease(ANN, ORDERS, n=most)) == most
        assert (sum(in_threads), sum(in_loop)) == (most, 0)


async def test_a_call_that_waits_gets_the_next_of_a_key_when_the_first_expires(
    open_broker: OpenBroker,
) -> None:
    async with open_broker(queues=QUEUES) as broker:
        waiting = broker.lease(ANN, ORDERS, wait_s=60)
        await broker.publish(ANN, ORDERS, [NewMessage(payload=b"fails", key="k", ttl=10)])
        await broker.publish(ANN, ORDERS, [NewMessage(payload=b"next", key="k")])
        (failed,) = await waiting
        await broker.settle(ANN, [Settlement("nack", failed.receipt, delay_s=3600)])
        async with asyncio.timeout(11):
            (one,) = await broker.lease(ANN, ORDERS, wait_s=60)
        assert one.payload == b"next"


@pytest.mark.parametrize("batch", [True, False])
async def test_a_message_that_is_published_while_others_wait_frees_its_key_when_it_expires(
    open_broker: OpenBroker, batch: bool
) -> None:
    """It is never delivered: its priority is too low, and the queue is paused until it expires."""
    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [b"first"])
        await broker.run(ANN, Pause(), ORDERS)
        waiting = broker.lease(ANN, ORDERS, wait_s=3600)
        new = [NewMessage(payload=b"x", key="k", ttl=10), NewMessage(payload=b"next", key="k")]
        for some in [new] if batch else [new[:1], new[1:]]:
            await broker.publish(ANN, ORDERS, some)
        await asyncio.sleep(11)
        queue = broker.store.open_queues[ORDERS]  # type: ignore[attr-defined]
        assert queue.core.main.parked == 0
        await broker.run(ANN, Resume(), ORDERS)
        await waiting


@pytest.mark.parametrize("has_timer", [True, False])
async def test_many_messages_with_keys_that_expire_together_are_removed_in_a_thread(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch, has_timer: bool
) -> None:
    in_loop, in_threads = [0], [0]

    def counted(group: Group, now_ns: int) -> list[Event]:
        events = decide_expired_keyed(group, now_ns)
        is_loop = current_thread() is main_thread()
        (in_loop if is_loop else in_threads).append(count_messages(events))
        return events

    monkeypatch.setattr("penstock.queue.core.decide_expired_keyed", counted)
    if not has_timer:
        monkeypatch.setattr(Timer, "plan", lambda *_: None)
    most = MOST_DUE_IN_LOOP + 500
    async with open_broker(queues=QUEUES) as broker:
        old = [NewMessage(payload=b"x", key=f"{number % 100}", ttl=10) for number in range(most)]
        await broker.publish(ANN, ORDERS, [*old, NewMessage(payload=b"next", key="7")])
        await asyncio.sleep(11)
        assert [one.payload for one in await broker.lease(ANN, ORDERS, n=9)] == [b"next"]
        assert (sum(in_threads), sum(in_loop)) == (most, 0)


@pytest.mark.parametrize("count", [1, MOST_DUE_IN_LOOP + 500])
async def test_a_lease_that_ends_in_a_queue_that_takes_no_writes_does_not_keep_the_loop_busy(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    wake, wakes = Wakeups.wake, [0]

    def counted(queue: Wakeups) -> None:
        wakes[0] += 1
        assert wakes[0] < 100
        wake(queue)

    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [b"x"] * count)
        await broker.lease(ANN, ORDERS, n=count, lease_s=10)
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "is_stopped", True)
            patched.setattr(Wakeups, "wake", counted)
            await asyncio.sleep(30)
            assert 10 < wakes[0] < 100
        (again,) = await broker.lease(ANN, ORDERS, wait_s=60)
        assert again.attempt == 2


async def test_an_error_in_one_queue_does_not_keep_others_from_their_due_messages(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, failing = QueueCore.tick, [True]

    def fail(core: QueueCore) -> int:
        if failing and core.ledger.path.endswith("first"):
            raise DiskFull("no room")
        return tick(core)

    async with open_broker(queues=QUEUES) as broker:
        waiting = []
        for name in ("first", "second"):
            queue = QueueName("shop", name)
            await broker.publish(ANN, queue, [NewMessage(payload=b"x", delay=10)])
            waiting.append(broker.lease(ANN, queue, wait_s=60))
        await asyncio.sleep(5)
        monkeypatch.setattr(QueueCore, "tick", fail)
        async with asyncio.timeout(20):
            assert len(await waiting[1]) == 1
        await asyncio.sleep(10)
        failing.clear()
        async with asyncio.timeout(2):
            assert len(await waiting[0]) == 1
