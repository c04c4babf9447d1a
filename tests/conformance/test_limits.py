"""Limits of deliveries and fair share through a store."""

from penstock.broker.store import Settlement
from penstock.model import NewMessage
from penstock.operations import ExplainWait
from tests.conformance.conftest import ORDERS, StoreLife


def of(tenant: str, count: int) -> list[NewMessage]:
    return [NewMessage(payload=f"{tenant}{number}", tenant=tenant) for number in range(count)]


async def test_tenants_take_turns_over_a_restart(life: StoreLife) -> None:
    store = await life.open(fair=True)
    await life.publish(*of("a", 9), *of("b", 2), b"none")
    assert await life.payloads(2) == [b"a0", b"b0"]
    store = await life.reopen()
    assert await life.payloads(1) == [b"none"]
    assert await life.payloads(5) == [b"a1", b"b1", b"a2", b"a3", b"a4"]
    await store.close()


async def test_limits_of_the_queue_and_of_tenants_hold_over_a_restart(life: StoreLife) -> None:
    store = await life.open(tenant_max_in_flight=2, max_in_flight=3)
    await life.publish(*of("a", 4), *of("b", 4))
    leased = await life.lease(9)
    assert [one.payload for one in leased] == [b"a0", b"a1", b"b0"]
    store = await life.reopen()
    assert await life.lease(9) == []
    await store.settle(ORDERS, [Settlement("ack", leased[0].receipt)])
    assert await life.payloads(9) == [b"a2"]
    await store.close()


async def test_a_rate_of_each_tenant_holds_over_a_restart(life: StoreLife) -> None:
    store = await life.open(tenant_rate_per_s=0.1, tenant_burst=2)
    ids = await life.publish(*of("a", 4), *of("b", 1))
    assert await life.payloads(9) == [b"a0", b"a1", b"b0"]
    store = await life.reopen()
    assert await life.lease(9) == []
    why = await store.run(ORDERS, ExplainWait(ids[3]))
    assert (why.code, why.details["limit"]) == ("limited", "tenant_rate_per_s")
    life.clock.passed_ns += 10 * 10**9
    assert await life.payloads(9) == [b"a2"]
    await store.close()
