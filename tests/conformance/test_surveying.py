"""Surveys of a store's queue: consumers, keys, reasons of dead letters, a seek, files, limits."""

import pytest

from penstock.broker.store import Settlement
from penstock.errors import InvalidInput, NoSuchGroup
from penstock.model import NewMessage
from penstock.operations import (
    Browse,
    Discard,
    GetLimits,
    GetStats,
    GetStorage,
    ListConsumers,
    ListDead,
    ListDeadReasons,
    ListKeys,
    PreviewSeek,
    Redrive,
    Seek,
)
from tests.conformance.conftest import ORDERS, StoreLife


async def test_consumers_are_shown_with_the_leases_they_hold(life: StoreLife) -> None:
    store = await life.open(lease_s=60)
    ids = await life.publish(*[b"x"] * 6)
    await life.lease(3, holder="ann")
    life.clock.passed_ns += 10**9
    await life.lease(1, holder="bob", lease_s=5)
    await life.lease(1)
    found = await store.run(ORDERS, ListConsumers())
    assert (found.leases, found.exhausted) == (5, False)
    assert (found.holders[0].holder, found.holders[0].leases) == ("ann", 3)
    assert {one.holder for one in found.holders} == {"ann", "bob", ""}
    first = found.held[0]
    assert (first.id, first.holder, first.attempt) == (ids[3], "bob", 1)
    assert first.deadline_ns - first.leased_ns == 5 * 10**9
    few = await store.run(ORDERS, ListConsumers(limit=1))
    assert (few.leases, len(few.holders), len(few.held)) == (5, 1, 1)
    with pytest.raises(NoSuchGroup):
        await store.run(ORDERS, ListConsumers(group="nobody"))
    await store.close()


async def test_keys_are_shown_by_their_backlog(life: StoreLife) -> None:
    store = await life.open()
    assert (await store.run(ORDERS, ListKeys())).keys == []
    ids = await life.publish(
        *[NewMessage(payload=b"x", key="few")] * 2,
        *[NewMessage(payload=b"x", key="many")] * 5,
        NewMessage(payload=b"x", key="one"),
        b"none",
    )
    found = await store.run(ORDERS, ListKeys(limit=2))
    assert [(one.key, one.messages, one.id) for one in found.keys] == [
        ("many", 5, ids[2]),
        ("few", 2, ids[0]),
    ]
    assert (found.total, found.exhausted) == (3, False)
    await store.close()


async def die(life: StoreLife, *reasons: str) -> list[str]:
    ids = await life.publish(*[b"x"] * len(reasons))
    leased = await life.lease(len(reasons))
    settlements = [
        Settlement("nack", one.receipt, reason=reason, dead=True)
        for one, reason in zip(leased, reasons, strict=True)
    ]
    await life.store.settle(ORDERS, settlements)
    return ids


async def test_dead_letters_are_grouped_by_reason_but_for_numbers(life: StoreLife) -> None:
    store = await life.open()
    await die(life, "no answer in 3 s", "no answer in 12 s", "")
    life.clock.passed_ns += 10**9
    ids = await die(life, "no answer in 7 s", "order 9f86d081-884c7d65 unknown")
    found = await store.run(ORDERS, ListDeadReasons())
    assert (found.total, found.others, found.exhausted) == (5, 0, False)
    first = found.reasons[0]
    assert (first.reason, first.messages, first.id) == ("no answer in # s", 3, ids[0])
    assert first.last_ns - first.first_ns >= 10**9
    assert {one.reason for one in found.reasons[1:]} == {"", "order # unknown"}
    few = await store.run(ORDERS, ListDeadReasons(limit=1))
    assert (len(few.reasons), few.others) == (1, 2)
    await store.close()


async def test_dead_letters_of_a_reason_are_listed_redriven_and_discarded(life: StoreLife) -> None:
    store = await life.open()
    await die(life, "no answer in 3 s", "no answer in 12 s", "", "broken", "broken")
    timeouts = "no answer in # s"
    page = await store.run(ORDERS, ListDead(reason_group=timeouts))
    assert len(page.letters) == 2
    assert len((await store.run(ORDERS, ListDead(reason_group=""))).letters) == 1
    assert await store.run(ORDERS, Redrive(reason_group=timeouts, dry_run=True)) == 2
    assert await store.run(ORDERS, Redrive(reason_group=timeouts)) == 2
    assert await store.run(ORDERS, Discard(reason_group="broken", dry_run=True)) == 2
    assert (await store.run(ORDERS, GetStats())).dead == 3
    assert await store.run(ORDERS, Discard(reason_group="broken")) == 2
    assert (await store.run(ORDERS, GetStats())).dead == 1
    await store.close()


