"""Publishing, leasing and settling through a store."""

import asyncio

import pytest

from penstock.broker.store import Settlement
from penstock.errors import InvalidInput, NoSuchGroup, QueueFull, RateLimited, Unavailable
from penstock.model import NewMessage, TypedPayload
from penstock.operations import (
    Browse,
    CreateGroup,
    DeleteGroup,
    ExplainWait,
    GetMessage,
    GetStats,
    ListGroups,
    Redrive,
    ReleaseHolder,
)
from tests.conformance.conftest import ORDERS, StoreLife


def acks(leased: object) -> list[Settlement]:
    return [Settlement("ack", one.receipt) for one in leased]  # type: ignore[attr-defined]


async def test_messages_come_in_order_and_acked_ones_never_again(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(b"1", b"2", b"3")
    leased = await life.lease(2)
    assert [one.payload for one in leased] == [b"1", b"2"]
    assert [o.status for o in await store.settle(ORDERS, acks(leased))] == ["done", "done"]
    store = await life.reopen()
    assert await life.payloads() == [b"3"]
    await store.close()


async def test_what_a_holder_had_who_is_gone_is_ready_again_and_spends_no_attempt(
    life: StoreLife,
) -> None:
    store = await life.open()
    await life.publish(b"1", b"2", b"3")
    for holder in ("gone", "there", "gone"):
        await life.lease(1, holder=holder)
    store = await life.reopen()
    assert await store.run(ORDERS, ReleaseHolder("gone")) == 2
    assert await store.run(ORDERS, ReleaseHolder("gone")) == 0
    assert [(one.payload, one.attempt) for one in await life.lease()] == [(b"1", 1), (b"3", 1)]
    with pytest.raises(NoSuchGroup):
        await store.run(ORDERS, ReleaseHolder("gone", group="none"))
    await store.close()


async def test_a_batch_is_published_whole_or_not_at_all(life: StoreLife) -> None:
    store = await life.open()
    with pytest.raises(InvalidInput):
        await life.publish(b"good", NewMessage(payload=b"bad", priority=10))
    with pytest.raises(InvalidInput):
        await life.publish()
    assert (await store.run(ORDERS, GetStats())).published == 0
    await store.close()


async def test_priority_delay_ttl_and_key_hold(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(
        NewMessage(payload=b"later", delay=10, priority=9),
        NewMessage(payload=b"low", priority=0),
        NewMessage(payload=b"high", priority=9),
        NewMessage(payload=b"gone", ttl=5),
        NewMessage(payload=b"k1", key="k"),
        NewMessage(payload=b"k2", key="k"),
    )
    life.clock.passed_ns += 6 * 10**9
    assert await life.payloads() == [b"high", b"k1", b"low"]
    life.clock.passed_ns += 4 * 10**9
    assert await life.payloads() == [b"later"]
    stats = await store.run(ORDERS, GetStats())
    assert (stats.parked, stats.expired, stats.leased) == (1, 1, 4)
    await store.close()


async def test_a_message_frees_its_key_when_it_expires(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(
        NewMessage(payload=b"expires", key="k", ttl=5, priority=0),
        NewMessage(payload=b"next", key="k", priority=9),
        NewMessage(payload=b"other", priority=8),
    )
    life.clock.passed_ns += 5 * 10**9
    assert [one.payload for one in await life.lease(1)] == [b"next"]
    store = await life.reopen()
    stats = await store.run(ORDERS, GetStats())
    assert (stats.ready, stats.parked, stats.expired, stats.leased) == (1, 0, 1, 1)
    await store.close()


async def test_a_message_comes_after_others_over_a_restart(life: StoreLife) -> None:
    store = await life.open()
    first, second, last = await store.publish(
        ORDERS,
        [
            NewMessage(payload=b"1", max_attempts=1, priority=9),
            NewMessage(payload=b"2", after=[0]),
            NewMessage(payload=b"3", after=[0, 1], after_failed="run"),
        ],
    )
    (leased,) = await life.lease()
    assert leased.payload == b"1"
    assert (await store.run(ORDERS, GetStats())).blocked == 2
    store = await life.reopen()
    await store.settle(ORDERS, [Settlement("nack", leased.receipt, reason="boom")])
    store = await life.reopen()
    states = [(await store.run(ORDERS, GetMessage(one.id))).state for one in (first, second, last)]
    assert states == ["dead", "dead", "ready"]
    assert await store.run(ORDERS, Redrive([first.id])) == 1
    store = await life.reopen()
    stats = await store.run(ORDERS, GetStats())
    assert (stats.ready, stats.blocked, stats.dead) == (2, 1, 0)
    leased_now = await life.lease()
    await store.settle(ORDERS, acks(leased_now))
    assert await life.payloads() == [b"2"]
    await store.close()


async def test_a_duplicate_is_answered_with_the_first_id(life: StoreLife) -> None:
    store = await life.open()
    message = NewMessage(payload=b"once", dedup_id="a")
    (first,) = await store.publish(ORDERS, [message])
    store = await life.reopen()
    (again,) = await store.publish(ORDERS, [message])
    assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
    assert await life.payloads() == [b"once"]
    await store.close()


async def test_each_settlement_stands_for_itself(life: StoreLife) -> None:
    store = await life.open(backoff_base_s=1.0, backoff_jitter=0.0)
    await life.publish(b"ack", b"nack", b"extend", b"release", b"dead")
    a, n, e, r, d = await life.lease()
    outcomes = await store.settle(
        ORDERS,
        [
            Settlement("ack", a.receipt, emit=[NewMessage(payload=b"follow-up")]),
            Settlement("ack", a.receipt),
            Settlement("nack", n.receipt, reason="broken"),
            Settlement("extend", e.receipt, lease_s=100.0),
            Settlement("release", r.receipt),
            Settlement("nack", d.receipt, reason="hopeless", dead=True),
            Settlement("nack", e.receipt, delay_s=-1.0),
        ],
    )
    assert [o.status for o in outcomes] == [
        "done",
        "repeated",
        "done",
        "done",
        "done",
        "done",
        "invalid",
    ]
    assert (await store.run(ORDERS, GetMessage(outcomes[0].ids[0]))).message.payload == b"follow-up"
    assert await life.payloads() == [b"release", b"follow-up"]
    stats = await store.run(ORDERS, GetStats())
    assert (stats.scheduled, stats.leased, stats.dead, stats.acked) == (1, 3, 1, 1)
    life.clock.passed_ns += 1 * 10**9
    (again,) = await life.lease(1)
    assert (again.payload, again.attempt) == (b"nack", 2)
    await store.close()


async def test_a_lease_ends_at_its_time_and_its_receipt_with_the_next_one(
    life: StoreLife,
) -> None:
    store = await life.open(backoff_base_s=0.0)
    await life.publish(b"slow")
    (first,) = await life.lease(lease_s=10.0)
    life.clock.passed_ns += 11 * 10**9
    (second,) = await life.lease(lease_s=10.0)
    assert second.attempt == 2
    outcomes = await store.settle(ORDERS, acks([first, second]))
    assert [o.status for o in outcomes] == ["gone", "done"]
    await store.close()


async def test_a_late_ack_counts_if_nobody_has_the_message(life: StoreLife) -> None:
    store = await life.open(backoff_base_s=100.0)
    await life.publish(b"slow")
    leased = await life.lease(lease_s=10.0)
    life.clock.passed_ns += 11 * 10**9
    await store.run(ORDERS, GetStats())
    assert [o.status for o in await store.settle(ORDERS, acks(leased))] == ["done"]
    assert [o.status for o in await store.settle(ORDERS, acks(leased))] == ["repeated"]
    await store.close()


async def test_receipts_outlive_a_restart(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(b"work")
    leased = await life.lease()
    store = await life.reopen()
    assert [o.status for o in await store.settle(ORDERS, acks(leased))] == ["done"]
    await store.close()


async def test_a_lease_that_nobody_waits_for_is_given_back_untouched(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(b"work")
    leasing = store.lease(ORDERS, 1)
    if not leasing.cancel():  # it was done at once, and is the caller's
        await store.settle(ORDERS, [Settlement("release", one.receipt) for one in await leasing])
    await life.publish(b"more")  # its round of syncs is behind that of the lease
    leased = await life.lease()
    assert [(one.payload, one.attempt) for one in leased] == [(b"work", 1), (b"more", 1)]
    await store.close()


async def test_that_nothing_is_ready_is_known_at_once(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(b"one")
    await life.lease()
    found = store.lease(ORDERS, 1)
    await asyncio.sleep(0)
    assert await found == []
    assert store.ready_hint(ORDERS, "main") in (0, None)
    await store.close()


async def test_watchers_are_told_of_what_is_published_due_released_and_timed_out(
    life: StoreLife,
) -> None:
    store = await life.open(backoff_base_s=0.0)
    store.watch(ORDERS)
    await life.publish(b"now")
    assert life.ready == [ORDERS]
    (leased,) = await life.lease(lease_s=20.0)
    life.ready.clear()
    await store.settle(ORDERS, [Settlement("release", leased.receipt)])
    assert ORDERS in life.ready
    await life.lease(lease_s=20.0)
    await life.publish(NewMessage(payload=b"later", delay=5))
    life.ready.clear()
    await asyncio.sleep(5.01)
    assert ORDERS in life.ready
    life.ready.clear()
    await asyncio.sleep(15)
    assert ORDERS in life.ready
    store.unwatch(ORDERS)
    life.ready.clear()
    await life.publish(b"unseen")
    assert life.ready == []
    await store.close()


async def test_groups_are_independent_and_start_where_they_are_told(life: StoreLife) -> None:
    store = await life.open()
    ids = await life.publish(b"1", b"2", b"3")
    assert await store.run(ORDERS, CreateGroup("audit", to="beginning"))
    assert not await store.run(ORDERS, CreateGroup("audit", to="end"))
    assert await store.run(ORDERS, CreateGroup("tail", id=ids[2]))
    assert await store.run(ORDERS, ListGroups()) == ["audit", "main", "tail"]
    assert await life.payloads(1) == [b"1"]
    assert await life.payloads(group="audit") == [b"1", b"2", b"3"]
    assert await life.payloads(group="tail") == [b"3"]
    await store.run(ORDERS, DeleteGroup("audit"))
    with pytest.raises(NoSuchGroup):
        await life.lease(group="audit")
    await store.close()


async def test_a_full_or_hurried_queue_refuses(life: StoreLife) -> None:
    store = await life.open(max_messages=2)
    await life.publish(b"1", b"2")
    with pytest.raises(QueueFull):
        await life.publish(b"3")
    await store.change(ORDERS, {"max_messages": 0, "rate_per_s": 1.0, "rate_burst": 1.0})
    await life.publish(b"3")
    with pytest.raises(RateLimited) as caught:
        await life.publish(b"4")
    assert caught.value.retry_after_s == pytest.approx(1.0)
    await store.close()


async def test_blocking_for_room_blocks_nobody_else(life: StoreLife) -> None:
    store = await life.open(max_messages=1, when_full="block", block_s=30.0)
    await life.publish(b"1")
    waiting = store.publish(ORDERS, [b"2"])
    leased = await life.lease()
    await store.settle(ORDERS, acks(leased))
    await waiting
    assert await life.payloads() == [b"2"]
    await store.close()


async def test_a_payload_with_a_content_type_is_published_as_such(life: StoreLife) -> None:
    for bounds in ({}, {"max_messages": 100}):  # the short way, and the long one
        store = await life.open()
        await store.change(ORDERS, bounds)
        typed = [TypedPayload(b"{}", "application/json"), TypedPayload(b"[]", "text/größe")]
        ids = [one.id for one in await store.publish(ORDERS, [*typed, *typed[:1]])]
        leased = await life.lease(3)
        assert [one.id for one in leased] == ids
        kinds = [(one.payload, one.message.content_type) for one in leased]
        assert kinds == [*typed, *typed[:1]]
        with pytest.raises(InvalidInput, match="content_type"):
            await store.publish(ORDERS, [TypedPayload(b"x", "x" * 300)])
        with pytest.raises(InvalidInput, match="payload"):
            await store.publish(ORDERS, [TypedPayload(bytes(17 << 20), "x")])
        await store.close()


async def test_any_number_may_wait_for_room_and_nobody_waits_for_them(life: StoreLife) -> None:
    store = await life.open(max_messages=1, when_full="block", block_s=30.0)
    await life.publish(b"first")
    waiting = [store.publish(ORDERS, [b"more"]) for _ in range(20)]
    await asyncio.sleep(1)
    assert len((await store.run(ORDERS, Browse())).rows) == 1
    for _ in range(20):
        leased = await life.lease()
        await store.settle(ORDERS, acks(leased))
        await asyncio.sleep(0.001)
    assert all(one.done() and not one.exception() for one in waiting)
    with pytest.raises(QueueFull):
        await life.publish(b"too many")
    assert life.clock.passed_ns > 31e9
    late = store.publish(ORDERS, [b"late"])
    await asyncio.sleep(1)
    await store.close()
    with pytest.raises(Unavailable):
        await late


async def test_progress_is_on_record_while_the_lease_lasts(life: StoreLife) -> None:
    store = await life.open()
    (published,) = await life.publish(b"long")
    (leased,) = await life.lease(1)
    said = Settlement("extend", leased.receipt, progress=0.25, note="a quarter")
    wrong = Settlement("extend", leased.receipt, progress=1.5)
    outcomes = await store.settle(ORDERS, [said, wrong])
    assert [one.status for one in outcomes] == ["done", "invalid"]
    store = await life.reopen()
    why = await store.run(ORDERS, ExplainWait(published))
    assert (why.details["progress"], why.details["note"]) == (0.25, "a quarter")
    await store.settle(ORDERS, acks([leased]))
    assert "progress" not in (await store.run(ORDERS, ExplainWait(published))).details
    await store.close()


async def test_a_unique_message_is_published_once_until_it_is_done(life: StoreLife) -> None:
    store = await life.open()
    unique = NewMessage(payload=b"x", headers={"penstock-unique": "until_done:a"})
    answers = await asyncio.gather(*(store.publish(ORDERS, [unique]) for _ in range(5)))
    published = [one for answer in answers for one in answer]
    assert len({one.id for one in published}) == 1
    assert sum(not one.duplicate for one in published) == 1
    store = await life.reopen()
    ((again,),) = [await store.publish(ORDERS, [unique])]
    assert again.duplicate and again.id == published[0].id
    await store.settle(ORDERS, acks(await life.lease(1)))
    store = await life.reopen()
    ((other,),) = [await store.publish(ORDERS, [unique])]
    assert not other.duplicate and other.id != again.id
    await store.close()
