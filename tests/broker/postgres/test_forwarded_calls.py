"""Calls that a broker forwards to the owner of a queue: together, without futures."""

import asyncio
import gc
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.broker import Broker
from penstock.broker.access import INSIDE
from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Outcome
from penstock.errors import NoSuchQueue, QueueFull, Unavailable
from penstock.model import LeasedMessage, NewMessage, Published, Receipt, TypedPayload
from penstock.names import QueueName
from penstock.operations import GetStats
from tests.harness.cutting_proxy import CuttingProxy
from tests.harness.postgres_server import PostgresServer

ORDERS = QueueName("shop", "orders")
NewSchema = Callable[[], str]


class Told:
    """A call of a transport, as a future."""

    def __init__(self) -> None:
        self.answer: Future[Any] = asyncio.get_running_loop().create_future()

    def succeed(self, result: Any) -> None:
        self.answer.set_result(result)

    def fail(self, error: BaseException) -> None:
        self.answer.set_exception(error)


def answered(call: Callable[[Told], Any]) -> "Future[Any]":
    """Return the answer of a call of a transport."""
    told = Told()
    found = call(told)
    if isinstance(found, Future):
        return found
    if found is not None:
        told.succeed(found)
    return told.answer


def publish(broker: Broker, *messages: Any) -> "Future[list[Published]]":
    """Publish as a transport does."""
    return answered(lambda told: broker.publish(INSIDE, ORDERS, messages, told))


@asynccontextmanager
async def brokers(
    server: PostgresServer, schema: str, *, create_on_use: bool = True
) -> AsyncIterator[tuple[Broker, Broker, CuttingProxy]]:
    """The owner of a queue, and a broker that reaches it through a proxy, and has done so."""
    options = ClusterOptions(schema=schema, beat_s=1e9, outbox_s=1e9, rebalance_s=1e9)
    settings = BrokerSettings(create_on_use=create_on_use)
    stores = [PostgresStore(server.url, options) for _ in range(2)]
    owner, other = (Broker(store, settings) for store in stores)
    await owner.start()
    try:
        await owner.create_queue(INSIDE, ORDERS, {})
        found = stores[0].database.read(lambda session: session.one("select address from broker"))
        proxy = CuttingProxy(int(found[0].rpartition(":")[2]))
        try:
            move = f"update broker set address = '127.0.0.1:{proxy.port}'"
            stores[0].database.transact(lambda session: session.execute(move))
            await other.start()
            await other.publish(INSIDE, ORDERS, [b"first"])
            yield owner, other, proxy
        finally:
            await other.stop()
            proxy.close()
    finally:
        await owner.stop()


