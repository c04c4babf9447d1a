"""Two brokers on one store: each sees what the other does, and no work is done twice."""

import asyncio

from penstock.broker.settings import BrokerSettings
from penstock.broker.store import NamespaceInfo, Settlement
from penstock.names import QueueName
from penstock.operations import GetStats
from tests.conformance.conftest import ORDERS, StoreLife

SETTINGS = BrokerSettings().queue_settings()
LOANS = QueueName("bank", "loans")


async def test_both_know_the_same_catalogue_and_are_told_of_each_change(life: StoreLife) -> None:
    first = await life.open()
    second, heard = await life.open_another()
    assert (heard.namespaces, heard.queues) == (life.heard.namespaces, life.heard.queues)
    made = await second.create(LOANS, SETTINGS)
    assert heard.queues[LOANS] == made.identity  # its own change: told before the answer
    await life.told()
    assert life.heard.queues[LOANS] == made.identity
    changed = heard.namespaces["bank"]._replace(max_queues=7)
    assert await first.replace_namespace(heard.namespaces["bank"], changed)
    await life.told()
    assert heard.namespaces["bank"] == changed
    await first.delete(LOANS)
    await life.told()
    assert LOANS not in heard.queues
    await first.delete_namespace("bank", force=False)
    await life.told()
    assert heard.namespaces == life.heard.namespaces == {"shop": NamespaceInfo("shop", 1, {})}
    await second.close()
    await first.close()


async def test_a_change_of_settings_holds_for_both(life: StoreLife) -> None:
    first = await life.open()
    second, _ = await life.open_another()
    await first.change(ORDERS, {"max_attempts": 3})
    assert (await second.info(ORDERS)).settings.max_attempts == 3
    await second.close()
    await first.close()


async def test_a_message_is_leased_by_one_and_settled_through_either(life: StoreLife) -> None:
    first = await life.open()
    second, _ = await life.open_another()
    await life.publish(b"a", b"b")
    leases = [first.lease(ORDERS, 1), second.lease(ORDERS, 1), second.lease(ORDERS, 1)]
    leased = [one for answer in leases for one in await answer]
    assert sorted(one.payload for one in leased) == [b"a", b"b"]
    for store, one in zip((second, first), leased, strict=True):
        (outcome,) = await store.settle(ORDERS, [Settlement("ack", one.receipt)])
        assert outcome.status == "done"
    assert (await first.run(ORDERS, GetStats())).acked == 2
    await second.close()
    await first.close()


async def test_a_publish_through_one_wakes_those_who_wait_at_the_other(life: StoreLife) -> None:
    first = await life.open()
    second, heard = await life.open_another()
    second.watch(ORDERS)
    await first.publish(ORDERS, [b"news"])
    await life.told()
    assert ORDERS in heard.ready
    second.unwatch(ORDERS)
    await second.close()
    await first.close()


async def test_documents_are_compared_and_set_between_brokers(life: StoreLife) -> None:
    first = await life.open()
    second, heard = await life.open_another()
    assert await first.replace_document("keys", None, b"one")
    assert not await second.replace_document("keys", None, b"late")
    await life.told()
    assert heard.documents == life.heard.documents == ["keys"]
    assert await second.replace_document("keys", b"one", b"two")
    assert await first.load_document("keys") == b"two"
    await life.told()
    assert heard.documents == life.heard.documents == ["keys", "keys"]
    await second.close()
    await first.close()


async def test_a_lock_has_one_owner_until_it_is_released_or_its_time_is_over(
    life: StoreLife,
) -> None:
    first = await life.open()
    second, _ = await life.open_another()
    assert await first.acquire_lock("job", "a", 30)
    assert not await second.acquire_lock("job", "b", 30)
    assert await second.acquire_lock("other", "b", 30)
    await asyncio.sleep(20)
    assert await first.acquire_lock("job", "a", 30)  # renewed
    await asyncio.sleep(20)
    assert not await second.acquire_lock("job", "b", 30)
    await asyncio.sleep(11)
    assert await second.acquire_lock("job", "b", 30)  # the owner was too late
    assert not await first.acquire_lock("job", "a", 30)
    await first.release_lock("job", "a")  # not its own any more
    assert not await first.acquire_lock("job", "a", 30)
    await second.release_lock("job", "b")
    assert await first.acquire_lock("job", "a", 30)
    await second.close()
    await first.close()


async def test_one_goes_on_when_the_other_closes(life: StoreLife) -> None:
    first = await life.open()
    second, heard = await life.open_another()
    await first.close()
    await second.publish(ORDERS, [b"x"])
    await second.create(LOANS, SETTINGS)
    assert LOANS in heard.queues
    assert LOANS not in life.heard.queues  # it is told nothing any more
    await second.close()
    store = await life.reopen()
    assert LOANS in life.heard.queues
    assert [one.payload for one in await store.lease(ORDERS, 1)] == [b"x"]
    await store.close()


async def test_each_tells_of_the_queues_that_it_owns_and_answers_questions(
    life: StoreLife,
) -> None:
    first = await life.open()
    second, _ = await life.open_another()
    await life.publish(b"a", b"b")
    await second.create(LOANS, SETTINGS)
    await second.publish(LOANS, [b"c"])
    own = {one.queue: one.stats.ready for one in (await first.sample()).queues}
    others = {one.queue: one.stats.ready for one in (await second.sample()).queues}
    assert own[ORDERS] == 2 and others[LOANS] == 1
    assert own | others == {ORDERS: 2, LOANS: 1}
    await life.told()
    answers = await second.ask_others(["hello", 1])
    assert answers == [] or answers == [[["hello", 1], [str(LOANS), str(ORDERS)]]]
    assert bool(answers) == (ORDERS not in others)  # those that own queues alone are asked
    await second.close()
    await first.close()
