"""Leases: one holder until a deadline, then another; more time on request; back untouched."""

from collections.abc import Callable

import pytest

from penstock.clock import ManualClock
from penstock.errors import ReceiptInvalid
from penstock.queue import Queue
from tests.harness.queue_store import QueueStore


def test_a_leased_message_is_given_to_nobody_else(queue: Queue) -> None:
    queue.enqueue_batch([b"a", b"b"])
    (a,) = queue.lease()
    (b,) = queue.lease()
    assert (a.payload, b.payload) == (b"a", b"b")
    assert queue.lease() == []
    assert queue.stats().leased == 2


def test_a_lease_says_what_it_is(queue: Queue, clock: ManualClock) -> None:
    id_ = queue.enqueue(b"a", headers={"k": "v"}, key="key", priority=7)
    (leased,) = queue.lease(lease_s=10)
    assert leased.message == queue.get(id_)
    assert (leased.id, leased.attempt, leased.group) == (id_, 1, "main")
    assert leased.deadline == clock.now_ns() / 1e9 + 10
    assert (leased.headers, leased.key, leased.priority) == ({"k": "v"}, "key", 7)


def test_an_unsettled_message_comes_again_after_its_deadline_and_backoff(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(b"a")
    queue.lease(lease_s=5)
    clock.advance(4.999)
    assert queue.stats().leased == 1
    clock.advance(0.001)
    assert queue.stats().leased == 0
    assert queue.lease() == []  # backing off
    clock.advance(0.2)
    assert queue.lease()[0].attempt == 2
    assert queue.stats().timed_out == 1


def test_a_lease_lasts_as_long_as_it_says_whatever_the_wall_clock_does(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(b"a")
    queue.lease(lease_s=10)
    clock.jump(3600)
    assert queue.stats().leased == 1
    clock.jump(-7200)
    clock.advance(10)
    assert queue.stats().leased == 0


def test_the_queues_own_lease_length_is_the_default() -> None:
    store = QueueStore({"lease_s": 2})
    store.queue.enqueue(b"a")
    store.queue.lease()
    store.clock.advance(2)
    assert store.queue.stats().timed_out == 1


def test_extending_gives_more_time_from_now(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_batch([b"a", b"b"])
    a, b = queue.lease(2, lease_s=10)
    clock.advance(8)
    queue.extend(a, 10)
    clock.advance(8)
    queue.stats()
    assert (queue.state(a.id), queue.state(b.id)) == ("leased", "scheduled")
    clock.advance(2)
    queue.stats()
    assert queue.state(a.id) != "leased"


def test_extending_may_shorten(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"a")
    queue.extend(queue.lease(lease_s=100), 1)
    clock.advance(1)
    assert queue.stats().timed_out == 1


def test_an_extended_lease_is_settled_by_the_same_receipt(queue: Queue) -> None:
    queue.enqueue(b"a")
    (leased,) = queue.lease()
    queue.extend(leased.receipt, 100)
    queue.extend(leased, 200)
    queue.ack(leased.receipt)
    assert queue.stats().acked == 1


def test_releasing_spends_no_attempt_and_is_immediate(queue: Queue) -> None:
    queue.enqueue(b"a", max_attempts=1)
    for _ in range(5):
        (leased,) = queue.lease()
        assert leased.attempt == 1
        queue.release(leased)
    assert queue.stats().dead == 0


def test_releasing_a_retried_message_leaves_its_attempts(queue: Queue) -> None:
    queue.enqueue(b"a")
    queue.nack(queue.lease(), delay=0)
    for _ in range(3):
        (leased,) = queue.lease()
        assert leased.attempt == 2
        queue.release(leased)


def test_a_released_message_is_not_settled_by_its_old_receipt(queue: Queue) -> None:
    queue.enqueue(b"a")
    (leased,) = queue.lease()
    queue.release(leased)
    for settle in (queue.ack, queue.nack, queue.release):
        with pytest.raises(ReceiptInvalid):
            settle(leased)


def test_leases_outlive_a_restart_but_not_their_deadline(store: QueueStore) -> None:
    store.queue.enqueue(b"a")
    store.queue.lease(lease_s=10)
    store.clock.advance(4)
    store.kill()
    assert store.queue.stats().leased == 1
    store.clock.advance(5.9)
    assert store.queue.stats().leased == 1
    store.clock.advance(0.1)
    assert store.queue.stats().leased == 0


def test_a_lease_is_never_longer_after_a_restart_than_it_was_given_for(store: QueueStore) -> None:
    """Even if the wall clock was set back meanwhile."""
    store.queue.enqueue(b"a")
    store.queue.lease(lease_s=10)
    store.close()
    store.clock.jump(-86400)
    store.open()
    store.clock.advance(10)
    assert store.queue.stats().leased == 0


def test_a_lease_that_ended_while_the_queue_was_closed_is_over(store: QueueStore) -> None:
    store.queue.enqueue(b"a")
    store.queue.lease(lease_s=10)
    store.close()
    store.clock.advance(100)
    assert store.queue.stats().timed_out == 1


def test_the_block_form_acks_on_success_and_nacks_on_error(queue: Queue) -> None:
    _, bad = queue.enqueue_batch([b"good", b"bad"])
    with queue.lease_one() as job:
        assert job is not None
    with pytest.raises(RuntimeError, match="no good"), queue.lease_one():
        raise RuntimeError("no good")
    stats = queue.stats()
    assert (stats.acked, stats.nacked) == (1, 1)
    assert queue.history(bad)[-1].reason == "RuntimeError: no good"


def test_many_settle_together_or_not_at_all(queue: Queue) -> None:
    queue.enqueue_batch([b"a", b"b", b"c"])
    a, b, c = queue.lease(3)
    queue.ack(b)
    with pytest.raises(ReceiptInvalid):
        queue.ack([a, b, c])
    with pytest.raises(ReceiptInvalid):
        queue.nack([a.receipt, b.receipt])
    assert queue.stats().leased == 2
    queue.ack([a, c.receipt])
    assert queue.stats().acked == 3


def test_leases_of_one_call_can_be_settled_one_by_one(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_batch([b"%d" % number for number in range(5)])
    leased = queue.lease(5, lease_s=10)
    queue.ack(leased[0])
    queue.nack(leased[1])
    queue.extend(leased[2], 100)
    queue.release(leased[3])
    clock.advance(10)
    stats = queue.stats()
    assert (stats.acked, stats.nacked, stats.timed_out, stats.leased) == (1, 1, 1, 1)


def test_a_message_is_not_leased_after_the_end_of_its_lease_whoever_looks_first() -> None:
    looks: list[Callable[[Queue, str], str]] = [
        lambda queue, id_: queue.state(id_),
        lambda queue, id_: queue.why(id_).state,
        lambda queue, id_: queue.retry_info(id_).state,
    ]
    for look in looks:
        clock = ManualClock()
        queue = QueueStore(clock=clock).queue
        id_ = queue.enqueue(b"a")
        queue.lease(lease_s=1)
        assert look(queue, id_) == "leased"
        clock.advance(1.001)
        assert look(queue, id_) == "scheduled"  # backs off
        clock.advance(10)
        assert look(queue, id_) == "ready"
        assert queue.stats().timed_out == 1
