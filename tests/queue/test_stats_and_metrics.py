"""Counts are kept, exact and cheap; metrics tell what this handle did."""

from random import Random

import pytest

from penstock.clock import ManualClock
from penstock.model import StorageStats
from penstock.queue import NewMessage, Queue
from tests.harness.queue_life import Life
from tests.harness.queue_machine import QueueMachine
from tests.harness.queue_store import QueueStore
from tests.queue.test_seed_defects import calls_of

STATES = ("ready", "scheduled", "leased", "parked", "dead")


@pytest.mark.parametrize("seed", range(5))
def test_kept_counts_are_those_of_a_recount(seed: int) -> None:
    machine = QueueMachine()
    Life(machine, f"counts {seed}").live(200)
    for name, kept in machine.queue.stats().groups.items():
        everything = [
            machine.queue.state(m.id, group=name) for m in machine.queue.browse(group=name)
        ]
        expired = everything.count("expired")  # counted where it waits until someone passes over it
        missing = 0
        for state in STATES:
            counted = sum(1 for _ in machine.queue.browse(state, group=name))
            assert counted == everything.count(state), (name, state)
            missing += getattr(kept, state) - counted
            assert getattr(kept, state) >= counted
        assert missing == expired


def test_stats_cost_the_same_whatever_waits() -> None:
    queue = QueueStore().queue
    for number in range(10):
        queue.enqueue_batch([NewMessage(payload=b"", priority=number, delay=d) for d in (None, 9)])
    few = calls_of(queue.stats)
    for _ in range(20):
        queue.enqueue_batch([NewMessage(payload=b"", priority=n % 10) for n in range(500)])
        queue.enqueue_batch([NewMessage(payload=b"", delay=9) for _ in range(100)])
    queue.lease(1000)
    assert calls_of(queue.stats) < 2 * few


def test_everything_published_is_accounted_for(queue: Queue, clock: ManualClock) -> None:
    random = Random(1)
    for number in range(300):
        queue.enqueue(b"", ttl=random.choice((None, 5)), max_attempts=random.choice((1, 3)))
        if number % 3 == 0 and (leased := queue.lease(2)):
            (queue.ack if random.random() < 0.5 else queue.nack)(leased)
        if number % 7 == 0 and (some := queue.peek()):
            queue.cancel(some[0].id)
        clock.advance(random.choice((0, 1)))
    stats = queue.stats()
    waiting = stats.ready + stats.scheduled + stats.leased + stats.parked + stats.dead
    assert stats.published == 300 == waiting + stats.acked + stats.expired + stats.cancelled


def test_counts_survive_restarts(store: QueueStore) -> None:
    store.queue.enqueue_batch([b"a", b"b", b"c", b"d"])
    a, b, c = store.queue.lease(3)
    store.queue.ack(a)
    store.queue.nack(b, delay=50)
    before = store.queue.stats()
    for restart in (store.kill, store.reopen, store.kill):
        after = restart().stats()
        assert after._replace(storage=StorageStats()) == before._replace(storage=StorageStats())
    assert c.payload == b"c"


def test_the_age_of_the_oldest_ready_message(queue: Queue, clock: ManualClock) -> None:
    assert queue.stats().oldest_ready_age_s == 0
    queue.enqueue(b"a")
    clock.advance(5)
    queue.enqueue(b"b", priority=9)
    clock.advance(5)
    assert queue.stats().oldest_ready_age_s == 10
    queue.dequeue_batch(2)
    assert queue.stats().oldest_ready_age_s == 0


def test_bytes_and_segments_are_those_of_the_files() -> None:
    queue = QueueStore({"segment_bytes": 1000}).queue
    for _ in range(100):
        queue.enqueue(b"x" * 74)
    stats = queue.stats()
    assert 10_000 <= stats.storage.message_log_bytes <= 11_500
    assert stats.storage.segments >= 10


def test_bytes_grow_with_every_message(queue: Queue) -> None:
    queue.enqueue(b"x")
    before = queue.stats().storage.message_log_bytes
    queue.enqueue(b"x" * 1000)
    assert queue.stats().storage.message_log_bytes >= before + 1000


def test_metrics_count_what_this_handle_did(store: QueueStore) -> None:
    queue = store.queue
    queue.enqueue_batch([b"a", b"b", b"c"])
    queue.enqueue(b"d", dedup_id="x")
    queue.enqueue(b"d", dedup_id="x")
    a, b = queue.lease(2)
    queue.ack(a)
    queue.nack(b)
    queue.dequeue()
    metrics = queue.metrics()
    expected = {"published": 4, "deduplicated": 1, "leased": 3, "acked": 2, "nacked": 1}
    assert {name: metrics[name] for name in expected} == expected
    assert store.reopen().metrics()["published"] == 0


def test_latencies_are_percentiles(queue: Queue, clock: ManualClock) -> None:
    for wait_s in range(1, 101):
        queue.enqueue(b"x", priority=5)
        clock.advance(wait_s)
        leased = queue.lease(lease_s=1000)
        clock.advance(2)
        queue.ack(leased)
    wait, work = queue.metrics()["wait_s"], queue.metrics()["work_s"]
    assert isinstance(wait, dict)
    assert isinstance(work, dict)
    assert wait["samples"] == work["samples"] == 100
    assert wait["p50"] == pytest.approx(50, rel=0.13)
    assert wait["p95"] == pytest.approx(95, rel=0.13)
    assert wait["longest"] == 100
    assert work["p99"] == pytest.approx(2, rel=0.13)
