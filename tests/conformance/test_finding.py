"""Find a message by its dedup id, and nack a message so that it is dead at once, in every store."""

import pytest

from penstock.broker.store import Settlement
from penstock.errors import InvalidInput, QueueFull
from penstock.model import NewMessage
from penstock.operations import FindMessage, GetRetryInfo
from tests.conformance.conftest import ORDERS, StoreLife


async def test_a_message_is_found_by_its_dedup_id_within_the_window(life: StoreLife) -> None:
    store = await life.open()
    (first, _) = await life.publish(
        NewMessage(payload=b"a", dedup_id="order-7", dedup_window_s=60),
        NewMessage(payload=b"b", dedup_id="order-8", dedup_window_s=60),
    )
    assert await store.run(ORDERS, FindMessage("order-7")) == first
    assert await store.run(ORDERS, FindMessage("order-9")) == ""
    life.clock.passed_ns += 61 * 10**9
    assert await store.run(ORDERS, FindMessage("order-7")) == ""
    with pytest.raises(InvalidInput):
        FindMessage(7)  # type: ignore[arg-type]
    await store.close()


async def test_what_an_ack_emits_is_found_and_is_never_delivered_if_it_is_due_when_it_expires(
    life: StoreLife,
) -> None:
    store = await life.open()
    await life.publish(b"job")
    (leased,) = await life.lease(1)
    result = NewMessage(payload=b"42", delay=60, ttl=0, dedup_id="r", dedup_window_s=60)
    (outcome,) = await store.settle(ORDERS, [Settlement("ack", leased.receipt, emit=[result])])
    assert await store.run(ORDERS, FindMessage("r")) == outcome.ids[0]
    assert await life.lease(1) == []
    life.clock.passed_ns += 60 * 10**9
    assert await life.lease(1) == []
    assert await store.run(ORDERS, FindMessage("r")) == ""
    await store.close()


async def test_results_and_steps_do_not_displace_other_dedup_ids(life: StoreLife) -> None:
    store = await life.open(dedup_entries=2, result_entries=2)
    ids = ("mine", "client:0:0", "penstock.unique:a:key:b")
    found = await life.publish(*(NewMessage(payload=b"", dedup_id=id_) for id_ in ids))
    day_s = 86400.0
    for number in range(5):
        for name in (f"penstock.result:{number}", f"penstock.flow:{number}"):
            await life.publish(
                NewMessage(payload=b"", dedup_id=name, dedup_window_s=day_s, delay=day_s, ttl=0)
            )
    await store.close()
    store = await life.open()
    assert [await store.run(ORDERS, FindMessage(id_)) for id_ in ids] == list(found)
    results = [await store.run(ORDERS, FindMessage(f"penstock.result:{n}")) for n in range(5)]
    assert [bool(result) for result in results] == [False, False, False, True, True]
    await life.publish(NewMessage(payload=b"", dedup_id="penstock.unique:a:key:c"))
    with pytest.raises(QueueFull, match="dedup_entries"):
        await life.publish(NewMessage(payload=b"", dedup_id="penstock.unique:a:key:d"))
    await store.close()


async def test_a_message_is_dead_at_once_if_the_nack_says_so(life: StoreLife) -> None:
    store = await life.open(max_attempts=20)
    (id_,) = await life.publish(b"job")
    (leased,) = await life.lease(1)
    nack = Settlement("nack", leased.receipt, reason="no such user", dead=True)
    (outcome,) = await store.settle(ORDERS, [nack])
    assert outcome.status == "done"
    info = await store.run(ORDERS, GetRetryInfo(id_))
    assert (info.state, info.attempts, info.reason) == ("dead", 1, "no such user")
    await store.close()