async def test_a_seek_is_previewed_without_being_done(life: StoreLife) -> None:
    store = await life.open()
    ids = await life.publish(*[b"x"] * 10)
    leased = await life.lease(6)
    await store.settle(ORDERS, [Settlement("ack", one.receipt) for one in leased[:4]])
    await store.settle(ORDERS, [Settlement("nack", leased[4].receipt, dead=True)])
    before = await store.run(ORDERS, GetStats())
    # Four are done, one is dead, one is leased, four are ready.
    found = await store.run(ORDERS, PreviewSeek("beginning"))
    assert (found.next_seq, found.messages, found.repeated, found.skipped) == (1, 10, 6, 0)
    found = await store.run(ORDERS, PreviewSeek("end"))
    assert (found.next_seq, found.messages, found.repeated, found.skipped) == (11, 0, 0, 5)
    found = await store.run(ORDERS, PreviewSeek(id=ids[8]))
    assert (found.next_seq, found.messages, found.repeated, found.skipped) == (9, 2, 0, 3)
    assert await store.run(ORDERS, GetStats()) == before
    with pytest.raises(InvalidInput):
        PreviewSeek()
    assert await store.run(ORDERS, Seek("beginning")) == 1
    assert (await store.run(ORDERS, GetStats())).ready == 10
    await store.close()


async def test_browsing_selects_by_priority_and_header_and_says_how_far_it_is(
    life: StoreLife,
) -> None:
    store = await life.open()
    await life.publish(
        NewMessage(payload=b"a", priority=7),
        NewMessage(payload=b"b", headers={"shop": "north", "lang": "en"}),
        NewMessage(payload=b"c", headers={"shop": "south"}),
        b"north",
    )

    async def found(**wanted: object) -> list[bytes]:
        page = await store.run(ORDERS, Browse(**wanted))  # type: ignore[arg-type]
        return [row.message.payload for row in page.rows]

    assert await found(priority=7) == [b"a"]
    assert await found(header="shop") == [b"b", b"c"]
    assert await found(header="shop=north") == [b"b"]
    assert await found(header="shop=") == []
    assert await found(text="north") == [b"b", b"north"]
    assert await found(text="lan", priority=5) == [b"b"]
    page = await store.run(ORDERS, Browse(text="nowhere", budget=2))
    assert (page.next_seq, page.first_seq, page.end_seq, page.exhausted) == (2, 1, 5, True)
    await store.close()


async def test_the_files_of_a_queue_are_reported(life: StoreLife) -> None:
    store = await life.open(segment_entries=10)
    await life.publish(*[b"x"] * 25)
    leased = await life.lease(20)
    await store.settle(ORDERS, [Settlement("ack", one.receipt) for one in leased])
    found = await store.run(ORDERS, GetStorage())
    messages = [one for one in found.segments if one.log == "messages"]
    assert sum(one.entries for one in messages) == 25
    assert sum(one.live for one in messages) == 5
    assert found.live_ratio == pytest.approx(0.2)
    assert [one.is_sealed for one in messages][-1] is False
    assert (found.damage, found.quarantine, found.refusal) == ([], [], "")
    assert found.total_segments == len(found.segments)
    await store.close()


async def test_limits_say_how_close_they_are(life: StoreLife) -> None:
    store = await life.open(max_messages=10, dead_max_messages=5, when_full="reject")
    await life.publish(*[b"x"] * 7)
    (leased, *_) = await life.lease(1)
    await store.settle(ORDERS, [Settlement("nack", leased.receipt, dead=True)])
    found = {one.name: one for one in (await store.run(ORDERS, GetLimits())).limits}
    assert (found["max_messages"].used, found["max_messages"].most) == (6, 10)
    assert found["max_messages"].effect == "publishing is refused"
    assert (found["dead_max_messages"].used, found["dead_max_messages"].most) == (1, 5)
    assert "max_bytes" not in found and "rate_burst" not in found
    await store.change(ORDERS, {"rate_per_s": 5.0, "rate_burst": 20.0})
    await life.publish(b"x", b"x")
    found = {one.name: one for one in (await store.run(ORDERS, GetLimits())).limits}
    assert (round(found["rate_burst"].used), found["rate_burst"].most) == (2, 20)
    await store.close()


async def test_limits_of_deliveries_say_how_close_they_are(life: StoreLife) -> None:
    store = await life.open(
        max_in_flight=9,
        delivery_rate_per_s=0.5,
        delivery_burst=8.0,
        tenant_max_in_flight=3,
        tenant_rate_per_s=0.25,
        tenant_burst=4.0,
    )
    of = {name: NewMessage(payload=b"x", tenant=name) for name in ("a", "b")}
    await life.publish(of["a"], of["b"], of["b"], b"x")
    (first, *_) = await life.lease(4)
    found = {one.name: one for one in (await store.run(ORDERS, GetLimits())).limits}
    used = {name: (round(one.used, 3), one.most) for name, one in found.items()}
    assert (used["max_in_flight"], used["delivery_burst"]) == ((4, 9), (4, 8))
    assert (used["tenant_max_in_flight"], used["tenant_burst"]) == ((2, 3), (2, 4))
    assert found["tenant_burst"].effect == "messages of tenant 'b' wait: 0.25 a second"
    await store.settle(ORDERS, [Settlement("nack", first.receipt, dead=True)])
    life.clock.passed_ns += 2 * 10**9
    found = {one.name: one for one in (await store.run(ORDERS, GetLimits())).limits}
    used = {name: (round(one.used, 3), one.most) for name, one in found.items()}
    assert (used["max_in_flight"], used["delivery_burst"]) == ((3, 9), (3, 8))
    assert used["tenant_burst"] == (1.5, 4)
    await store.close()
