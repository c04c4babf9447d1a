"""Dead letters: a state of the message, with its reason; browsed, leased, redriven, discarded."""

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NoSuchMessage
from penstock.queue import Queue
from tests.harness.queue_store import QueueStore


def kill(queue: Queue, payload: bytes, reason: str = "it failed") -> str:
    """A dead letter; its id."""
    id_ = queue.enqueue(payload, max_attempts=1, priority=9)
    queue.nack(queue.lease(), reason)
    return id_


def test_a_dead_letter_keeps_its_id_and_bytes_and_says_why(
    queue: Queue, clock: ManualClock
) -> None:
    id_ = queue.enqueue(b"a", headers={"own": "header"}, max_attempts=2)
    queue.nack(queue.lease(), "first", delay=0)
    first_ns = clock.now_ns()
    clock.advance(5)
    queue.nack(queue.lease(), "second")
    (letter,) = queue.dead()
    assert (letter.id, letter.payload) == (id_, b"a")
    assert (letter.attempts, letter.reason, letter.cause) == (2, "second", "nack")
    assert (letter.first_failure_ns, letter.last_failure_ns) == (first_ns, clock.now_ns())
    assert letter.headers == {
        "own": "header",
        "dlq.original_msg_id": id_,
        "dlq.retry_count": "2",
        "dlq.failure_reason": "second",
        "dlq.last_failure": str(clock.now_ns() / 1e9),
    }
    assert dict(queue.get(id_).headers) == {"own": "header"}
    assert queue.state(id_) == "dead"


def test_dead_letters_are_not_delivered_and_come_oldest_death_first(queue: Queue) -> None:
    queue.enqueue(b"late", max_attempts=1)
    (late,) = queue.lease()
    kill(queue, b"early")
    queue.nack(late)
    assert [letter.payload for letter in queue.dead()] == [b"early", b"late"]
    assert queue.lease() == []
    assert [m.payload for m in queue.browse("dead")] == [b"late", b"early"]  # in seq order


def test_redriving_one_makes_it_ready_with_all_its_attempts(queue: Queue) -> None:
    a, b = kill(queue, b"a"), kill(queue, b"b")
    assert queue.redrive(a) == 1
    (leased,) = queue.lease()
    assert (leased.id, leased.attempt) == (a, 1)
    queue.nack(leased, "again")
    assert {letter.id for letter in queue.dead()} == {a, b}
    assert queue.stats().redriven == 1


def test_redriving_by_reason_time_and_limit(queue: Queue, clock: ManualClock) -> None:
    for number in range(6):
        kill(queue, b"%d" % number, "timeout of the bank" if number % 2 else "bad input")
        clock.advance(10)
    start = 1_700_000_000.0
    assert queue.redrive(reason="bank", since=start + 25) == 2  # 3 and 5
    assert queue.redrive(until=start + 5) == 1  # 0
    assert queue.redrive(limit=1) == 1  # 1
    assert queue.redrive(limit=0) == 0
    assert [letter.payload for letter in queue.dead()] == [b"2", b"4"]
    assert queue.redrive() == 2
    assert queue.redrive() == 0
    assert sorted(m.payload for m in queue.dequeue_batch(9)) == [b"%d" % n for n in range(6)]


def test_naming_what_is_not_dead_changes_nothing(queue: Queue) -> None:
    dead, alive = kill(queue, b"dead"), queue.enqueue(b"alive")
    for settle in (queue.redrive, queue.discard):
        with pytest.raises(NoSuchMessage):
            settle([dead, alive])
        with pytest.raises(InvalidInput):
            settle("not an id")
    assert queue.stats().dead == 1


def test_naming_one_twice_counts_it_once(queue: Queue) -> None:
    id_ = kill(queue, b"a")
    assert queue.redrive([id_, id_]) == 1


@pytest.mark.parametrize("limit", [-1, 1.5, "1", True])
def test_a_limit_that_is_none_is_refused(queue: Queue, limit: int) -> None:
    kill(queue, b"a"), kill(queue, b"b")
    with pytest.raises(InvalidInput):
        queue.redrive(limit=limit)
    assert queue.stats().dead == 2


def test_discarding_is_for_good(store: QueueStore) -> None:
    a = kill(store.queue, b"a")
    kill(store.queue, b"b", "other")
    assert store.queue.discard(a) == 1
    assert store.queue.discard(reason="other") == 1
    assert store.kill().stats().dead == 0
    assert store.queue.state(a) == "done"
    assert store.queue.why(a).details["last_event"] == "discarded"


def test_dead_letters_go_after_their_retention() -> None:
    store = QueueStore({"dead_retention_s": 60})
    kill(store.queue, b"old")
    store.clock.advance(30)
    kill(store.queue, b"young")
    store.clock.advance(30)
    assert [letter.payload for letter in store.queue.dead()] == [b"young"]
    store.reopen()
    store.clock.advance(30)
    assert store.queue.stats().dead == 0


def test_a_late_released_dead_letter_does_not_outlive_its_retention_for_ever() -> None:
    store = QueueStore({"dead_retention_s": 60})
    kill(store.queue, b"old")
    (leased,) = store.queue.lease_dead()
    store.clock.advance(10)
    kill(store.queue, b"young")
    store.queue.release(leased)
    store.clock.advance(60)
    assert store.queue.stats().dead == 0


def test_dead_letters_can_be_leased_and_acked(queue: Queue) -> None:
    id_ = kill(queue, b"a")
    (leased,) = queue.lease_dead()
    assert (leased.id, leased.payload) == (id_, b"a")
    assert leased.headers["dlq.failure_reason"] == "it failed"
    assert queue.stats().dead == 0
    queue.ack(leased)
    assert queue.lease_dead() == []
    assert queue.state(id_) == "done"


@pytest.mark.parametrize("how", ["nack", "release", "timeout"])
def test_a_leased_dead_letter_that_is_not_acked_stays_dead(store: QueueStore, how: str) -> None:
    kill(store.queue, b"a")
    (leased,) = store.queue.lease_dead(lease_s=5)
    if how == "nack":
        store.queue.nack(leased, "still bad")
    elif how == "release":
        store.queue.release(leased)
    store.clock.advance(5)
    assert store.queue.stats().dead == 1
    assert store.kill().lease() == []
    assert store.queue.redrive() == 1


def test_a_dead_letter_of_a_key_lets_the_next_one_go(queue: Queue) -> None:
    queue.enqueue(b"first", key="k", max_attempts=1)
    queue.enqueue(b"second", key="k")
    queue.nack(queue.lease())
    assert queue.lease()[0].payload == b"second"


def test_dead_letters_survive_everything(store: QueueStore) -> None:
    kill(store.queue, b"a", "reason")
    for _ in range(2):
        before = list(store.queue.dead())
        assert list(store.reopen().dead()) == before
        assert list(store.kill().dead()) == before
    store.queue.purge()
    store.queue.compact()
    assert list(store.queue.dead()) == before
