"""Bounded queues and rate limits: refuse, wait, or drop the oldest, and nothing in between."""

from threading import Thread

import pytest

from penstock.errors import InvalidInput, QueueFull, RateLimited
from penstock.queue import NewMessage, Queue
from tests.harness.queue_clock import SteppedClock
from tests.harness.queue_store import QueueStore


def fill(queue: Queue) -> None:
    for _ in range(100):
        queue.enqueue(b"x" * 100)


def waiting(queue: Queue) -> list[bytes]:
    return [message.payload for message in queue.browse()]


def test_a_full_queue_refuses_and_takes_again_when_there_is_room() -> None:
    queue = QueueStore({"max_messages": 2}).queue
    queue.enqueue_batch([b"a", b"b"])
    with pytest.raises(QueueFull, match="full"):
        queue.enqueue(b"c")
    with pytest.raises(QueueFull):
        queue.enqueue_batch([b"c"])
    queue.dequeue()
    queue.enqueue(b"c")
    assert waiting(queue) == [b"b", b"c"]


def test_a_batch_that_does_not_fit_is_refused_whole() -> None:
    queue = QueueStore({"max_messages": 3}).queue
    queue.enqueue(b"a")
    with pytest.raises(QueueFull):
        queue.enqueue_batch([b"b", b"c", b"d"])
    assert waiting(queue) == [b"a"]


def test_everything_undelivered_counts_leased_scheduled_and_parked() -> None:
    queue = QueueStore({"max_messages": 3}).queue
    queue.enqueue(b"a", key="k")
    queue.enqueue(b"b", key="k")
    queue.enqueue(b"c", delay=60)
    queue.lease()
    with pytest.raises(QueueFull):
        queue.enqueue(b"d")


def test_the_slowest_group_decides() -> None:
    queue = QueueStore({"max_messages": 2}).queue
    queue.groups.create("slow")
    queue.enqueue_batch([b"a", b"b"])
    queue.dequeue_batch(2)
    with pytest.raises(QueueFull):
        queue.enqueue(b"c")


def test_duplicates_need_no_room() -> None:
    queue = QueueStore({"max_messages": 1}).queue
    first = queue.enqueue(b"a", dedup_id="x")
    assert queue.enqueue(b"a", dedup_id="x") == first


def test_the_bound_holds_after_a_restart() -> None:
    store = QueueStore({"max_messages": 2})
    store.queue.enqueue_batch([b"a", b"b"])
    with pytest.raises(QueueFull):
        store.kill().enqueue(b"c")


def test_dropping_the_oldest_makes_room() -> None:
    store = QueueStore({"max_messages": 3, "when_full": "drop_oldest"})
    for number in range(6):
        store.queue.enqueue(b"%d" % number)
    store.queue.enqueue_batch([b"6", b"7"])
    assert waiting(store.queue) == [b"5", b"6", b"7"]
    assert store.queue.metrics()["dropped"] == 5
    assert waiting(store.kill()) == [b"5", b"6", b"7"]


def test_dropping_takes_only_what_waits() -> None:
    queue = QueueStore({"max_messages": 2, "when_full": "drop_oldest"}).queue
    queue.enqueue_batch([b"leased", b"waits"])
    queue.lease()
    queue.enqueue(b"new")
    assert waiting(queue) == [b"leased", b"new"]


def test_what_waits_again_is_dropped_by_its_age() -> None:
    queue = QueueStore({"max_messages": 3, "when_full": "drop_oldest"}).queue
    for name in ("a", "b", "c"):
        queue.enqueue(name, key=name)
    held = queue.lease()
    queue.enqueue("d", key="d")
    assert waiting(queue) == [b"a", b"c", b"d"]
    queue.nack(held, delay=0)
    queue.enqueue("e", key="d")
    assert waiting(queue) == [b"c", b"d", b"e"]


def test_each_group_drops_for_itself() -> None:
    queue = QueueStore({"max_messages": 2, "when_full": "drop_oldest"}).queue
    queue.groups.create("slow")
    queue.enqueue_batch([b"a", b"b"])
    (held, _) = queue.lease(2)
    queue.ack(held)
    queue.enqueue(b"c")
    assert [m.payload for m in queue.browse()] == [b"b", b"c"]
    assert [m.payload for m in queue.browse(group="slow")] == [b"b", b"c"]


def test_what_can_never_fit_is_refused_and_drops_nothing() -> None:
    queue = QueueStore({"max_messages": 3, "when_full": "drop_oldest"}).queue
    queue.enqueue_batch([b"a", b"b"])
    with pytest.raises(QueueFull):
        queue.enqueue_batch([b"x"] * 4)
    queue.lease(1)
    with pytest.raises(QueueFull):
        queue.enqueue_batch([b"x"] * 3)
    assert waiting(queue) == [b"a", b"b"]


def test_max_bytes_bounds_the_log() -> None:
    queue = QueueStore({"max_bytes": 5000}).queue
    with pytest.raises(QueueFull):
        fill(queue)
    assert queue.stats().storage.message_log_bytes <= 5000
    assert 30 < queue.stats().ready < 50


