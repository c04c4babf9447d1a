"""Delayed messages: never early, on time, and in nobody's way."""

import pytest

from penstock.clock import ManualClock
from penstock.queue import Queue
from tests.harness.queue_store import QueueStore

YEAR_S = 365 * 86400.0


@pytest.mark.parametrize("delay", [0.001, 1, 3600, YEAR_S, 50 * YEAR_S, 100 * YEAR_S])
def test_a_delayed_message_comes_exactly_when_it_is_due(
    queue: Queue, clock: ManualClock, delay: float
) -> None:
    queue.enqueue(b"later", delay=delay)
    clock.advance(delay - 0.001 if delay < 1e6 else delay - 1)
    assert queue.dequeue() is None
    assert queue.stats().scheduled == 1
    clock.advance(0.001 if delay < 1e6 else 1)
    assert queue.dequeue() is not None


def test_deliver_at_is_unix_time_and_in_the_past_means_now(
    queue: Queue, clock: ManualClock
) -> None:
    now = clock.now_ns() / 1e9
    id_ = queue.enqueue(b"later", deliver_at=now + 10)
    assert queue.get(id_).deliver_at == now + 10
    queue.enqueue(b"now", deliver_at=now - 10)
    queue.enqueue(b"zero delay", delay=0)
    assert [m.payload for m in queue.dequeue_batch(9)] == [b"now", b"zero delay"]
    clock.advance(10)
    assert [m.payload for m in queue.dequeue_batch(9)] == [b"later"]


def test_a_delayed_message_blocks_no_ready_one(queue: Queue) -> None:
    queue.enqueue(b"later", delay=5, priority=9)
    queue.enqueue(b"now")
    assert [m.payload for m in queue.dequeue_batch(9)] == [b"now"]


def test_delays_survive_restarts_and_kills(store: QueueStore) -> None:
    store.queue.enqueue(b"later", delay=10)
    store.reopen()
    store.clock.advance(5)
    store.kill()
    assert store.queue.dequeue() is None
    store.clock.advance(5)
    assert store.queue.dequeue() is not None


def test_what_was_due_while_the_queue_was_closed_is_ready(store: QueueStore) -> None:
    store.queue.enqueue(b"later", delay=10)
    store.close()
    store.clock.advance(60)
    assert store.queue.stats().ready == 1


def test_a_step_of_the_wall_clock_forward_is_followed(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"later", delay=3600)
    clock.jump(3600)
    assert queue.dequeue() is not None


def test_a_step_of_the_wall_clock_back_delays_nothing(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"later", delay=10)
    clock.jump(-86400)
    clock.advance(10)
    assert queue.dequeue() is not None


def test_a_wall_clock_set_back_while_closed_never_gives_an_earlier_time(store: QueueStore) -> None:
    first = store.queue.get(store.queue.enqueue(b"first"))
    store.close()
    store.clock.jump(-86400)
    second = store.queue.get(store.queue.enqueue(b"second"))
    assert second.published_ns >= first.published_ns


def test_many_delayed_messages_come_in_the_order_of_their_due_times(
    queue: Queue, clock: ManualClock
) -> None:
    delays = [(number * 7919) % 1000 + 1 for number in range(1000)]
    for delay in delays:
        queue.enqueue(b"%d" % delay, delay=delay)
    clock.advance(1000)
    found = [int(m.payload) for m in queue.dequeue_batch(1000)]
    assert found == sorted(delays)


def test_a_delayed_message_that_was_released_or_failed_comes_again(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(b"later", delay=1)
    clock.advance(1)
    queue.release(queue.lease())
    (leased,) = queue.lease()
    assert leased.attempt == 1
    queue.nack(leased, delay=0)
    assert queue.lease()[0].attempt == 2
