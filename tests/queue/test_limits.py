"""Limits of deliveries: how many at a time and in a time, of a queue and of each tenant."""

import threading
from bisect import bisect_right
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput, TooLarge
from penstock.model import NS, LeasedMessage
from penstock.queue import NewMessage, Queue
from penstock.queue.limits import Gate, Limit
from tests.harness.queue_store import QueueStore


def limited(**settings: Any) -> Queue:
    return QueueStore(settings).queue


def payloads(leased: list[LeasedMessage]) -> list[bytes]:
    return [one.payload for one in leased]


def fill(queue: Queue, **counts: int) -> None:
    for tenant, count in counts.items():
        for number in range(count):
            queue.enqueue(f"{tenant}{number}", tenant=tenant)


# -- how many at a time ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 10])
def test_no_more_than_max_in_flight_are_leased(batch: int) -> None:
    queue = limited(max_in_flight=3)
    queue.enqueue_batch([b"1", b"2", b"3", b"4", b"5"])
    leased = [one for _ in range(5) for one in queue.lease(batch)]
    assert payloads(leased) == [b"1", b"2", b"3"]
    queue.ack(leased[1])
    assert payloads(queue.lease(batch)) == [b"4"]


@pytest.mark.parametrize("batch", [1, 10])
def test_no_more_of_a_tenant_are_leased_than_may_be_and_others_go_on(batch: int) -> None:
    queue = limited(tenant_max_in_flight=2)
    fill(queue, acme=4, bolt=3)
    queue.enqueue(b"none")
    leased = [one for _ in range(8) for one in queue.lease(batch)]
    assert payloads(leased) == [b"acme0", b"acme1", b"bolt0", b"bolt1", b"none"]
    queue.nack(leased[0], delay=60)
    assert payloads(queue.lease(batch)) == [b"acme2"]


@pytest.mark.parametrize("end", ["ack", "nack", "release", "cancel", "timeout", "dead", "expiry"])
def test_every_end_of_a_lease_makes_room(end: str) -> None:
    store = QueueStore({"tenant_max_in_flight": 1, "max_in_flight": 1, "lease_s": 10})
    queue = store.queue
    queue.enqueue(b"first", tenant="acme", max_attempts=1 if end == "dead" else 5)
    queue.enqueue(b"second", tenant="acme", priority=0)
    (first,) = queue.lease()
    assert queue.lease() == []
    match end:
        case "ack":
            queue.ack(first)
        case "nack" | "dead":
            queue.nack(first, delay=50)
        case "release":
            queue.release(first)
        case "cancel":
            queue.cancel(first.id)
        case _:
            store.clock.advance(11)
    assert len(queue.lease()) == 1
    store.close()


def test_limits_hold_over_restarts_and_kills() -> None:
    store = QueueStore({"tenant_max_in_flight": 2, "fair": True, "lease_s": 60})
    fill(store.queue, acme=5, bolt=1)
    assert len(store.queue.lease(9)) == 3
    for again in (store.kill, store.reopen, store.kill):
        again()
        assert store.queue.lease(9) == []
    store.clock.advance(61)
    assert payloads(store.queue.lease(9)) == [b"acme2", b"acme3"]  # the others back off
    store.clock.advance(1)
    assert payloads(store.queue.lease(9)) == [b"bolt0"]
    store.close()


def test_each_group_has_its_own_limits() -> None:
    queue = limited(tenant_max_in_flight=1)
    queue.groups.create("audit")
    fill(queue, acme=2)
    assert len(queue.lease(9)) == len(queue.lease(9, group="audit")) == 1


def test_a_key_holds_within_a_tenant() -> None:
    queue = limited(tenant_max_in_flight=2, fair=True)
    for number in range(3):
        queue.enqueue(f"k{number}", tenant="acme", key="k")
    queue.enqueue(b"free", tenant="acme")
    leased = queue.lease(9)
    assert payloads(leased) == [b"k0", b"free"]
    queue.ack(leased)
    assert payloads(queue.lease(9)) == [b"k1"]


def test_leases_of_dead_letters_do_not_count() -> None:
    queue = limited(max_in_flight=1, tenant_max_in_flight=1)
    queue.enqueue(b"bad", tenant="acme", max_attempts=1)
    queue.enqueue(b"good", tenant="acme")
    queue.nack(queue.lease()[0])
    (dead,) = queue.lease_dead()
    (good,) = queue.lease()
    queue.ack([dead, good])
    assert list(queue.browse()) == []


def test_a_seek_drops_the_leases_and_keeps_the_rate() -> None:
    queue = limited(tenant_max_in_flight=1, tenant_rate_per_s=0.1, tenant_burst=2)
    fill(queue, acme=3)
    assert len(queue.lease(9)) == 1
    queue.seek(seq=1)
    assert len(queue.lease(9)) == 1
    queue.seek(seq=1)
    assert queue.lease(9) == []


