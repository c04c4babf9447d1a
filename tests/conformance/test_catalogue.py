"""Namespaces, queues and documents of a store."""

import pytest

from penstock.broker.settings import BrokerSettings
from penstock.broker.store import NamespaceInfo
from penstock.errors import AlreadyExists, InvalidInput, NoSuchQueue
from penstock.names import QueueName
from penstock.operations import GetStats
from tests.conformance.conftest import ORDERS, StoreLife

SETTINGS = BrokerSettings().queue_settings()
OTHER = QueueName("shop", "other")


async def test_what_was_made_is_there_after_a_restart(life: StoreLife) -> None:
    store = await life.open(max_attempts=7)
    await store.save_namespace(NamespaceInfo("bank", 5, {"lease_s": 9.0}, 3, 1000))
    identity = (await store.info(ORDERS)).identity
    store = await life.reopen()
    assert [one.name for one in await store.namespaces()] == ["bank", "shop"]
    assert (await store.namespaces())[0] == ("bank", 5, {"lease_s": 9.0}, 3, 1000)
    assert store.queues() == [ORDERS]
    info = await store.info(ORDERS)
    assert (info.identity, info.settings.max_attempts) == (identity, 7)
    assert store.queue_of(identity) == ORDERS
    await store.close()


async def test_a_queue_is_made_once(life: StoreLife) -> None:
    store = await life.open()
    with pytest.raises(AlreadyExists, match="shop/orders"):
        await store.create(ORDERS, SETTINGS)
    await store.close()


async def test_every_queue_has_an_identity_of_its_own(life: StoreLife) -> None:
    store = await life.open()
    made = [await store.create(QueueName("shop", f"q{n}"), SETTINGS) for n in range(20)]
    assert len({one.identity for one in made}) == 20
    for one in made:
        assert store.queue_of(one.identity) == one.queue
    await store.close()


async def test_settings_are_changed_one_by_one_and_bad_ones_change_nothing(
    life: StoreLife,
) -> None:
    store = await life.open(max_attempts=7)
    await life.publish(b"stays")
    assert (await store.change(ORDERS, {"lease_s": 5.0})).settings.max_attempts == 7
    for bad in ({"lease_s": -1.0}, {"no_such": 1}):
        with pytest.raises(InvalidInput):
            await store.change(ORDERS, bad)
    assert (await store.info(ORDERS)).settings.lease_s == 5.0
    assert await life.payloads() == [b"stays"]
    await store.close()


async def test_a_deleted_queue_is_gone_with_its_messages(life: StoreLife) -> None:
    store = await life.open()
    identity = (await store.info(ORDERS)).identity
    await life.publish(b"lost")
    await store.delete(ORDERS)
    assert not store.has(ORDERS)
    assert store.queue_of(identity) is None
    for call in (
        store.run(ORDERS, GetStats()),
        store.publish(ORDERS, [b"x"]),
        store.delete(ORDERS),
    ):
        with pytest.raises(NoSuchQueue, match="shop/orders"):
            await call
    store = await life.reopen()  # which makes it anew
    assert (await store.run(ORDERS, GetStats())).published == 0
    await store.close()


async def test_a_namespace_goes_with_its_queues(life: StoreLife) -> None:
    store = await life.open()
    await store.save_namespace(NamespaceInfo("bank", 5, {}))
    await store.create(QueueName("bank", "loans"), SETTINGS)
    await store.delete_namespace("bank")
    assert store.queues() == [ORDERS]
    assert [one.name for one in await store.namespaces()] == ["shop"]
    await store.close()


async def test_what_a_namespace_holds_grows_with_it(life: StoreLife) -> None:
    store = await life.open()
    before = store.bytes_of("shop")
    await life.publish(b"x" * 100_000)
    await store.run(ORDERS, GetStats())
    assert store.bytes_of("shop") >= before + 100_000
    assert store.bytes_of("none") == 0
    await store.close()


async def test_documents_are_compared_and_set_whole_and_survive(life: StoreLife) -> None:
    store = await life.open()
    assert await store.load_document("keys") is None
    assert await store.replace_document("keys", None, b"one" * 1000)
    assert not await store.replace_document("keys", None, b"late")
    assert not await store.replace_document("keys", b"else", b"late")
    assert await store.replace_document("keys", b"one" * 1000, b"two")
    assert await store.replace_document("other", None, b"3")
    assert not await store.replace_document("other", None, None)
    assert await store.replace_document("other", b"3", None)
    assert await store.replace_document("other", None, None)
    store = await life.reopen()
    assert await store.load_document("keys") == b"two"
    assert await store.load_document("other") is None
    await store.close()
