"""Dead letters are bounded by count and by size: the oldest go, on record."""

from random import Random

import pytest

from penstock.clock import ManualClock
from penstock.queue import Queue
from tests.harness.queue_store import QueueStore


def die(queue: Queue, payload: bytes) -> str:
    id_ = queue.enqueue(payload, priority=9)
    (job,) = queue.lease()
    queue.nack(job, "no")
    return id_


def dead(queue: Queue, group: str = "main") -> list[str]:
    return [letter.id for letter in queue.dead(group=group)]


def test_the_oldest_beyond_the_count_are_discarded_on_record(store: QueueStore) -> None:
    queue = store.open(dead_max_messages=3, max_attempts=1)
    ids = [die(queue, b"%d" % number) for number in range(5)]
    assert dead(queue) == ids[2:]
    stats = queue.stats()
    assert (stats.dead, stats.dead_lettered, stats.discarded) == (3, 5, 2)
    last = queue.history(ids[0])[-1]
    assert (last.event, last.reason) == ("discarded", "beyond dead_max_messages")
    assert store.reopen().stats().discarded == 2
    assert dead(store.queue) == ids[2:]


def test_the_oldest_beyond_the_size_are_discarded(store: QueueStore) -> None:
    queue = store.open(dead_max_bytes=4000, max_attempts=1)
    ids = [die(queue, bytes(1000)) for _ in range(6)]
    assert dead(queue) == ids[3:]  # each has a head of its own
    assert queue.history(ids[0])[-1].reason == "beyond dead_max_bytes"
    large = die(queue, bytes(5000))
    assert dead(queue) == []  # it alone is beyond
    assert queue.state(large) == "done"


def test_a_bound_that_is_set_later_holds_for_what_is_there(store: QueueStore) -> None:
    queue = store.open(max_attempts=1)
    ids = [die(queue, bytes(1000)) for _ in range(6)]
    assert dead(store.reopen(dead_max_messages=4)) == ids[2:]
    assert dead(store.reopen(dead_max_bytes=2500)) == ids[4:]


def test_leases_that_run_out_are_bounded_as_well(store: QueueStore, clock: ManualClock) -> None:
    queue = store.open(dead_max_messages=2, max_attempts=1)
    ids = queue.enqueue_batch([b"1", b"2", b"3"])
    queue.lease(3, lease_s=5)
    clock.advance(6)
    assert queue.stats().dead == 2
    assert dead(queue) == ids[1:]


def test_age_is_on_record_too(store: QueueStore, clock: ManualClock) -> None:
    queue = store.open(dead_retention_s=60, max_attempts=1)
    id_ = die(queue, b"old")
    clock.advance(61)
    assert (queue.stats().dead, queue.stats().discarded) == (0, 1)
    assert queue.history(id_)[-1].reason == "older than dead_retention_s"


@pytest.mark.parametrize("seed", range(20))
def test_bounds_and_counts_hold_whatever_happens(seed: int) -> None:
    """The oracle: the newest deaths that fit; and of each count, what the flights say."""
    dice = Random(seed)
    settings = {"dead_max_messages": 4, "dead_max_bytes": 1500, "max_attempts": 2}
    store = QueueStore(settings)
    store.queue.groups.create("audit")
    for _ in range(120):
        queue = store.queue
        group = dice.choice(["main", "audit"])
        match dice.randrange(10):
            case 0 | 1 | 2:
                key = dice.choice([None, None, "k"])
                queue.enqueue(bytes(dice.randrange(1, 400)), key=key)
            case 3 | 4 | 5:
                for job in queue.lease(2, group=group):
                    queue.nack(job, "no", delay=0)
            case 6:
                held = queue.lease_dead(1, group=group)
                if held and dice.random() < 0.5:
                    queue.release(held)
            case 7:
                queue.redrive(limit=1, group=group)
            case 8:
                store.clock.advance(dice.choice([1, 31]))
                queue.stats()
            case 9:
                if dice.random() < 0.3:
                    queue.seek(dice.choice(["beginning", "end"]), group=group)
                else:
                    store.kill() if dice.random() < 0.5 else store.reopen()
        for one in store.queue.core.state.groups.values():
            letters = [f for f in one.deliveries.values() if f.is_retried]
            assert one.retrying == len(letters)
            assert len(one.dead) <= 4
            assert one.dead_bytes == sum(f.size_bytes for f in one.dead.values()) <= 1500
            assert all(flight.size_bytes for flight in one.dead.values())
    store.close()
