"""Higher priorities first; within one by due time, then seq; ageing keeps the low ones moving."""

from penstock.clock import ManualClock
from penstock.queue import Queue
from tests.harness.queue_store import QueueStore


def order(queue: Queue) -> list[bytes]:
    return [message.payload for message in queue.dequeue_batch(1000)]


def test_higher_priorities_come_first(queue: Queue) -> None:
    for priority in (3, 9, 0, 5, 9, 0):
        queue.enqueue(b"%d" % priority, priority=priority)
    assert order(queue) == [b"9", b"9", b"5", b"3", b"0", b"0"]


def test_five_is_the_default_and_the_queue_may_have_another(queue: Queue) -> None:
    queue.enqueue(b"default")
    queue.enqueue(b"higher", priority=6)
    queue.enqueue(b"lower", priority=4)
    assert order(queue) == [b"higher", b"default", b"lower"]
    other = QueueStore({"default_priority": 1}).queue
    other.enqueue(b"default")
    other.enqueue(b"higher", priority=2)
    assert order(other) == [b"higher", b"default"]
    assert other.get(other.enqueue(b"")).priority == 1


def test_within_a_priority_the_earlier_due_comes_first(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"third", delay=3)
    queue.enqueue(b"second", delay=2)
    clock.advance(1)
    queue.enqueue(b"first")
    clock.advance(5)
    queue.enqueue(b"fourth")
    assert order(queue) == [b"first", b"second", b"third", b"fourth"]


def test_a_message_that_waited_a_level_long_counts_as_one_higher(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(b"old low", priority=5)
    clock.advance(59)
    queue.enqueue(b"new high", priority=6)
    assert [m.payload for m in queue.peek(2)] == [b"new high", b"old low"]
    clock.advance(1)  # a minute: now both are level 6, and the older goes first
    assert [m.payload for m in queue.peek(2)] == [b"old low", b"new high"]
    assert order(queue) == [b"old low", b"new high"]


def test_ageing_lets_even_the_lowest_through_a_stream_of_higher_ones(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(b"low", priority=0)
    waited_s = 0
    while True:
        queue.enqueue(b"high", priority=9)
        (message,) = queue.dequeue_batch(1)
        if message.payload == b"low":
            break
        clock.advance(10)
        waited_s += 10
    assert waited_s == 9 * 60


def test_a_delay_is_not_waiting(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"delayed low", priority=0, delay=3600)
    clock.advance(3600)
    queue.enqueue(b"high", priority=1)
    assert order(queue) == [b"high", b"delayed low"]


def test_without_ageing_priorities_are_strict() -> None:
    store = QueueStore({"starvation_after_s": 0})
    store.queue.enqueue(b"low", priority=0)
    store.clock.advance(1e6)
    store.queue.enqueue(b"high", priority=1)
    assert order(store.queue) == [b"high", b"low"]


def test_the_level_is_settable_and_the_order_survives_a_restart() -> None:
    store = QueueStore({"starvation_after_s": 1})
    store.queue.enqueue(b"low", priority=0)
    store.clock.advance(9)
    store.queue.enqueue(b"high", priority=8)
    assert [m.payload for m in store.reopen().peek(2)] == [b"low", b"high"]


def test_looking_ahead_shows_the_order_of_delivery(queue: Queue, clock: ManualClock) -> None:
    for number in range(40):
        queue.enqueue(b"%d" % number, priority=number * 7 % 10, delay=number % 3 or None)
        clock.advance(11)
    peeked = [message.payload for message in queue.peek(40)]
    assert peeked == order(queue)
    assert len(peeked) == 40
