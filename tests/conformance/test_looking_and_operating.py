"""Looking into a store's queues, and operating on them."""

import pytest

from penstock.broker.store import Settlement, Store
from penstock.errors import InvalidInput, NoSuchMessage, NoSuchQueue, NotEmpty
from penstock.model import NS, LeasedMessage, NewMessage
from penstock.names import QueueName
from penstock.operations import (
    Browse,
    Cancel,
    CancelDeliverable,
    Compact,
    Discard,
    ExplainWait,
    GetMessage,
    GetStats,
    LeaseMessage,
    ListDead,
    ListHistory,
    Pause,
    Peek,
    Purge,
    Redrive,
    Resume,
    Seek,
    Sync,
)
from tests.conformance.conftest import ORDERS, StoreLife


async def dead(store: Store, **options: object) -> list[bytes]:
    page = await store.run(ORDERS, ListDead(limit=100, **options))  # type: ignore[arg-type]
    return [letter.payload for letter in page.letters]


async def kill(life: StoreLife, *payloads: bytes, reason: str = "") -> None:
    await life.publish(*payloads)
    leased = await life.lease(len(payloads))
    await life.store.settle(
        ORDERS, [Settlement("nack", one.receipt, reason=reason, dead=True) for one in leased]
    )


async def test_a_message_is_shown_with_where_it_stands(life: StoreLife) -> None:
    store = await life.open()
    ready, leased, later = await life.publish(
        b"ready", NewMessage(payload=b"leased", priority=9), NewMessage(payload=b"l", delay=9)
    )
    await life.lease(1)
    for id_, state, attempts in (
        (ready, "ready", 0),
        (leased, "leased", 1),
        (later, "scheduled", 0),
    ):
        row = await store.run(ORDERS, GetMessage(id_))
        assert (row.message.id, row.state, row.attempts) == (id_, state, attempts)
    with pytest.raises(NoSuchMessage):
        await store.run(ORDERS, GetMessage(ready[:-1] + ("0" if ready[-1] != "0" else "1")))
    await store.close()


