"""A consumer never holds more than its credit, loses nothing, and gives everything back."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import Broker, BrokerSettings, EmbeddedStore, QueueName, Settlement
from penstock.broker.access import INSIDE, Caller
from penstock.broker.consumers import MOST_CREDIT, Consumer
from penstock.errors import InvalidInput, NoSuchGroup, NoSuchQueue
from penstock.model import LeasedMessage
from penstock.operations import GetStats
from tests.harness.virtual_loop import LoopClock, LoopThreads, run_virtually

ORDERS = QueueName("default", "orders")


def play(
    path: Path, story: Callable[[Broker, LoopClock], Awaitable[None]], **settings: Any
) -> None:
    async def main(clock: LoopClock) -> None:
        store = EmbeddedStore(str(path / "data"), clock=clock, sync_threads=LoopThreads)
        broker = Broker(store, BrokerSettings(**settings), clock=clock)
        await broker.start()
        try:
            await story(broker, clock)
        finally:
            await broker.stop()

    run_virtually(main)


def consumer(broker: Broker, credit: int, **options: Any) -> Consumer:
    return Consumer(broker, INSIDE, ORDERS, credit=credit, **options)


async def publish(broker: Broker, count: int) -> None:
    await broker.publish(INSIDE, ORDERS, [b"%d" % number for number in range(count)])


async def take(one: Consumer, count: int) -> list[LeasedMessage]:
    """So many, as they come."""
    found: list[LeasedMessage] = []
    while len(found) < count:
        found += await one.next()
    assert len(found) == count
    return found


async def ready(broker: Broker) -> int:
    return (await broker.run(INSIDE, GetStats(), ORDERS)).ready


def acks(*leased: LeasedMessage) -> list[Settlement]:
    return [Settlement("ack", one.receipt) for one in leased]


def test_it_holds_no_more_than_its_credit(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 3)
        await publish(broker, 10)
        held = await take(one, 3)
        more = asyncio.create_task(one.next())
        await asyncio.sleep(5)
        assert not more.done()
        assert (one.unsettled, await ready(broker)) == (3, 7)
        await one.settle(acks(held[0], held[1]))
        assert len(await more) == 2
        assert one.unsettled == 3

    play(tmp_path, story)


def test_it_waits_for_messages_without_asking_again(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 3)
        waiting = asyncio.create_task(one.next())
        await asyncio.sleep(3600)
        assert len(broker.waiting) == 1
        await publish(broker, 1)
        assert len(await waiting) == 1
        assert clock.passed_ns == 3600 * 10**9

    play(tmp_path, story)


def test_a_message_held_for_too_long_makes_room_again(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 1, lease_s=10)
        await publish(broker, 2)
        (first,) = await one.next()
        (second,) = await one.next()
        assert 10 <= clock.passed_ns / 1e9 < 11
        assert second.id != first.id
        assert one.unsettled == 1

    play(tmp_path, story)


def test_an_extended_lease_is_held_for_longer(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 1, lease_s=10)
        await publish(broker, 2)
        (first,) = await one.next()
        await one.settle([Settlement("extend", first.receipt, lease_s=100)])
        await one.next()
        assert 100 <= clock.passed_ns / 1e9 < 101

    play(tmp_path, story)


def test_what_is_given_back_at_the_end_is_ready_and_unspent(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 5)
        await publish(broker, 5)
        held = await take(one, 5)
        await one.settle(acks(held[0]))
        one.close()
        assert await one.next() == []
        again = await broker.lease(INSIDE, ORDERS, n=9)
        assert [(message.id, message.attempt) for message in again] == [
            (message.id, 1) for message in held[1:]
        ]

    play(tmp_path, story)


def test_a_settlement_on_its_way_when_it_is_closed_is_not_undone(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 2)
        await publish(broker, 2)
        held = await take(one, 2)
        settled = one.settle(acks(held[0]))
        one.close()
        assert (await settled)[0].status == "done"
        stats = await broker.run(INSIDE, GetStats(), ORDERS)
        assert (stats.acked, stats.ready) == (1, 1)

    play(tmp_path, story)


def test_closing_while_it_waits_ends_the_wait(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 1)
        waiting = asyncio.create_task(one.next())
        await asyncio.sleep(1)
        one.close()
        assert await waiting == []
        assert len(broker.waiting) == 0

    play(tmp_path, story)


def test_cancelling_who_waits_loses_nothing(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 1)
        waiting = asyncio.create_task(one.next())
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(broker.waiting) == 0
        await publish(broker, 1)
        assert await ready(broker) == 1

    play(tmp_path, story)


def test_cancelling_in_the_same_moment_as_the_credit_goes_is_not_swallowed(
    tmp_path: Path,
) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 1)
        waiting = asyncio.create_task(one.next())
        await asyncio.sleep(1)
        one.set_credit(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    play(tmp_path, story)


def test_credit_that_is_taken_back_stops_the_asking(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 5)
        waiting = asyncio.create_task(one.next())
        await asyncio.sleep(1)
        one.set_credit(0)
        await publish(broker, 3)
        await asyncio.sleep(1)
        assert await ready(broker) == 3
        one.set_credit(2)
        assert len(await waiting) == 2

    play(tmp_path, story)


@pytest.mark.parametrize("credit", [-1, MOST_CREDIT + 1, 1.5, True, "1"])
def test_credit_that_is_no_credit_is_refused(tmp_path: Path, credit: Any) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        with pytest.raises(InvalidInput):
            consumer(broker, credit)
        with pytest.raises(InvalidInput):
            consumer(broker, 1).set_credit(credit)

    play(tmp_path, story)


def test_a_deleted_queue_is_not_made_again(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 1)
        await publish(broker, 1)
        (message,) = await one.next()
        await broker.delete_queue(INSIDE, ORDERS)
        await one.settle(acks(message))
        with pytest.raises(NoSuchQueue):
            await one.next()
        assert not broker.has_queue(ORDERS)

    play(tmp_path, story)


def test_a_group_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        await publish(broker, 1)
        with pytest.raises(NoSuchGroup):
            await consumer(broker, 1, group="nobody").next()

    play(tmp_path, story)


def test_a_client_over_its_rate_waits_instead_of_failing(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        await publish(broker, 3)
        one = Consumer(broker, Caller("key:slow"), ORDERS, credit=1)
        for _ in range(3):
            (message,) = await one.next()
            await broker.settle(INSIDE, acks(message))
            one.close()
            one = Consumer(broker, Caller("key:slow"), ORDERS, credit=1)
        assert clock.passed_ns >= 19 * 10**9

    play(tmp_path, story, client_rate_per_s=0.1, client_burst=1)


def test_two_consumers_share_what_is_there(tmp_path: Path) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        first, second = consumer(broker, 10), consumer(broker, 10)
        waits = [asyncio.create_task(one.next()) for one in (first, second)]
        await asyncio.sleep(1)
        await publish(broker, 10)
        shares = [len(await wait) for wait in waits]
        assert shares == [5, 5]

    play(tmp_path, story)


def test_where_nobody_may_wait_it_asks_now_and_then_and_keeps_the_loop_free(
    tmp_path: Path,
) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        one = consumer(broker, 1)
        waiting = asyncio.create_task(one.next())
        await asyncio.sleep(10)
        await publish(broker, 1)
        assert len(await waiting) == 1
        assert clock.passed_ns <= 12 * 10**9

    play(tmp_path, story, max_wait_s=0.0)


def test_waits_that_are_all_cut_short_keep_the_loop_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def story(broker: Broker, clock: LoopClock) -> None:
        def answer_at_once(*_: Any, **__: Any) -> asyncio.Future[list[LeasedMessage]]:
            asked.append(clock.passed_ns)
            answer: asyncio.Future[list[LeasedMessage]] = asyncio.get_running_loop().create_future()
            answer.set_result([])
            return answer

        await broker.create_queue(INSIDE, ORDERS)
        monkeypatch.setattr(broker, "lease", answer_at_once)
        waiting = asyncio.create_task(consumer(broker, 1).next())
        await asyncio.sleep(9.5)
        waiting.cancel()
        assert len(asked) == 10

    play(tmp_path, story)


def test_what_comes_in_the_moment_of_a_cancellation_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: Broker, clock: LoopClock) -> None:
        await publish(broker, 1)
        leased = await broker.lease(INSIDE, ORDERS)
        answer: asyncio.Future[list[LeasedMessage]] = asyncio.get_running_loop().create_future()
        with monkeypatch.context() as patched:
            patched.setattr(broker, "lease", lambda *_, **__: answer)
            waiting = asyncio.create_task(consumer(broker, 1).next())
            await asyncio.sleep(1)
        answer.set_result(leased)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await ready(broker) == 1

    play(tmp_path, story)
