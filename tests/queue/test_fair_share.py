"""Fair share: tenants take turns, and one tenant's million keeps nobody waiting."""

import tracemalloc
from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from penstock.queue import NewMessage, Queue
from penstock.queue.fair_share import FairShare
from penstock.queue.limits import Limits
from penstock.queue.snapshot import dump_state
from tests.harness.queue_store import QueueStore


def fair(**settings: Any) -> Queue:
    return QueueStore({"fair": True, **settings}).queue


def tenants(queue: Queue, batch: int, most: int) -> list[str]:
    """The tenants of what is delivered next, by payload."""
    found: list[str] = []
    while len(found) < most and (some := queue.dequeue_batch(min(batch, most - len(found)))):
        found += [one.payload.decode() for one in some]
    return found


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_tenants_take_turns_whatever_they_have_waiting(batch: int) -> None:
    queue = fair()
    queue.publish([NewMessage(payload=b"a", tenant="a")] * 50)
    queue.publish([NewMessage(payload=b"b", tenant="b")] * 3)
    queue.enqueue_batch([b"none"] * 3)
    turns = tenants(queue, batch, 56)
    assert turns[:9] == ["a", "b", "none"] * 3
    assert turns[9:] == ["a"] * 47


def test_priority_comes_before_turns_and_due_time_within_a_tenant() -> None:
    store = QueueStore({"fair": True})
    queue = store.queue
    for name in ("a", "a", "b"):
        queue.enqueue(f"{name} low", tenant=name, priority=1)
    queue.enqueue(b"a late", tenant="a", priority=9, delay=5)
    for name in ("a", "a", "b"):
        queue.enqueue(f"{name} high", tenant=name, priority=9)
    store.clock.advance(5)
    queue.enqueue(b"a newest", tenant="a", priority=9)
    assert [one.payload.decode() for one in queue.dequeue_batch(9)] == [
        *("a high", "b high", "a high", "a late", "a newest"),
        *("a low", "b low", "a low"),
    ]
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_each_of_k_tenants_is_served_once_in_k_leases(seed: int) -> None:
    """Over batches of any size, restarts, new messages and new tenants."""
    random = Random(seed)
    store = QueueStore({"fair": True, "snapshot_every": 40})
    waiting: Counter[str] = Counter()
    since: dict[str, int] = {}  # tenant -> deliveries when it was served or came
    delivered = 0
    for _ in range(150):
        store.clock.advance(random.choice([0.001, 1]))
        match random.randrange(8):
            case 0 | 1 | 2:
                name, count = f"t{random.randrange(8)}", random.choice([1, 2, 30])
                store.queue.publish([NewMessage(payload=name, tenant=name)] * count)
                if not waiting[name]:
                    since[name] = delivered
                waiting[name] += count
            case 3:
                random.choice([store.kill, store.reopen])()
            case _:
                for message in store.queue.dequeue_batch(random.randint(1, 9)):
                    name = message.payload.decode()
                    ready = sum(count > 0 for count in waiting.values())
                    assert delivered - since[name] <= ready + len(since), name
                    delivered += 1
                    waiting[name] -= 1
                    since[name] = delivered
                    oldest = min((since[t] for t in waiting if waiting[t]), default=delivered)
                    assert delivered - oldest <= 8
    while found := store.queue.dequeue_batch(100):
        waiting.subtract(one.payload.decode() for one in found)
    assert not any(waiting.values())
    store.close()


def test_tenants_that_come_all_the_time_starve_nobody() -> None:
    """A consumer that new tenants keep busy serves another one every five seconds."""
    store = QueueStore({"fair": True})
    store.queue.publish([NewMessage(payload=b"big", tenant="big")] * 100)
    served = []
    for number in range(400):
        store.clock.advance(0.05)
        store.queue.enqueue(b"new", tenant=f"new{number}")
        store.clock.advance(0.05)
        served += [one.payload for one in store.queue.dequeue_batch(1)]
    turns = [number for number, payload in enumerate(served) if payload == b"big"]
    assert len(turns) >= 7
    assert max(b - a for a, b in pairwise(turns)) * 0.1 < 6  # some wait for it in turn
    store.close()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("big", [1, 20])