def test_a_queue_full_by_bytes_takes_again_after_consuming_and_compacting() -> None:
    queue = QueueStore({"max_bytes": 5000, "segment_bytes": 1024}).queue
    for _ in range(3):
        with pytest.raises(QueueFull):
            fill(queue)
        queue.dequeue_batch(1000)
        queue.compact()
        queue.enqueue(b"x")


def test_a_queue_full_by_bytes_does_not_drop_what_would_free_nothing() -> None:
    queue = QueueStore({"max_bytes": 2000, "when_full": "drop_oldest"}).queue
    with pytest.raises(QueueFull):
        fill(queue)
    assert queue.stats().ready > 10


# -- waiting for room --------------------------------------------------------------------------


def blocked(queue: Queue, clock: SteppedClock, **options: object) -> "tuple[Thread, list[object]]":
    """A thread that publishes and has to wait, and what it was answered."""
    answers: list[object] = []

    def publish() -> None:
        try:
            answers.append(queue.publish([NewMessage(payload=b"late", **options)])[0])  # type: ignore[arg-type]
        except QueueFull as error:
            answers.append(error)

    waits = clock.waits
    thread = Thread(target=publish)
    thread.start()
    clock.until_waiting(waits + 1)
    return thread, answers


def test_a_blocked_publisher_goes_on_when_there_is_room() -> None:
    clock = SteppedClock()
    queue = QueueStore({"max_messages": 1, "when_full": "block"}, clock=clock).queue
    queue.enqueue(b"early")
    thread, answers = blocked(queue, clock)
    assert answers == []
    queue.ack(queue.lease())
    thread.join()
    assert waiting(queue) == [b"late"]


def test_a_publisher_that_waits_for_bytes_goes_on_after_a_compaction() -> None:
    clock = SteppedClock()
    settings = {"max_bytes": 5000, "segment_bytes": 1024, "when_full": "reject"}
    store = QueueStore(settings, clock=clock)
    with pytest.raises(QueueFull):
        fill(store.queue)
    with pytest.raises(QueueFull):
        while True:
            store.queue.enqueue(b"late")
    queue = store.reopen(when_full="block")
    queue.dequeue_batch(1000)
    thread, answers = blocked(queue, clock)
    queue.compact()
    thread.join()
    assert not isinstance(answers[0], QueueFull)


def test_a_blocked_publisher_gives_up_in_the_end() -> None:
    clock = SteppedClock()
    queue = QueueStore({"max_messages": 1, "when_full": "block", "block_s": 5}, clock=clock).queue
    queue.enqueue(b"early")
    thread, answers = blocked(queue, clock)
    clock.advance(4.9)
    clock.advance(0.1)
    thread.join()
    assert isinstance(answers[0], QueueFull)
    assert waiting(queue) == [b"early"]


def test_two_blocked_publishers_of_one_dedup_id_publish_it_once() -> None:
    clock = SteppedClock()
    queue = QueueStore({"max_messages": 2, "when_full": "block"}, clock=clock).queue
    queue.enqueue_batch([b"a", b"b"])
    one, first = blocked(queue, clock, dedup_id="x")
    other, second = blocked(queue, clock, dedup_id="x")
    queue.dequeue_batch(2)
    one.join()
    other.join()
    assert waiting(queue) == [b"late"]
    assert sorted(answer.duplicate for answer in (first[0], second[0])) == [False, True]  # type: ignore[attr-defined]


# -- rate ------------------------------------------------------------------------------------------


def test_a_rate_limit_lets_a_burst_through_and_then_so_many_a_second() -> None:
    store = QueueStore({"rate_per_s": 10, "rate_burst": 3})
    for _ in range(3):
        store.queue.enqueue(b"")
    with pytest.raises(RateLimited) as refused:
        store.queue.enqueue(b"")
    assert refused.value.retry_after_s == pytest.approx(0.1)
    store.clock.advance(0.1)
    store.queue.enqueue(b"")
    with pytest.raises(RateLimited):
        store.queue.enqueue_batch([b""] * 2)
    store.clock.advance(100)
    store.queue.enqueue_batch([b""] * 3)
    assert store.queue.stats().published == 7


def test_a_refused_publish_spends_no_tokens() -> None:
    store = QueueStore({"rate_per_s": 1, "rate_burst": 2, "max_messages": 1})
    store.queue.enqueue(b"a")
    for _ in range(5):
        with pytest.raises(QueueFull):
            store.queue.enqueue(b"b")
    store.queue.dequeue()
    store.queue.enqueue(b"b")


def test_a_batch_above_the_burst_can_never_pass_and_says_so() -> None:
    queue = QueueStore({"rate_per_s": 10}).queue
    with pytest.raises((RateLimited, InvalidInput)):
        queue.enqueue_batch([b""] * 11)
    assert queue.stats().published == 0
