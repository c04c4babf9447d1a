"""Namespaces, queues and documents of a store."""

import pytest

from penstock.broker.settings import BrokerSettings
from penstock.broker.store import NamespaceInfo
from penstock.errors import (
    AlreadyExists,
    InvalidInput,
    NoSuchNamespace,
    NoSuchQueue,
    NotEmpty,
    QuotaExceeded,
)
from penstock.names import QueueName
from penstock.operations import GetStats
from tests.conformance.conftest import ORDERS, StoreLife

SETTINGS = BrokerSettings().queue_settings()
OTHER = QueueName("shop", "other")
LOANS = QueueName("bank", "loans")


async def test_what_was_made_is_there_after_a_restart(life: StoreLife) -> None:
    store = await life.open(max_attempts=7)
    bank = NamespaceInfo("bank", 5, {"lease_s": 9.0}, 3, 1000)
    assert await store.replace_namespace(None, bank)
    identity = (await store.info(ORDERS)).identity
    store = await life.reopen()
    assert life.heard.namespaces == {"bank": bank, "shop": NamespaceInfo("shop", 1, {})}
    assert life.heard.queues == {ORDERS: identity}
    info = await store.info(ORDERS)
    assert (info.identity, info.settings.max_attempts) == (identity, 7)
    assert await store.find(identity) == ORDERS
    await store.close()


async def test_a_queue_is_made_once(life: StoreLife) -> None:
    store = await life.open()
    with pytest.raises(AlreadyExists, match="shop/orders"):
        await store.create(ORDERS, SETTINGS)
    await store.close()


async def test_a_queue_is_made_with_its_namespace(life: StoreLife) -> None:
    store = await life.open()
    made = await store.create(LOANS, SETTINGS)
    assert life.heard.queues[LOANS] == made.identity
    assert life.heard.namespaces["bank"]._replace(created_at_ns=0) == ("bank", 0, {}, 0, 0)
    await store.close()


async def test_every_queue_has_an_identity_of_its_own(life: StoreLife) -> None:
    store = await life.open()
    made = [await store.create(QueueName("shop", f"q{n}"), SETTINGS) for n in range(20)]
    assert len({one.identity for one in made}) == 20
    for one in made:
        assert await store.find(one.identity) == one.queue
    await store.close()


async def test_namespaces_are_compared_and_set(life: StoreLife) -> None:
    store = await life.open()
    old = life.heard.namespaces["shop"]
    new = old._replace(max_queues=5)
    assert not await store.replace_namespace(None, new)
    assert not await store.replace_namespace(new, new._replace(max_queues=6))
    assert life.heard.namespaces["shop"] == old
    assert await store.replace_namespace(old, new)
    assert life.heard.namespaces["shop"] == new
    assert not await store.replace_namespace(old._replace(name="bank"), new._replace(name="bank"))
    assert list(life.heard.namespaces) == ["shop"]
    await store.close()


async def test_a_namespace_has_no_more_queues_than_its_quota(life: StoreLife) -> None:
    store = await life.open()
    old = life.heard.namespaces["shop"]
    await store.replace_namespace(old, old._replace(max_queues=2))
    await store.create(OTHER, SETTINGS)
    with pytest.raises(QuotaExceeded, match="'shop' has 2 queues"):
        await store.create(QueueName("shop", "third"), SETTINGS)
    assert sorted(life.heard.queues) == [ORDERS, OTHER]
    await store.delete(OTHER)
    await store.create(QueueName("shop", "third"), SETTINGS)
    await store.close()


async def test_a_namespace_holds_no_more_bytes_than_its_quota(life: StoreLife) -> None:
    store = await life.open()
    old = life.heard.namespaces["shop"]
    await store.replace_namespace(old, old._replace(max_bytes=50_000))
    await life.publish(b"x" * 60_000)
    with pytest.raises(QuotaExceeded, match="50000"):
        await life.publish(b"x")
    with pytest.raises(QuotaExceeded, match="50000"):
        await store.create(OTHER, SETTINGS)
    await store.create(LOANS, SETTINGS)
    await store.publish(LOANS, [b"x"])
    assert len(await life.lease()) == 1
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
    assert ORDERS not in life.heard.queues
    assert await store.find(identity) is None
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


async def test_a_namespace_goes_with_its_queues_only_if_forced(life: StoreLife) -> None:
    store = await life.open()
    await store.create(LOANS, SETTINGS)
    with pytest.raises(NotEmpty, match="loans"):
        await store.delete_namespace("bank", force=False)
    assert await store.delete_namespace("bank", force=True) == [LOANS]
    assert list(life.heard.queues) == [ORDERS]
    assert list(life.heard.namespaces) == ["shop"]
    with pytest.raises(NoSuchNamespace, match="bank"):
        await store.delete_namespace("bank", force=True)
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