def test_a_tenant_that_asks_for_less_than_its_share_is_next(big: int, batch: int) -> None:
    """However many others have a backlog: the queue adds nothing to its wait."""
    store = QueueStore({"fair": True})
    names = [f"big{number}" for number in range(big)]
    store.queue.publish([NewMessage(payload=b"big", tenant=name) for name in names * 100])
    for _ in range(5):
        for _ in range(big + 1):  # more than a round
            store.clock.advance(0.01)
            assert {one.payload for one in store.queue.dequeue_batch(batch)} == {b"big"}
        store.queue.enqueue(b"small", tenant="small")
        assert store.queue.dequeue_batch(batch)[0].payload == b"small"
    store.close()


def test_a_tenant_that_publishes_whenever_it_is_served_takes_turns() -> None:
    store = QueueStore({"fair": True})
    names = ["big0", "big1"]
    store.queue.publish([NewMessage(payload=name, tenant=name) for name in names * 50])
    served: list[str] = []
    store.queue.enqueue(b"small", tenant="small")
    for _ in range(60):
        store.clock.advance(0.01)
        served += tenants(store.queue, 1, 1)
        if served[-1] == "small":
            store.queue.enqueue(b"small", tenant="small")
    assert Counter(served) == {"big0": 20, "big1": 20, "small": 20}
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_turns_are_the_same_after_a_crash(seed: int) -> None:
    """The state in memory is what the log gives: as bytes, at any time."""
    random = Random(seed)
    store = QueueStore({"fair": True, "tenant_max_in_flight": 3, "tenant_rate_per_s": 5})
    for _ in range(60):
        store.clock.advance(random.random())
        name = f"t{random.randrange(5)}"
        match random.randrange(5):
            case 0 | 1:
                delay = random.choice([None, 2])
                store.queue.enqueue(b"x", tenant=name, delay=delay, priority=random.randrange(10))
            case 2:
                store.queue.dequeue_batch(2)
            case 3:
                store.queue.lease(random.randint(1, 4))
            case _:
                leased = store.queue.lease(2)
                if leased and random.random() < 0.5:
                    store.queue.ack(leased)
                elif leased:
                    store.queue.nack(leased)
        before = dump_state(store.queue.core.state)
        if random.random() < 0.2:
            store.queue.peek(1)
            before = dump_state(store.queue.core.state)
            store.kill()
            assert dump_state(store.queue.core.state) == before
    store.close()


def test_a_waiting_message_takes_twenty_bytes() -> None:
    share = FairShare(Limits(fair=True))
    names = [b"a", b"b", b"c"]
    tracemalloc.start()
    for seq in range(1, 100_001):
        share.join(seq, names[seq % 3])
        share.add(5, seq)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / 100_000 < 24  # the arrays grow a little ahead


def test_tenants_without_messages_are_forgotten_in_the_end() -> None:
    store = QueueStore({"fair": True, "tenant_rate_per_s": 1000})
    queue = store.queue
    for number in range(0, 30_000, 1000):
        names = [f"t{number + one}" for one in range(1000)]
        queue.publish([NewMessage(payload=b"x", tenant=name) for name in names])
        assert len(queue.dequeue_batch(10_000)) == 1000
        store.clock.advance(1)
    share = queue.core.main.fair
    assert share is not None
    assert len(share.dump()["tenants"]) < 21_000
    store.close()


@pytest.mark.parametrize("batch", [1, 9])
def test_an_expired_message_does_not_cost_its_tenant_a_turn(batch: int) -> None:
    store = QueueStore({"fair": True})
    queue = store.queue
    queue.enqueue(b"old", tenant="a", ttl=1)
    for tenant, number in (("a", 0), ("b", 0), ("a", 1), ("b", 1)):
        queue.enqueue(f"{tenant}{number}", tenant=tenant)
        store.clock.advance(0.1)
    store.clock.advance(2)
    leased = [one for _ in range(4) for one in queue.lease(batch)]
    assert [one.payload for one in leased] == [b"a0", b"b0", b"a1", b"b1"]
    store.close()