def run(story: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await story

    asyncio.run(limited())


async def payloads(broker: Broker) -> list[bytes]:
    return [one.payload for one in await broker.lease(INSIDE, ORDERS, n=100)]


def test_publishes_of_one_turn_are_answered_each_with_its_id_in_their_order(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, _):
            answers = [publish(other, b"%d" % number) for number in range(50)]
            answers.append(publish(other, TypedPayload(b"{}", "application/json")))
            answers.append(publish(other, NewMessage(payload=b"key", key="k")))
            answers.append(publish(other, b"last"))
            ids = [one.id for (one,) in await asyncio.gather(*answers)]
            leased = await owner.lease(INSIDE, ORDERS, n=100)
            expected = [b"first", *(b"%d" % number for number in range(50)), b"{}", b"key", b"last"]
            assert [one.payload for one in leased] == expected
            assert [one.id for one in leased][1:] == ids
            assert leased[-3].message.content_type == "application/json"

    run(story())


def test_a_full_queue_refuses_only_what_does_not_fit_and_each_refusal_is_counted(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, _):
            await owner.change_queue(INSIDE, ORDERS, {"max_messages": 3, "when_full": "reject"})
            answers = [publish(other, b"%d" % number) for number in range(5)]
            found = await asyncio.gather(*answers, return_exceptions=True)
            assert [type(one) for one in found] == [list, list, QueueFull, QueueFull, QueueFull]
            assert other.metrics.rejections("queue_full") == 3
            assert await payloads(owner) == [b"first", b"0", b"1"]

    run(story())


def test_an_answer_that_is_lost_is_an_unknown_outcome_and_nothing_is_sent_twice(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, proxy):
            proxy.swallow_answers(1)
            answers = [publish(other, b"one"), publish(other, b"two")]
            for found in await asyncio.gather(*answers, return_exceptions=True):
                assert isinstance(found, Unavailable), found
            assert await payloads(owner) == [b"first", b"one", b"two"]

    run(story())


def test_an_owner_that_stopped_is_followed_by_the_broker_that_forwarded(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, _):
            await owner.stop()
            while other.store.elsewhere(ORDERS) is not None:  # until it notices
                await asyncio.sleep(0)
            assert len(await publish(other, b"second")) == 1
            assert await payloads(other) == [b"first", b"second"]

    run(story())


@pytest.mark.parametrize("message", [b"new", NewMessage(payload=b"new", key="k")])
@pytest.mark.parametrize("at_the_owner", [False, True])
def test_a_publish_to_a_queue_that_was_deleted_a_moment_ago_creates_it_again(
    postgres_server: PostgresServer, new_schema: NewSchema, message: Any, at_the_owner: bool
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, _):
            deleting, publishing = (other, owner) if at_the_owner else (owner, other)
            await deleting.delete_queue(INSIDE, ORDERS)
            assert ORDERS not in deleting.queues(INSIDE)
            assert len(await publish(publishing, message)) == 1
            assert await payloads(publishing) == [b"new"]
            stats = await publishing.run(INSIDE, GetStats(), ORDERS)
            assert stats.published == 1

    run(story())


def test_without_create_on_use_a_publish_to_a_deleted_queue_is_refused(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        schema = new_schema()
        async with brokers(postgres_server, schema, create_on_use=False) as (owner, other, _):
            await owner.delete_queue(INSIDE, ORDERS)
            for message in (b"new", NewMessage(payload=b"new", key="k")):
                with pytest.raises(NoSuchQueue):
                    await publish(other, message)

    run(story())


def test_many_publishers_racing_a_delete_get_ids_or_a_clear_refusal(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, _):
            for _ in range(5):
                answers = [publish(other, b"a"), publish(owner, b"b")]
                deleting = owner.delete_queue(INSIDE, ORDERS)
                answers += [publish(broker, b"c") for broker in (other, owner) for _ in range(10)]
                await deleting
                answers += [publish(broker, b"d") for broker in (other, owner) for _ in range(10)]
                for found in await asyncio.gather(*answers, return_exceptions=True):
                    assert isinstance(found, list), found
            assert (await owner.run(INSIDE, GetStats(), ORDERS)).published > 0

    run(story())


def lease(broker: Broker) -> "Future[list[LeasedMessage]]":
    """Lease a message as a transport does."""
    return answered(lambda told: broker.lease_one(INSIDE, ORDERS, told))


def ack(broker: Broker, receipt: str) -> "Future[list[Outcome]]":
    """Ack a message as a transport does."""
    read = Receipt.unpack(receipt)
    return answered(lambda told: broker.ack(INSIDE, receipt, read, told))


def test_leases_and_acks_of_one_turn_are_answered_each_by_itself(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, _):
            await owner.publish(INSIDE, ORDERS, [b"%d" % number for number in range(9)])
            leasing = [lease(other) for _ in range(12)]
            found = [one for leased in await asyncio.gather(*leasing) for one in leased]
            expected = [b"first", *(b"%d" % number for number in range(9))]
            assert [one.payload for one in found] == expected
            receipts = [one.receipt for one in found]
            forged = found[0]._replace(ticket=found[0].ticket._replace(nonce=7)).receipt
            settling = [ack(other, receipt) for receipt in (*receipts, forged)]
            outcomes = [one for (one,) in await asyncio.gather(*settling)]
            assert [one.receipt for one in outcomes] == [*receipts, forged]
            assert [one.status for one in outcomes] == ["done"] * 10 + ["gone"]
            ((again,),) = await asyncio.gather(ack(other, receipts[3]))
            assert again.status == "repeated"
            assert (await owner.run(INSIDE, GetStats(), ORDERS)).acked == 10

    run(story())


def test_calls_of_one_turn_are_carried_out_in_their_order(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (_, other, _):
            calls: list[Future[Any]] = [lease(other), lease(other), publish(other, b"second")]
            calls += [lease(other), publish(other, NewMessage(payload=b"third", priority=9))]
            calls += [publish(other, TypedPayload(b"{}", "application/json")), lease(other)]
            first, empty, _, second, _, _, third = await asyncio.gather(*calls)
            assert empty == []
            found = [one.payload for (one,) in (first, second, third)]
            assert found == [b"first", b"second", b"third"]

    run(story())


def test_messages_with_options_are_published_with_them(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, _):
            await payloads(owner)
            given = NewMessage(
                payload=b"all", priority=7, key="k", headers={"a": "b"}, content_type="text/x"
            )
            later = NewMessage(payload=b"later", delay=3600)
            once = NewMessage(payload=b"once", dedup_id="1")
            asked = [publish(other, one) for one in (given, later, once, once, b"plain")]
            (all_,), (_,), (new,), (duplicate,), (_,) = await asyncio.gather(*asked)
            assert duplicate == Published(new.id, True)
            found = await owner.lease(INSIDE, ORDERS, n=100)
            assert [one.payload for one in found] == [b"all", b"once", b"plain"]
            message = found[0].message
            assert message.id == all_.id
            assert (message.priority, message.key, dict(message.headers)) == (7, "k", {"a": "b"})
            assert message.content_type == "text/x"
            stats = await owner.run(INSIDE, GetStats(), ORDERS)
            assert stats.scheduled == 1

    run(story())


def test_a_publish_that_waits_for_room_holds_up_no_other(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, _):
            limits = {"max_messages": 2, "when_full": "block", "block_s": 3600}
            await owner.change_queue(INSIDE, ORDERS, limits)
            fits, waits = publish(other, b"fits"), publish(other, b"waits")
            assert len(await fits) == 1
            assert not waits.done()
            (first,) = await lease(other)
            await ack(other, first.receipt)
            assert len(await waits) == 1

    run(story())


def test_an_ack_whose_answer_is_lost_is_done(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, proxy):
            (first,) = await lease(other)
            proxy.swallow_answers(1)
            ((outcome),) = await ack(other, first.receipt)
            assert outcome.ok
            assert (await owner.run(INSIDE, GetStats(), ORDERS)).acked == 1

    run(story())


def test_a_lease_whose_answer_is_lost_is_made_again(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, proxy):
            await owner.publish(INSIDE, ORDERS, [b"second"])
            proxy.swallow_answers(1)
            (found,) = await lease(other)
            assert found.payload in (b"first", b"second")
            assert (await ack(other, found.receipt))[0].status == "done"

    run(story())


def test_a_lease_of_a_queue_that_was_deleted_is_refused(
    postgres_server: PostgresServer, new_schema: NewSchema
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, _):
            await owner.delete_queue(INSIDE, ORDERS)
            with pytest.raises(NoSuchQueue):
                await lease(other)

    run(story())


def test_a_release_that_fails_is_not_an_error_without_an_owner(
    postgres_server: PostgresServer, new_schema: NewSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller has left, and the message is delivered again when its lease ends."""
    strays: list[Any] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: strays.append(context))

        def failing(*arguments: Any) -> "Future[Any]":
            answer: Future[Any] = loop.create_future()
            answer.set_exception(Unavailable("the database takes no write"))
            return answer

        async with brokers(postgres_server, new_schema()) as (owner, _, _):
            (leased,) = await lease(owner)
            with monkeypatch.context() as patch:
                patch.setattr(owner.store, "settle", failing)
                owner.give_back([leased])
                await asyncio.sleep(0)
                gc.collect()

    run(story())
    assert strays == []
