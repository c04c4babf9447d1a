"""Messages whose time to live is over are never delivered, however many there are."""

import pytest

from penstock.clock import ManualClock
from penstock.queue import NewMessage, Queue
from penstock.queue.events import Event, EventType, decode, encode, in_parts
from tests.harness.queue_store import QueueStore


def test_a_message_expires_exactly_at_the_end_of_its_ttl(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"short", ttl=10)
    queue.enqueue(b"long", ttl=20)
    clock.advance(9.999)
    assert [m.payload for m in queue.peek(9)] == [b"short", b"long"]
    clock.advance(0.001)
    assert [m.payload for m in queue.dequeue_batch(9)] == [b"long"]
    assert queue.stats().expired == 1


def test_a_ttl_begins_when_the_message_is_due(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"later", delay=100, ttl=10)
    clock.advance(109)
    assert queue.dequeue() is not None


def test_a_ttl_of_zero_expires_at_once(queue: Queue) -> None:
    queue.enqueue(b"gone", ttl=0)
    assert queue.dequeue() is None


def test_a_queues_own_ttl_and_a_message_that_has_another() -> None:
    store = QueueStore({"default_ttl_s": 10})
    store.queue.enqueue(b"default")
    store.queue.enqueue(b"own", ttl=100)
    store.clock.advance(10)
    assert [m.payload for m in store.queue.dequeue_batch(9)] == [b"own"]


def test_a_leased_message_does_not_expire_but_is_not_delivered_again(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(b"a", ttl=10)
    queue.enqueue(b"b", ttl=10)
    a, b = queue.lease(2, lease_s=100)
    clock.advance(20)
    queue.ack(a)
    queue.nack(b, delay=0)
    assert queue.lease() == []
    assert (queue.stats().acked, queue.stats().expired) == (1, 1)


def test_an_expired_message_says_so_and_can_be_browsed(queue: Queue, clock: ManualClock) -> None:
    id_ = queue.enqueue(b"a", ttl=10)
    clock.advance(10)
    assert queue.state(id_) == "expired"
    assert queue.why(id_).code == "expired"
    assert [m.id for m in queue.browse("expired")] == [id_]


@pytest.mark.parametrize("priorities", [False, True])
def test_a_hundred_thousand_expired_in_a_row_are_passed_over_without_error(
    priorities: bool,
) -> None:
    store = QueueStore({"default_ttl_s": 1})
    queue = store.queue
    for _ in range(10):
        queue.enqueue_batch([b"old"] * 10_000)
    if priorities:
        queue.enqueue(b"old", priority=9)
    queue.enqueue(b"new", ttl=1000)
    store.clock.advance(1)
    assert [leased.payload for leased in queue.lease(5)] == [b"new"]
    assert queue.stats().expired == 100_000 + priorities
    assert queue.stats().ready == 0


def test_expired_messages_with_more_gaps_than_one_event_can_name_are_passed_over_too(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.events.MAX_RUNS", 30)
    monkeypatch.setattr("penstock.queue.core.MAX_RUNS", 30)
    pair = [NewMessage(payload=b"", ttl=1), NewMessage(payload=b"", priority=9)]
    store.queue.enqueue_batch(pair * 100)
    assert {message.priority for message in store.queue.dequeue_batch(100)} == {9}
    store.clock.advance(1)
    assert store.queue.dequeue() is None
    assert store.queue.stats().expired == 100
    assert store.kill().stats().expired == 100


def test_an_event_about_any_number_of_gaps_can_be_written() -> None:
    event = Event(EventType.EXPIRED, runs=tuple((seq, 1) for seq in range(1, 140_000, 2)))
    parts = in_parts(event)
    assert len(parts) == 2
    decoded = [decode(part.type, encode(part), timestamp_ns=0, event_seq=0) for part in parts]
    assert [seq for part in decoded for seq in part.seqs] == list(event.seqs)


def test_expired_messages_of_one_key_in_a_row_are_passed_over_in_one_call(
    queue: Queue, clock: ManualClock
) -> None:
    for _ in range(1000):
        queue.enqueue(b"old", key="a", ttl=1)
    queue.enqueue(b"new", key="a")
    clock.advance(1)
    assert [m.payload for m in queue.dequeue_batch(1)] == [b"new"]


def test_an_expired_message_is_in_no_other_state(store: QueueStore) -> None:
    ready = store.queue.enqueue(b"", ttl=5)
    first = store.queue.enqueue(b"", key="k")
    parked = store.queue.enqueue(b"", key="k", ttl=5)
    assert [m.id for m in store.queue.browse("ready")] == [ready, first]
    assert [m.id for m in store.queue.browse("parked")] == [parked]
    store.clock.advance(5)
    assert [m.id for m in store.queue.browse("ready")] == [first]
    assert not list(store.queue.browse("parked"))
    assert [m.id for m in store.queue.browse("expired")] == [ready, parked]