# -- how many in a time ----------------------------------------------------------------------------


def test_a_rate_lets_a_burst_go_and_then_one_after_the_other() -> None:
    store = QueueStore({"delivery_rate_per_s": 2, "delivery_burst": 3})
    store.queue.enqueue_batch([b"%d" % number for number in range(9)])
    assert payloads(store.queue.lease(9)) == [b"0", b"1", b"2"]
    store.clock.advance(0.4)
    assert store.queue.lease(9) == []
    store.clock.advance(0.1)
    assert payloads(store.queue.lease(9)) == [b"3"]
    store.clock.advance(60)
    assert payloads(store.queue.lease(9)) == [b"4", b"5", b"6"]
    assert store.queue.dequeue() is None  # it is a delivery as well
    store.close()


def test_ten_a_minute_for_each_tenant() -> None:
    store = QueueStore({"tenant_rate_per_s": 10 / 60, "tenant_burst": 10, "lease_s": 600})
    fill(store.queue, acme=30, bolt=5)
    assert len(store.queue.lease(99)) == 15
    for _ in range(10):
        store.clock.advance(6)
        assert len(store.queue.lease(99)) == 1
    store.close()


def test_a_rate_goes_on_where_it_was_after_a_restart() -> None:
    store = QueueStore({"tenant_rate_per_s": 1, "tenant_burst": 4})
    fill(store.queue, acme=9)
    assert len(store.queue.lease(9)) == 4
    store.clock.advance(2)
    for again in (store.kill, store.reopen):
        again()
        assert len(store.queue.lease(1)) == 1
    store.kill()
    assert store.queue.lease(9) == []
    store.close()


def test_a_clock_that_was_set_back_delays_by_no_more_than_a_burst() -> None:
    store = QueueStore({"delivery_rate_per_s": 1, "delivery_burst": 2})
    store.queue.enqueue_batch([b"x"] * 9)
    assert len(store.queue.lease(9)) == 2
    store.reopen()
    store.clock.advance(2)
    assert len(store.queue.lease(9)) == 2
    store.close()


def test_a_waiting_consumer_is_woken_when_the_rate_lets_a_message_go() -> None:
    store = QueueStore({"tenant_rate_per_s": 0.5})
    fill(store.queue, acme=2)
    store.queue.lease()
    assert store.queue.core.next_wake_ns() is not None
    assert store.queue.lease() == []
    core = store.queue.core
    core.settings.lease_s  # noqa: B018 - the end of the lease is later
    assert core.next_wake_ns() == 2 * NS
    store.clock.advance(2)
    assert len(store.queue.lease()) == 1
    store.close()


def test_the_end_of_a_lease_wakes_a_waiting_thread() -> None:
    queue = limited(max_in_flight=1)
    queue.enqueue_batch([b"1", b"2"])
    (first,) = queue.lease()
    found: list[LeasedMessage] = []
    thread = threading.Thread(target=lambda: found.extend(queue.lease(wait_s=60)))
    thread.start()
    queue.ack(first)
    thread.join(30)
    assert payloads(found) == [b"2"]


limits = st.builds(
    Limit.of,
    st.just(0),
    rate_per_s=st.sampled_from([0.1, 1 / 3, 1, 7.5, 1000]),
    burst=st.sampled_from([0, 1, 2.5, 10]),
)


@given(limit=limits, steps=st.lists(st.floats(0, 30), max_size=60))
def test_no_time_has_more_than_burst_and_rate(limit: Limit, steps: list[float]) -> None:
    """Of t seconds: at most burst + t * rate, for every pair of deliveries as the ends."""
    gate, now_ns, times = Gate(limit), 1_000 * NS, list[int]()
    burst = limit.slack_ns // limit.interval_ns + 1
    for step in steps:
        now_ns += round(step * NS)
        for _ in range(min(gate.room(now_ns), 50)):
            assert gate.is_open(now_ns)
            gate.delivered(now_ns)
            times.append(now_ns)
    for at, first in enumerate(times):
        for end in times[at:]:
            count = bisect_right(times, end) - at
            assert count <= burst + (end - first) // limit.interval_ns


# -- what is said about it -------------------------------------------------------------------------


