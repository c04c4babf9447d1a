"""Messages that come after messages of other queues: let go, dead and back with them, exactly."""

import asyncio

import pytest

from penstock.broker import Broker
from penstock.broker.access import INSIDE
from penstock.broker.store import Settlement
from penstock.codec import parse_id
from penstock.errors import InvalidInput, NoSuchMessage
from penstock.model import NewMessage
from penstock.names import QueueName
from penstock.operations import Cancel, ExplainWait, GetMessage, GetStats, OpenGate, Redrive
from penstock.queue.gate import CLOSED, HEADER
from tests.broker.conftest import OpenBroker

FIRST, SECOND = QueueName("shop", "first"), QueueName("shop", "second")
ABROAD = QueueName("abroad", "first")


async def publish(broker: Broker, queue: QueueName, **options: object) -> str:
    message = NewMessage(payload=b"x", max_attempts=1, **options)  # type: ignore[arg-type]
    (published,) = await broker.publish(INSIDE, queue, [message])
    return published.id


async def settle(broker: Broker, queue: QueueName, verdict: str = "ack") -> None:
    (leased,) = await broker.lease(INSIDE, queue)
    settlement = Settlement(verdict, leased.receipt)  # type: ignore[arg-type]
    (outcome,) = await broker.settle(INSIDE, [settlement])
    assert outcome.ok


async def state(broker: Broker, id_: str) -> str:
    return (await broker.run(INSIDE, GetMessage(id_))).state


async def until(broker: Broker, id_: str, wanted: str) -> None:
    """Wait until a message is in a state: within a minute of virtual time."""
    async with asyncio.timeout(60):
        while (found := await state(broker, id_)) != wanted:
            assert found != "leased"
            await asyncio.sleep(0.1)


