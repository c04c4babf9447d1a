"""Namespaces and queues: made on use, their defaults, quotas, limits and names."""

import asyncio
from contextlib import suppress

import pytest

from penstock.broker import (
    Broker,
    BrokerSettings,
    Caller,
    EmbeddedStore,
    QueueName,
    Settlement,
    Verb,
)
from penstock.errors import (
    AlreadyExists,
    InvalidInput,
    NoSuchNamespace,
    NoSuchQueue,
    NotAllowed,
    NotEmpty,
    QuotaExceeded,
    TooManyRequests,
    Unavailable,
)
from penstock.ledger.memory_files import MemoryFiles
from penstock.operations import Cancel, CreateGroup, GetStats
from tests.broker.conftest import OpenBroker
from tests.harness.distant_store import DistantStore
from tests.harness.virtual_loop import LoopClock, LoopThreads

ANN = Caller("ip:ann")
ORDERS = QueueName("shop", "orders")

BAD_NAMES = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "a\0",
    "a\n",
    "-a",
    ".a",
    "a.",
    "a" * 65,
    "ордер",
    "orders\u200b",
    "a+b",
    "a b",
]


async def test_using_a_queue_makes_it_and_its_namespace(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await broker.publish(ANN, ORDERS, [b"x"])
        assert [one.name for one in broker.namespaces.list(ANN)] == ["shop"]
        assert broker.queues(ANN, "shop") == [ORDERS]
        assert (await broker.queue_info(ANN, ORDERS)).settings.storage.sync == "always"


async def test_many_first_uses_at_once_make_one_queue(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        calls = [broker.publish(ANN, ORDERS, [b"%d" % n]) for n in range(20)]
        for call in calls:
            await call
        assert (await broker.run(ANN, GetStats(), ORDERS)).ready == 20


async def test_where_queues_are_made_explicitly_a_wrong_name_is_told(
    open_broker: OpenBroker,
) -> None:
    async with open_broker(create_on_use=False) as broker:
        with pytest.raises(NoSuchQueue, match="shop/orders"):
            await broker.publish(ANN, ORDERS, [b"x"])
        await broker.create_queue(ANN, ORDERS)
        await broker.publish(ANN, ORDERS, [b"x"])


@pytest.mark.parametrize("bad", BAD_NAMES)
async def test_bad_names_are_refused_and_make_nothing(open_broker: OpenBroker, bad: str) -> None:
    async with open_broker() as broker:
        for queue in (QueueName(bad, "orders"), QueueName("shop", bad)):
            with pytest.raises(InvalidInput, match="name"):
                await broker.publish(ANN, queue, [b"x"])
            with pytest.raises(InvalidInput, match="name"):
                await broker.create_queue(ANN, queue)
        with pytest.raises(InvalidInput, match="name"):
            await broker.namespaces.create(ANN, bad)
        assert broker.queues(ANN) == []
        assert broker.namespaces.list(ANN) == []


async def test_a_queue_begins_with_the_settings_of_broker_namespace_and_its_own(
    open_broker: OpenBroker,
) -> None:
    async with open_broker(queues={"lease_s": 1.0, "max_attempts": 2, "block_s": 3.0}) as broker:
        await broker.namespaces.create(ANN, "shop", defaults={"max_attempts": 7, "block_s": 8.0})
        info = await broker.create_queue(ANN, ORDERS, {"block_s": 9.0})
        settings = info.settings
        assert (settings.lease_s, settings.max_attempts, settings.block_s) == (1.0, 7, 9.0)


async def test_bad_settings_make_nothing(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        with pytest.raises(InvalidInput):
            await broker.create_queue(ANN, ORDERS, {"no_such": 1})
        with pytest.raises(InvalidInput):
            await broker.namespaces.create(ANN, "shop", defaults={"lease_s": -1})
        with pytest.raises(InvalidInput):
            await broker.namespaces.create(ANN, "shop", max_queues=-1)
        assert broker.namespaces.list(ANN) == []


async def test_namespaces_are_made_once_changed_and_deleted_with_care(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        await broker.namespaces.create(ANN, "shop")
        with pytest.raises(AlreadyExists):
            await broker.namespaces.create(ANN, "shop")
        await broker.namespaces.change(ANN, "shop", {"max_queues": 1})
        with pytest.raises(InvalidInput, match="name"):
            await broker.namespaces.change(ANN, "shop", {"name": "bank"})
        await broker.publish(ANN, ORDERS, [b"x"])
        with pytest.raises(NotEmpty, match="orders"):
            await broker.namespaces.delete(ANN, "shop")
        await broker.namespaces.delete(ANN, "shop", force=True)
        for call in (
            broker.namespaces.delete(ANN, "shop"),
            broker.namespaces.change(ANN, "shop", {}),
        ):
            with pytest.raises(NoSuchNamespace):
                await call


async def test_quotas_hold_across_a_restart(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await broker.namespaces.create(ANN, "shop", max_queues=1, max_bytes=50_000)
        await broker.publish(ANN, ORDERS, [b"x" * 40_000])
    async with open_broker() as broker:
        with pytest.raises(QuotaExceeded, match="1 queues"):
            await broker.publish(ANN, QueueName("shop", "more"), [b"x"])
        await broker.publish(ANN, ORDERS, [b"x" * 20_000])
        with pytest.raises(QuotaExceeded, match="bytes"):
            await broker.publish(ANN, ORDERS, [b"x"])
        assert len(await broker.lease(ANN, ORDERS, n=5)) == 2  # consuming goes on


async def test_there_is_a_most_of_queues(open_broker: OpenBroker) -> None:
    async with open_broker(max_queues=2) as broker:
        for name in ("a", "b"):
            await broker.publish(ANN, QueueName("shop", name), [b"x"])
        with pytest.raises(QuotaExceeded):
            await broker.publish(ANN, QueueName("shop", "c"), [b"x"])


async def test_a_client_that_calls_too_often_is_told_when_to_come_again(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker(client_rate_per_s=2.0, client_burst=3.0) as broker:
        for _ in range(3):
            await broker.publish(ANN, ORDERS, [b"x"])
        with pytest.raises(TooManyRequests) as caught:
            await broker.publish(ANN, ORDERS, [b"x"])
        await broker.publish(Caller("ip:bob"), ORDERS, [b"x"])
        clock.passed_ns += round(caught.value.retry_after_s * 1e9)
        await broker.publish(ANN, ORDERS, [b"x"])
        assert (await broker.run(Caller("ip:carl"), GetStats(), ORDERS)).published == 5


async def test_rights_are_checked_at_the_door(open_broker: OpenBroker) -> None:
    producer = Caller("key:p", frozenset([Verb.PUBLISH]), frozenset(["shop"]))
    async with open_broker() as broker:
        await broker.publish(producer, ORDERS, [b"x"])
        with pytest.raises(NotAllowed, match="consume"):
            await broker.lease(producer, ORDERS)
        with pytest.raises(NotAllowed, match="'bank'"):
            await broker.publish(producer, QueueName("bank", "loans"), [b"x"])
        with pytest.raises(NotAllowed):
            broker.namespaces.list(producer)
        page = await broker.survey.metrics_page()
        assert b'penstock_rejected_total{cause="not_allowed"} 3.0' in page


async def test_a_receipt_of_another_namespace_settles_nothing_of_the_call(
    open_broker: OpenBroker,
) -> None:
    consumer = Caller("key:c", frozenset([Verb.CONSUME]), frozenset(["shop"]))
    async with open_broker() as broker:
        await broker.publish(ANN, ORDERS, [b"mine"])
        await broker.publish(ANN, QueueName("bank", "loans"), [b"theirs"])
        (mine,) = await broker.lease(consumer, ORDERS)
        (theirs,) = await broker.lease(ANN, QueueName("bank", "loans"))
        receipts = [Settlement("ack", one.receipt) for one in (mine, theirs)]
        with pytest.raises(NotAllowed):
            await broker.settle(consumer, receipts)
        outcomes = await broker.settle(ANN, [*receipts, Settlement("ack", "rubbish")])
        assert [o.status for o in outcomes] == ["done", "done", "invalid"]
        again = await broker.settle(ANN, receipts)
        assert [(o.status, o.ok) for o in again] == [("repeated", True)] * 2


async def test_a_broker_that_is_not_started_or_was_stopped_says_so(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        await broker.publish(ANN, ORDERS, [b"x"])
    with pytest.raises(Unavailable):
        await broker.publish(ANN, ORDERS, [b"x"])


async def test_an_empty_namespace_is_deleted_with_its_queues(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        (published,) = await broker.publish(ANN, ORDERS, [b"x"])
        await broker.create_queue(ANN, QueueName("shop", "empty"))
        with pytest.raises(NotEmpty, match="shop/orders holds 1 messages"):
            await broker.namespaces.delete_empty(ANN, "shop")
        assert len(broker.queues(ANN, "shop")) == 2
        await broker.run(ANN, Cancel(published.id))
        await broker.namespaces.delete_empty(ANN, "shop")
        with pytest.raises(NoSuchNamespace):
            await broker.namespaces.delete_empty(ANN, "shop")


@pytest.mark.parametrize("turns", range(12))
async def test_no_message_goes_with_a_namespace_that_is_deleted_meanwhile(
    open_broker: OpenBroker, turns: int
) -> None:
    """Whatever comes first, a message that was answered is in the queue afterwards."""
    async with open_broker() as broker:
        await broker.create_queue(ANN, ORDERS)
        deleting = asyncio.ensure_future(broker.namespaces.delete_empty(ANN, "shop"))
        for _ in range(turns):
            await asyncio.sleep(0)
        try:
            (published,) = await broker.publish(ANN, ORDERS, [b"x"])
        except NoSuchQueue:
            await deleting
            return
        (ended,) = await asyncio.gather(deleting, return_exceptions=True)
        assert ended is None or isinstance(ended, NotEmpty)
        (leased,) = await broker.lease(ANN, ORDERS)
        assert leased.id == published.id


async def test_a_store_without_files_refuses_the_settings_of_files(clock: LoopClock) -> None:
    files = MemoryFiles()
    store = EmbeddedStore("/data", files=files, clock=clock, sync_threads=LoopThreads)
    broker = Broker(DistantStore(store), BrokerSettings(), clock=clock)
    refused = pytest.raises(InvalidInput, match=r"keeps no files .* sync, segment_bytes: leave")
    of_files: dict[str, object] = {"sync": "never", "lease_s": 9, "segment_bytes": 4096}
    await broker.start()
    try:
        with refused:
            await broker.create_queue(ANN, ORDERS, of_files)
        with refused:
            await broker.namespaces.create(ANN, "shop", defaults=of_files)
        assert (broker.queues(ANN), broker.namespaces.list(ANN)) == ([], [])
        await broker.create_queue(ANN, ORDERS, {"lease_s": 8})
        with refused:
            await broker.change_queue(ANN, ORDERS, of_files)
        with refused:
            await broker.namespaces.change(ANN, "shop", {"defaults": of_files})
        assert (await broker.queue_info(ANN, ORDERS)).settings.lease_s == 8
        with refused:
            broker.change_settings(BrokerSettings(queues=of_files))
        assert not broker.settings.queues
    finally:
        await broker.stop()


async def test_a_broker_without_files_does_not_start_with_defaults_for_files(
    clock: LoopClock,
) -> None:
    store = EmbeddedStore("/data", files=MemoryFiles(), clock=clock, sync_threads=LoopThreads)
    defaults = BrokerSettings(queues={"sync": "never"})
    broker = Broker(DistantStore(store), defaults, clock=clock)
    with pytest.raises(InvalidInput, match="keeps no files"):
        await broker.start()
    assert not broker.is_open


async def test_calls_to_a_queue_that_is_being_deleted_find_a_new_one(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        for number in range(20):
            await broker.publish(ANN, ORDERS, [b"old"])
            deleting = asyncio.ensure_future(broker.delete_queue(ANN, ORDERS))
            for _ in range(number):  # in other states of the deletion
                await asyncio.sleep(0)
            leasing = broker.lease(ANN, ORDERS)
            publishing = broker.publish(ANN, ORDERS, [b"new"])
            grouping = broker.run(ANN, CreateGroup("other"), ORDERS)
            await asyncio.gather(publishing, leasing, grouping, deleting, return_exceptions=True)
            assert not isinstance(leasing.exception(), NoSuchQueue)
            assert len(await publishing) == 1
            assert not isinstance(grouping.exception(), NoSuchQueue)
            assert deleting.exception() is None
            if broker.has_queue(ORDERS):
                await broker.delete_queue(ANN, ORDERS)


async def test_creations_and_deletions_at_the_same_time_follow_each_other(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:

        async def create() -> None:
            for _ in range(10):
                with suppress(AlreadyExists):
                    await broker.create_queue(ANN, ORDERS)
                await broker.publish(ANN, ORDERS, [b"x"])

        async def delete() -> None:
            for _ in range(10):
                with suppress(NoSuchQueue):
                    await broker.delete_queue(ANN, ORDERS)

        await asyncio.gather(*[create() for _ in range(3)], *[delete() for _ in range(3)])
