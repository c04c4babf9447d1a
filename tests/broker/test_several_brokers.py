"""Two brokers on one store, in one process: what one does, the other sees."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.broker import (
    Broker,
    BrokerSettings,
    Caller,
    EmbeddedStore,
    KeyEditor,
    Keys,
    QueueName,
    Settlement,
)
from penstock.errors import (
    AlreadyExists,
    KeyRefused,
    NoSuchNamespace,
    NoSuchQueue,
    QuotaExceeded,
)
from penstock.ledger.memory_files import MemoryFiles
from penstock.operations import GetMessage, GetStats
from tests.harness.distant_store import DistantStore
from tests.harness.virtual_loop import LoopClock, LoopThreads

SeenFrom = Callable[[EmbeddedStore], Any]
ANN = Caller("ip:ann")
ORDERS = QueueName("shop", "orders")


@pytest.fixture(params=["memory", "distant"])
def seen_from(request: pytest.FixtureRequest) -> Callable[[EmbeddedStore], Any]:
    """A store as it is, or as it is from another machine."""
    return DistantStore if request.param == "distant" else lambda store: store


async def told() -> None:
    """Let the notices of the other broker arrive."""
    await asyncio.sleep(0.001)


@asynccontextmanager
async def two_brokers(
    clock: LoopClock,
    seen_from: Callable[[EmbeddedStore], Any] = lambda store: store,
    **settings: object,
) -> AsyncIterator[tuple[Broker, Broker]]:
    store = EmbeddedStore("/data", files=MemoryFiles(), clock=clock, sync_threads=LoopThreads)
    chosen = BrokerSettings(**settings)  # type: ignore[arg-type]
    first = Broker(seen_from(store), chosen, clock=clock)
    second = Broker(seen_from(store.for_another()), chosen, clock=clock)
    await first.start()
    await second.start()
    try:
        yield first, second
    finally:
        await second.stop()
        await first.stop()


async def test_each_broker_has_a_node_id_of_its_own_and_they_share_the_cursor_key(
    clock: LoopClock, seen_from: SeenFrom
) -> None:
    async with two_brokers(clock, seen_from) as (first, second):
        assert first.node_id != second.node_id
        assert first.secret == second.secret


async def test_a_queue_created_through_one_is_used_through_the_other(
    clock: LoopClock, seen_from: SeenFrom
) -> None:
    async with two_brokers(clock, seen_from, create_on_use=False) as (first, second):
        with pytest.raises(NoSuchQueue):
            await second.publish(ANN, ORDERS, [b"x"])
        await first.create_queue(ANN, ORDERS, {"max_attempts": 2})
        await told()
        assert second.queues(ANN) == [ORDERS]
        (published,) = await second.publish(ANN, ORDERS, [b"x"])
        assert (await first.run(ANN, GetMessage(published.id))).message.payload == b"x"
        (leased,) = await first.lease(ANN, ORDERS)
        (outcome,) = await second.settle(ANN, [Settlement("ack", leased.receipt)])
        assert outcome.status == "done"


async def test_a_queue_of_which_no_notice_came_yet_is_found_all_the_same(
    clock: LoopClock, seen_from: SeenFrom
) -> None:
    async with two_brokers(clock, seen_from) as (first, second):
        (published,) = await first.publish(ANN, ORDERS, [b"x"])
        (leased,) = await first.lease(ANN, ORDERS)
        second.on_catalogue([], {})  # as if it had been told of nothing
        assert (await second.run(ANN, GetMessage(published.id))).message.payload == b"x"
        (outcome,) = await second.settle(ANN, [Settlement("release", leased.receipt)])
        assert outcome.status == "done"
        assert [one.payload for one in await second.lease(ANN, ORDERS)] == [b"x"]
        await second.publish(ANN, ORDERS, [b"z"])
        assert (await first.run(ANN, GetStats(), ORDERS)).published == 2


async def test_namespaces_are_changed_through_either(clock: LoopClock, seen_from: SeenFrom) -> None:
    async with two_brokers(clock, seen_from) as (first, second):
        await first.namespaces.create(ANN, "shop", defaults={"max_attempts": 3})
        with pytest.raises(AlreadyExists):
            await second.namespaces.create(ANN, "shop")
        await told()
        await second.namespaces.change(ANN, "shop", {"max_queues": 1})
        await first.namespaces.change(ANN, "shop", {"max_bytes": 10_000})
        await told()
        assert second.namespaces.get(ANN, "shop") == first.namespaces.get(ANN, "shop")
        assert second.namespaces.get(ANN, "shop")[2:] == ({"max_attempts": 3}, 1, 10_000)
        assert (await second.create_queue(ANN, ORDERS)).settings.max_attempts == 3
        with pytest.raises(QuotaExceeded):
            await first.create_queue(ANN, QueueName("shop", "more"))
        await second.namespaces.delete(ANN, "shop", force=True)
        await told()
        with pytest.raises(NoSuchNamespace):
            first.namespaces.get(ANN, "shop")


async def test_both_create_a_queue_on_use_at_the_same_time(
    clock: LoopClock, seen_from: SeenFrom
) -> None:
    async with two_brokers(clock, seen_from) as brokers:
        calls = [brokers[n % 2].publish(ANN, ORDERS, [b"%d" % n]) for n in range(10)]
        for call in calls:
            await call
        assert (await brokers[0].run(ANN, GetStats(), ORDERS)).ready == 10


async def test_a_call_that_waits_at_one_is_woken_by_a_publish_through_the_other(
    clock: LoopClock, seen_from: SeenFrom
) -> None:
    async with two_brokers(clock, seen_from) as (first, second):
        await first.create_queue(ANN, ORDERS)
        waiting = second.lease(ANN, ORDERS, wait_s=60)
        await asyncio.sleep(5)
        await first.publish(ANN, ORDERS, [b"news"])
        assert [one.payload for one in await waiting] == [b"news"]
        assert clock.passed_ns == pytest.approx(5e9, abs=1e6)


async def test_a_call_that_waits_for_a_queue_that_the_other_deletes_is_told(
    clock: LoopClock, seen_from: SeenFrom
) -> None:
    async with two_brokers(clock, seen_from) as (first, second):
        await first.create_queue(ANN, ORDERS)
        waiting = second.lease(ANN, ORDERS, wait_s=60)
        await asyncio.sleep(1)
        await first.delete_queue(ANN, ORDERS)
        with pytest.raises(NoSuchQueue):
            await waiting
        assert second.queues(ANN) == []


async def test_a_key_revoked_through_one_is_refused_at_the_other_at_once(
    clock: LoopClock, seen_from: SeenFrom
) -> None:
    async with two_brokers(clock, seen_from) as (first, second):
        keys = Keys(second.store, clock)
        second.on_document_changed.append(keys.on_document)
        await keys.load()
        editor = KeyEditor(first.store, clock)
        key, token = await editor.create("web", ["read"])
        await asyncio.sleep(0.01)
        assert keys.required
        assert keys.known(token, "1.2.3.4") is not None
        await editor.revoke(key.id)
        await asyncio.sleep(0.01)
        assert keys.known(token, "1.2.3.4") is None
        with pytest.raises(KeyRefused):
            await keys.admit(token, "1.2.3.4")


async def test_one_broker_goes_on_when_the_other_stops(
    clock: LoopClock, seen_from: SeenFrom
) -> None:
    async with two_brokers(clock, seen_from) as (first, second):
        await first.publish(ANN, ORDERS, [b"x"])
        await first.stop()
        assert [one.payload for one in await second.lease(ANN, ORDERS)] == [b"x"]