def test_why_names_the_limit_that_holds_a_message_back() -> None:
    store = QueueStore({"tenant_max_in_flight": 1, "fair": True})
    fill(store.queue, acme=2, bolt=1)
    store.queue.lease()
    ids = [message.id for message in store.queue.browse(state="ready")]
    why = store.queue.why(ids[0])
    assert (why.code, why.state) == ("limited", "ready")
    assert "Tenant 'acme' has its maximum of 1 in flight" in why.sentence
    assert why.details == {"limit": "tenant_max_in_flight", "in_flight": 1}
    assert store.queue.why(ids[1]).code == "next"
    store.close()
    store = QueueStore({"delivery_rate_per_s": 0.5})
    first, second = store.queue.enqueue_batch([b"1", b"2"])
    store.queue.lease()
    why = store.queue.why(second)
    assert why.details == {"limit": "delivery_rate_per_s", "left_s": 2.0}
    assert store.queue.why(first).code == "leased"
    store.close()


def test_why_counts_what_is_before_a_message_of_its_tenant() -> None:
    queue = limited(fair=True)
    fill(queue, acme=3, bolt=2)
    last = list(queue.browse(state="ready"))[2]
    why = queue.why(last.id)
    assert why.code == "behind_others"
    assert why.details == {"same_tenant": 2, "tenants": 2}


@pytest.mark.parametrize("bad", ["", "x" * 1025, 7, b"acme", "\ud800"])
def test_a_tenant_that_is_no_short_text_is_refused(bad: Any) -> None:
    queue = limited(fair=True)
    for publish in (
        lambda: queue.enqueue(b"x", tenant=bad),
        lambda: queue.publish([NewMessage(payload=b"x", tenant=bad)]),
    ):
        with pytest.raises((InvalidInput, TooLarge), match="tenant"):
            publish()
    assert queue.stats().published == 0


# -- settings that change --------------------------------------------------------------------------


def test_limits_that_are_set_later_know_the_tenants_of_old_messages() -> None:
    store = QueueStore()
    fill(store.queue, acme=5)
    store.queue.enqueue(b"plain")
    store.queue.enqueue(b"late", tenant="bolt", delay=5)
    store.queue.enqueue(b"keyed", tenant="acme", key="k")
    held = store.queue.lease(2)
    store.queue.close()
    queue = store.open(fair=True, tenant_max_in_flight=3)
    assert payloads(queue.lease(9)) == [b"acme2", b"plain"]
    store.clock.advance(5)
    assert payloads(queue.lease(9)) == [b"late"]
    queue.ack(held)
    store.kill()
    assert payloads(store.queue.lease(9)) == [b"acme3", b"acme4"]
    store.queue.close()
    queue = store.open(fair=False, tenant_max_in_flight=0)
    assert payloads(queue.lease(9)) == [b"keyed"]
    store.close()


@pytest.mark.parametrize("setting", ["delivery_rate_per_s", "tenant_rate_per_s"])
def test_the_slowest_rate_is_one_in_a_hundred_years(setting: str) -> None:
    store = QueueStore({setting: 5e-324})
    store.queue.enqueue_batch([b"a", b"b"])
    assert [one.payload for one in store.queue.lease(2)] == [b"a"]
    store.reopen()
    assert store.queue.lease() == []


# -- a lease is as large as it may be --------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"max_in_flight": 3},
        {"delivery_rate_per_s": 1, "delivery_burst": 3},
        {"tenant_max_in_flight": 3},
        {"tenant_rate_per_s": 1, "tenant_burst": 3, "fair": True},
    ],
)
def test_expired_messages_do_not_make_a_lease_smaller(settings: dict[str, Any]) -> None:
    store = QueueStore(settings)
    queue = store.queue
    for number in range(2):
        queue.enqueue(f"old{number}", tenant="acme", ttl=1)
    fill(queue, acme=4)
    store.clock.advance(2)
    assert [one.payload for one in queue.peek(9)] == [b"acme0", b"acme1", b"acme2"]
    assert payloads(queue.lease(9)) == [b"acme0", b"acme1", b"acme2"]
    assert (queue.stats().ready, queue.lease(9)) == (1, [])
    assert store.kill().lease(9) == []
    store.close()


def test_expired_messages_do_not_make_a_dequeued_batch_smaller() -> None:
    store = QueueStore({"tenant_rate_per_s": 1, "tenant_burst": 2, "delivery_rate_per_s": 3})
    store.queue.enqueue(b"old", tenant="acme", ttl=1)
    fill(store.queue, acme=3, bolt=3)
    store.clock.advance(2)
    found = store.queue.dequeue_batch(9)
    assert [one.payload for one in found] == [b"acme0", b"acme1", b"bolt0"]
    store.close()


def test_what_waits_behind_an_expired_message_of_its_key_is_in_the_same_lease() -> None:
    store = QueueStore({"max_in_flight": 3})
    queue = store.queue
    queue.enqueue(b"old", key="k", ttl=1)
    queue.enqueue(b"next", key="k")
    queue.enqueue(b"other")
    store.clock.advance(2)
    assert sorted(payloads(queue.lease(9))) == [b"next", b"other"]
    store.close()