async def test_a_message_is_let_go_when_one_of_another_queue_is_done(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        first = await publish(broker, FIRST)
        second = await publish(broker, SECOND, after=[first])
        third = await publish(broker, FIRST, after=[second])
        assert await state(broker, second) == "blocked"
        waiting = broker.lease(INSIDE, SECOND, wait_s=20)
        await settle(broker, FIRST)
        (leased,) = await waiting
        assert leased.id == second
        assert await state(broker, third) == "blocked"
        await broker.settle(INSIDE, [Settlement("ack", leased.receipt)])
        await until(broker, third, "ready")


async def test_what_is_done_already_lets_go_at_once(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        first = await publish(broker, FIRST)
        await settle(broker, FIRST)
        await until(broker, await publish(broker, SECOND, after=[first]), "ready")


async def test_a_dead_letter_of_another_queue_is_dead_for_both_and_comes_back_for_both(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        first = await publish(broker, FIRST)
        second = await publish(broker, SECOND, after=[first])
        last = await publish(broker, SECOND, after=[second])
        anyway = await publish(broker, SECOND, after=[first], after_failed="run")
        await settle(broker, FIRST, "nack")
        await until(broker, last, "dead")
        await until(broker, anyway, "ready")
        assert await broker.run(INSIDE, Redrive([first]), FIRST) == 1
        await until(broker, last, "blocked")
        await settle(broker, FIRST)
        await until(broker, second, "ready")


async def test_what_comes_after_a_cancelled_message_or_a_deleted_queue_is_dead(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        first = await publish(broker, FIRST)
        second = await publish(broker, SECOND, after=[first])
        assert await broker.run(INSIDE, Cancel(first))
        await until(broker, second, "dead")
        other = await publish(broker, FIRST)
        third = await publish(broker, SECOND, after=[other])
        await broker.delete_queue(INSIDE, FIRST)
        await until(broker, third, "dead")


async def test_a_broker_that_stops_before_it_noted_an_end_notes_it_after_its_start(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        first = await publish(broker, FIRST)
        second = await publish(broker, SECOND, after=[first])
        dead = await publish(broker, FIRST)
        third = await publish(broker, SECOND, after=[dead])
        await broker.following.close()  # as if it had died right here
        await settle(broker, FIRST)
        await settle(broker, FIRST, "nack")
        assert await state(broker, second) == await state(broker, third) == "blocked"
    async with open_broker() as broker:
        await until(broker, second, "ready")
        await until(broker, third, "dead")
        stats = await broker.run(INSIDE, GetStats(), SECOND)
        assert (stats.ready, stats.blocked, stats.dead) == (1, 0, 1)
    async with open_broker() as broker:
        assert await state(broker, second) == "ready"
        assert await state(broker, third) == "dead"


async def test_a_queue_whose_publishers_wait_for_room_follows_others_too(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        first = await publish(broker, FIRST)
        settings = {"max_messages": 1, "when_full": "block"}
        await broker.create_queue(INSIDE, SECOND, settings)
        second = await publish(broker, SECOND, after=[first])
        assert await state(broker, second) == "blocked"
        await settle(broker, FIRST)
        await until(broker, second, "ready")


async def test_only_messages_of_the_namespace_that_were_published_are_taken(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        first, abroad = await publish(broker, FIRST), await publish(broker, ABROAD)
        await publish(broker, SECOND)
        with pytest.raises(InvalidInput, match="another namespace"):
            await publish(broker, SECOND, after=[abroad])
        assert parse_id(first)[2] == 1
        for unknown in (first[:-1] + "7", "00000" + first[5:], "0" * 26):
            with pytest.raises(NoSuchMessage):
                await publish(broker, SECOND, after=[unknown])
        assert (await broker.run(INSIDE, GetStats(), SECOND)).published == 1


async def test_follow_ups_of_an_ack_come_after_messages_of_their_own_queue_only(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        first = await publish(broker, FIRST)
        await publish(broker, SECOND)
        (leased,) = await broker.lease(INSIDE, SECOND)
        emit = [NewMessage(payload=b"x", after=[first])]
        (outcome,) = await broker.settle(INSIDE, [Settlement("ack", leased.receipt, emit=emit)])
        assert outcome.status == "invalid" and "another queue" in outcome.detail


# -- gates -----------------------------------------------------------------------------------------


async def publish_gate(broker: Broker) -> str:
    return await publish(broker, FIRST, delay=3600.0, ttl=0, headers={HEADER: CLOSED})


async def publish_behind(broker: Broker, queue: QueueName, gate: str, *after: str) -> str:
    return await publish(broker, queue, after=[gate, *after], headers={HEADER: gate})


async def until_last_event(broker: Broker, id_: str, wanted: str) -> None:
    """Wait until the last event of a message is on disk."""
    async with asyncio.timeout(60):
        while (await broker.run(INSIDE, ExplainWait(id_))).details["last_event"] != wanted:
            await asyncio.sleep(0.1)


async def test_what_is_behind_a_gate_in_several_queues_runs_when_it_is_opened(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        gate = await publish_gate(broker)
        first = await publish_behind(broker, FIRST, gate)
        second = await publish_behind(broker, SECOND, gate, first)
        third = await publish_behind(broker, SECOND, gate)
        await broker.following.close()  # as if it had died right here
        assert await broker.run(INSIDE, OpenGate(gate)) is True
        assert await state(broker, first) == "ready"
        assert await state(broker, third) == "blocked"
    async with open_broker() as broker:
        await until(broker, third, "ready")
        assert await state(broker, second) == "blocked"
        assert await broker.run(INSIDE, OpenGate(gate)) is True
        await settle(broker, FIRST)
        await until(broker, second, "ready")


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
async def test_what_is_behind_a_gate_that_is_gone_is_cancelled_in_all_queues(
    open_broker: OpenBroker, ending: str
) -> None:
    async with open_broker() as broker:
        gate = await publish_gate(broker)
        first = await publish_behind(broker, FIRST, gate)
        second = await publish_behind(broker, SECOND, gate, first)
        if ending == "cancelled":
            assert await broker.run(INSIDE, Cancel(gate))
        else:
            await asyncio.sleep(3600)
            assert await broker.lease(INSIDE, FIRST) == []  # it comes to the gate
        for queue, id_ in ((FIRST, first), (SECOND, second)):
            await until(broker, id_, "done")
            await until_last_event(broker, id_, "cancelled")
            stats = await broker.run(INSIDE, GetStats(), queue)
            assert (stats.dead, stats.blocked) == (0, 0)
        assert await broker.run(INSIDE, OpenGate(gate)) is False
