"""Long polls: one message wakes one waiter, in turn; whoever goes away loses nothing."""

import asyncio
from typing import Any

import pytest

from penstock.broker import Broker, Caller, QueueName, Settlement
from penstock.errors import InvalidInput, NoSuchGroup, NoSuchQueue, TooManyRequests
from penstock.model import LeasedMessage, NewMessage
from penstock.operations import CreateGroup
from tests.broker.conftest import OpenBroker, in_this_process
from tests.harness.virtual_loop import LoopClock

ANN = Caller("ip:ann")
ORDERS = QueueName("shop", "orders")


Answer = asyncio.Future[list[LeasedMessage]]


def waiting(broker: Broker, n: int = 1, wait_s: float = 60) -> Answer:
    return broker.lease(ANN, ORDERS, n=n, wait_s=wait_s)


async def publish(broker: Broker, *payloads: bytes | NewMessage) -> None:
    await broker.publish(ANN, ORDERS, list(payloads))


async def settled() -> None:
    """Let the loop do what it can do without time passing."""
    await asyncio.sleep(0.001)


def payloads(leased: list[LeasedMessage]) -> list[bytes]:
    return [one.payload for one in leased]


async def test_a_waiter_gets_what_is_published_at_that_very_time(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker() as broker:
        answer = waiting(broker)
        await asyncio.sleep(20)
        await publish(broker, b"news")
        assert payloads(await answer) == [b"news"]
        assert clock.passed_ns == pytest.approx(20e9, abs=1e6)


async def test_a_waiter_gets_a_delayed_message_when_it_is_due(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker() as broker:
        await publish(broker, NewMessage(payload=b"later", delay=50))
        assert payloads(await waiting(broker)) == [b"later"]
        assert clock.passed_ns == pytest.approx(50e9, abs=1e6)


@pytest.mark.parametrize("first_ends_by", ["ack", "expiry"])
async def test_a_waiter_gets_a_delayed_message_that_was_behind_another_of_its_key(
    open_broker: OpenBroker, clock: LoopClock, first_ends_by: str
) -> None:
    async with open_broker() as broker:
        expires = first_ends_by == "expiry"
        await publish(broker, NewMessage(payload=b"first", key="k", ttl=5.0 if expires else None))
        if not expires:
            (first,) = await waiting(broker)
        await publish(broker, NewMessage(payload=b"second", key="k", delay=10.0))
        if expires:
            await asyncio.sleep(6)
        answer = waiting(broker)
        await settled()
        if not expires:
            await broker.settle(ANN, [Settlement("ack", first.receipt)])
        assert payloads(await answer) == [b"second"]
        assert 9.9 < clock.passed_ns / 1e9 < 10.1


async def test_a_waiter_gets_a_message_whose_lease_ran_out(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker(queues={"backoff_base_s": 0.0}) as broker:
        await publish(broker, b"work")
        await broker.lease(ANN, ORDERS, lease_s=30.0)
        (again,) = await waiting(broker)
        assert again.attempt == 2
        assert clock.passed_ns == pytest.approx(30e9, abs=1e6)


async def test_nothing_came_is_an_empty_answer_at_the_end_of_the_time(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker() as broker:
        assert await waiting(broker, wait_s=7) == []
        assert clock.passed_ns == pytest.approx(7e9, abs=1e6)
        assert len(broker.waiting) == 0


async def test_one_message_wakes_the_one_who_waited_longest(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        answers = []
        for _ in range(5):
            answers.append(waiting(broker))
            await settled()
        await publish(broker, b"one")
        await settled()
        assert [answer.done() for answer in answers] == [True, False, False, False, False]
        await publish(broker, b"two")
        await settled()
        assert [answer.done() for answer in answers] == [True, True, False, False, False]
        for answer in answers:
            answer.cancel()


@in_this_process
async def test_several_messages_are_shared_by_those_who_wait(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        answers = [waiting(broker, n=10) for _ in range(3)]
        await settled()
        await publish(broker, *(b"%d" % n for n in range(7)))
        sizes = [len(await answer) for answer in answers]
        assert sum(sizes) == 7
        assert min(sizes) == 2


async def test_who_goes_away_while_waiting_takes_nothing(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        gone, stays = waiting(broker), waiting(broker)
        await settled()
        gone.cancel()
        await publish(broker, b"one")
        assert payloads(await stays) == [b"one"]
        assert len(broker.waiting) == 0


async def test_who_goes_away_while_it_is_answered_gives_the_message_back(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        gone = waiting(broker)
        await settled()
        published = broker.publish(ANN, ORDERS, [b"one"])
        await asyncio.sleep(0)  # the waiter is served now, and waits for the disk
        gone.cancel()
        await published
        (again,) = await waiting(broker)
        assert (again.payload, again.attempt) == (b"one", 1)


async def test_an_answer_that_nobody_takes_is_given_back(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await publish(broker, b"one")
        leased = await waiting(broker)
        broker.give_back(leased)
        (again,) = await waiting(broker)
        assert (again.payload, again.attempt) == (b"one", 1)


async def test_groups_wait_in_lines_of_their_own(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await broker.run(ANN, CreateGroup("audit", to="end"), ORDERS)
        main = waiting(broker)
        audit = broker.lease(ANN, ORDERS, group="audit", wait_s=60)
        await settled()
        await publish(broker, b"both")
        assert payloads(await main) == payloads(await audit) == [b"both"]


async def test_a_group_that_is_not_there_is_refused_at_once(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await publish(broker, b"one")
        with pytest.raises(NoSuchGroup):
            await broker.lease(ANN, ORDERS, group="none", wait_s=60)
        await settled()
        assert len(broker.waiting) == 0


async def test_waiters_of_a_deleted_queue_are_told(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        answer = waiting(broker)
        await settled()
        await broker.delete_queue(ANN, ORDERS)
        with pytest.raises(NoSuchQueue):
            await answer


async def test_a_stop_answers_everyone_with_nothing(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        answers = [waiting(broker) for _ in range(3)]
        await settled()
        await broker.stop()
        assert [await answer for answer in answers] == [[], [], []]


async def test_too_many_waiters_are_refused(open_broker: OpenBroker) -> None:
    async with open_broker(max_waiters=2) as broker:
        await publish(broker, b"x")
        await waiting(broker)
        answers = [waiting(broker) for _ in range(2)]
        with pytest.raises(TooManyRequests):
            await waiting(broker)
        for answer in answers:
            answer.cancel()


async def test_a_wait_has_a_limit(open_broker: OpenBroker, clock: LoopClock) -> None:
    async with open_broker(max_wait_s=10) as broker:
        for bad in (1e9, -1, float("nan")):
            with pytest.raises(InvalidInput, match="wait_s"):
                await waiting(broker, wait_s=bad)
        assert await waiting(broker, wait_s=600) == []
        assert clock.passed_ns == pytest.approx(10e9, abs=1e6)


async def test_a_released_message_goes_to_the_next_waiter(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await publish(broker, b"one")
        (leased,) = await waiting(broker)
        answer = waiting(broker)
        await settled()
        await broker.settle(ANN, [Settlement("release", leased.receipt)])
        assert payloads(await answer) == [b"one"]


async def test_who_comes_after_the_lines_were_closed_does_not_wait(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker() as broker:
        await publish(broker, b"one")
        broker.waiting.close()
        assert payloads(await waiting(broker)) == [b"one"]
        assert await waiting(broker) == []
        assert clock.passed_ns < 1e6


async def test_what_is_published_while_a_waiter_tries_is_not_overlooked(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    """The try found nothing, the message came, and only then was the outcome of the try known."""
    async with open_broker() as broker:
        await publish(broker, b"first")
        await waiting(broker)
        lease, tries = broker.store.lease, []

        def slow_lease(*arguments: Any, **options: Any) -> Answer:
            tries.append(asyncio.get_running_loop().create_future())
            return tries[-1]

        broker.store.lease = slow_lease  # type: ignore[method-assign]
        answer = waiting(broker)
        await publish(broker, b"second")
        await settled()
        broker.store.lease = lease  # type: ignore[method-assign]
        tries[0].set_result([])
        assert payloads(await answer) == [b"second"]
        assert clock.passed_ns < 1e9


@pytest.mark.parametrize("settings", [{"tenant_rate_per_s": 0.1}, {"delivery_rate_per_s": 0.1}])
async def test_a_waiter_gets_a_message_when_the_rate_lets_it_go(
    open_broker: OpenBroker, clock: LoopClock, settings: dict[str, Any]
) -> None:
    async with open_broker() as broker:
        await broker.create_queue(ANN, ORDERS, settings)
        await publish(broker, *[NewMessage(payload=b"1", tenant="a")] * 3)
        assert payloads(await waiting(broker)) == [b"1"]
        for seconds in (10, 20):
            assert payloads(await waiting(broker)) == [b"1"]
            assert clock.passed_ns == pytest.approx(seconds * 1e9, abs=2e6)


@pytest.mark.parametrize("settings", [{"tenant_max_in_flight": 1}, {"max_in_flight": 1}])
async def test_a_waiter_gets_a_message_when_another_makes_room(
    open_broker: OpenBroker, clock: LoopClock, settings: dict[str, Any]
) -> None:
    async with open_broker() as broker:
        await broker.create_queue(ANN, ORDERS, settings)
        await publish(broker, *[NewMessage(payload=b"1", tenant="a")] * 2)
        (first,) = await waiting(broker)
        answer = waiting(broker)
        await asyncio.sleep(7)
        assert not answer.done()
        await broker.settle(ANN, [Settlement("ack", first.receipt)])
        assert payloads(await answer) == [b"1"]
        assert clock.passed_ns == pytest.approx(7e9, abs=2e6)