async def test_pages_have_each_row_once_and_say_where_they_end(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(*(b"%d" % n for n in range(25)))
    seen, after = [], 0
    while True:
        page = await store.run(ORDERS, Browse(limit=10, after_seq=after))
        seen += [row.message.payload for row in page.rows]
        assert not page.exhausted
        if not page.next_seq:
            break
        after = page.next_seq
    assert seen == [b"%d" % n for n in range(25)]
    await store.close()


async def test_browsing_selects_by_state_key_time_and_text(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(NewMessage(payload=b"apple", key="k"), b"pear")
    life.clock.passed_ns += 10**9
    middle = life.clock.now_ns()
    await life.publish(b"pineapple", NewMessage(payload=b"later", delay=60))

    async def found(**query: object) -> list[bytes]:
        page = await store.run(ORDERS, Browse(**query))  # type: ignore[arg-type]
        return [row.message.payload for row in page.rows]

    assert await found(key="k") == [b"apple"]
    assert await found(text="apple") == [b"apple", b"pineapple"]
    assert await found(since=middle / NS) == [b"pineapple", b"later"]
    assert await found(until=middle / NS) == [b"apple", b"pear"]
    assert await found(state="scheduled") == [b"later"]
    with pytest.raises(InvalidInput):
        await found(state="sleepy")
    with pytest.raises(InvalidInput):
        await found(limit=0)
    await store.close()


async def test_a_search_looks_at_no_more_than_its_budget(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(*(b"hay" for _ in range(50)), b"needle")
    page = await store.run(ORDERS, Browse(text="needle", budget=20))
    assert (page.rows, page.looked_at, page.exhausted) == ([], 20, True)
    page = await store.run(ORDERS, Browse(text="needle", after_seq=page.next_seq))
    assert [row.message.payload for row in page.rows] == [b"needle"]
    await store.close()


async def test_a_search_for_what_is_cancelled_has_the_same_budget(life: StoreLife) -> None:
    """Messages in other states are looked at as well, and count."""
    store = await life.open()
    await life.publish(b"0")
    published = await store.publish(ORDERS, [b"%d" % n for n in range(1, 30)])
    await store.run(ORDERS, Cancel(published[23].id))
    page = await store.run(ORDERS, Browse(state="cancelled", budget=20))
    assert (page.rows, page.looked_at, page.exhausted) == ([], 20, True)
    page = await store.run(ORDERS, Browse(state="cancelled", after_seq=page.next_seq))
    assert [row.message.id for row in page.rows] == [published[23].id]
    assert (page.next_seq, page.looked_at) == (0, 10)
    await store.close()


async def test_peeking_shows_the_order_of_delivery_and_changes_nothing(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(b"low", NewMessage(payload=b"high", priority=9))
    assert [r.message.payload for r in await store.run(ORDERS, Peek(5))] == [b"high", b"low"]
    assert await life.payloads() == [b"high", b"low"]
    await store.close()


async def test_dead_letters_are_paged_filtered_redriven_and_discarded(life: StoreLife) -> None:
    store = await life.open()
    await kill(life, b"a", b"b", reason="timeout of the bank")
    await kill(life, b"c", reason="no such customer")
    page = await store.run(ORDERS, ListDead(after_seq=0, limit=2))
    assert [letter.payload for letter in page.letters] == [b"a", b"b"]
    assert await dead(store, after_seq=page.next_seq) == [b"c"]
    assert await dead(store, reason="bank") == [b"a", b"b"]
    assert await store.run(ORDERS, Redrive(reason="bank", dry_run=True)) == 2
    assert (await store.run(ORDERS, GetStats())).dead == 3
    assert await store.run(ORDERS, Redrive(reason="bank", limit=1)) == 1
    assert await life.payloads() == [b"a"]
    assert await store.run(ORDERS, Discard()) == 2
    assert await dead(store) == []
    await store.close()


async def test_dead_letters_can_be_leased_and_stay_dead_unless_acked(life: StoreLife) -> None:
    store = await life.open()
    await kill(life, b"a", b"b")
    first, second = await life.lease(2, dead=True)
    await store.settle(
        ORDERS, [Settlement("ack", first.receipt), Settlement("release", second.receipt)]
    )
    assert await dead(store) == [b"b"]
    await store.close()


async def test_why_and_history_tell_what_happened(life: StoreLife) -> None:
    store = await life.open()
    (id_,) = await life.publish(b"x")
    (leased,) = await life.lease(holder="ann")
    assert "ann" in (await store.run(ORDERS, ExplainWait(id_))).sentence
    await store.settle(ORDERS, [Settlement("ack", leased.receipt)])
    assert [e.event for e in await store.run(ORDERS, ListHistory(id_))] == [
        "published",
        "leased",
        "acked",
    ]
    await store.close()


async def test_cancel_purge_pause_and_seek(life: StoreLife) -> None:
    store = await life.open()
    first, *_ = await life.publish(b"1", b"2", b"3")
    assert await store.run(ORDERS, Cancel(first))
    assert not await store.run(ORDERS, Cancel(first))
    await store.run(ORDERS, Pause())
    store = await life.reopen()
    assert await life.payloads() == []
    await store.run(ORDERS, Resume())
    assert await life.payloads(1) == [b"2"]
    assert await store.run(ORDERS, Purge()) == 1
    assert await life.payloads() == []
    assert await store.run(ORDERS, Seek(to="beginning")) == 1
    assert await life.payloads() == [b"1", b"2", b"3"]
    with pytest.raises(InvalidInput):
        await store.run(ORDERS, Seek(to="middle"))
    await store.close()


async def test_sync_is_done_in_every_policy_and_needs_the_queue(life: StoreLife) -> None:
    store = await life.open(sync="never")
    await life.publish(b"1")
    await store.run(ORDERS, Sync())
    with pytest.raises(NoSuchQueue):
        await store.run(QueueName("shop", "none"), Sync())
    await store.close()


async def test_compaction_gives_back_what_is_done_with(life: StoreLife) -> None:
    store = await life.open(segment_bytes=1 << 16, auto_compact=False)
    for _ in range(40):
        await life.publish(b"x" * 10_000)
    leased = await life.lease(40)
    await store.settle(ORDERS, [Settlement("ack", one.receipt) for one in leased])
    assert await store.run(ORDERS, Compact()) > 200_000
    await store.close()


async def test_what_is_ready_parked_or_leased_is_cancelled_and_the_rest_stays(
    life: StoreLife,
) -> None:
    store = await life.open(max_attempts=1, backoff_base_s=0.0)
    await life.publish(b"dead", b"dead and leased")
    for one in await life.lease(2):
        await store.settle(ORDERS, [Settlement("nack", one.receipt)])
    (dead,) = await life.lease(1, dead=True)
    await life.publish(b"leased")
    await life.lease(1)
    await life.publish(
        b"ready",
        NewMessage(payload=b"first", key="k"),
        NewMessage(payload=b"parked", key="k"),
        NewMessage(payload=b"urgent", priority=9),
        NewMessage(payload=b"later", delay=60.0),
    )
    assert await store.run(ORDERS, CancelDeliverable(2)) == 2
    assert await store.run(ORDERS, CancelDeliverable(100)) == 3
    assert await store.run(ORDERS, CancelDeliverable(100)) == 0
    store = await life.reopen()
    found = await store.run(ORDERS, GetStats())
    assert (found.ready, found.parked, found.scheduled, found.cancelled) == (0, 0, 1, 5)
    assert found.dead + found.leased == 2
    assert await store.settle(ORDERS, [Settlement("ack", dead.receipt)])
    await store.close()


async def test_one_message_is_leased_by_its_seq_unless_another_holds_it(life: StoreLife) -> None:
    store = await life.open(max_attempts=1, backoff_base_s=0.0)
    await life.publish(b"dead")
    for one in await life.lease(1):
        await store.settle(ORDERS, [Settlement("nack", one.receipt)])
    await life.publish(
        b"first",
        b"leased",
        NewMessage(payload=b"later", delay=60.0),
        NewMessage(payload=b"much later", delay=600.0),
        NewMessage(payload=b"head of k", key="k"),
        NewMessage(payload=b"parked", key="k"),
    )

    async def lease(seq: int) -> list[LeasedMessage]:
        return await store.run(ORDERS, LeaseMessage(seq, lease_s=60))

    (leased,) = await lease(3)
    assert (leased.payload, leased.seq, leased.attempt) == (b"leased", 3, 1)
    assert await lease(3) == []
    assert await lease(7) == [], "parked"
    assert await lease(99) == []
    (dead,) = await lease(1)
    (later,) = await lease(4)
    (much_later,) = await lease(5)
    assert [one.payload for one in (dead, later)] == [b"dead", b"later"]
    assert [one.payload for one in await life.lease(9)] == [b"first", b"head of k"]
    settlements = [
        Settlement("ack", leased.receipt),
        Settlement("release", dead.receipt),
        Settlement("release", later.receipt),
        Settlement("ack", much_later.receipt),
    ]
    store = await life.reopen()
    outcomes = await store.settle(ORDERS, settlements)
    assert [one.status for one in outcomes] == ["done"] * 4
    found = await store.run(ORDERS, GetStats())
    assert (found.dead, found.scheduled, found.acked, found.leased) == (1, 1, 2, 2)
    assert await lease(3) == [], "done"
    await store.close()


async def test_a_queue_is_deleted_only_if_it_is_empty_where_that_is_asked(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(b"x")
    with pytest.raises(NotEmpty):
        await store.delete(ORDERS, if_empty=True)
    (leased,) = await life.lease(1)
    with pytest.raises(NotEmpty):
        await store.delete(ORDERS, if_empty=True)
    await store.settle(ORDERS, [Settlement("ack", leased.receipt)])
    await store.delete(ORDERS, if_empty=True)
    assert ORDERS not in life.heard.queues
    await store.close()
