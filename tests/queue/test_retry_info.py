"""How often a message was tried, and when it is tried next."""

import pytest

from penstock.clock import ManualClock
from penstock.errors import NoSuchMessage
from penstock.queue import Queue
from tests.harness.queue_store import QueueStore


def test_a_message_that_was_never_delivered(queue: Queue) -> None:
    id_ = queue.enqueue(b"x", max_attempts=7)
    info = queue.retry_info(id_)
    assert (info.state, info.attempts, info.max_attempts, info.reason) == ("ready", 0, 7, "")
    assert (info.next_attempt_at, info.first_failure_at) == (None, None)


def test_each_attempt_until_death(store: QueueStore, clock: ManualClock) -> None:
    queue = store.open(max_attempts=3, backoff_jitter=0)
    id_ = queue.enqueue(b"x")
    began = clock.now_ns() / 1e9
    for attempt, pause_s in ((1, 0.1), (2, 0.2)):
        leased = queue.lease()
        assert queue.retry_info(id_).attempts == attempt
        assert queue.retry_info(id_).state == "leased"
        queue.nack(leased, f"failure {attempt}")
        info = store.reopen().retry_info(id_)
        queue = store.queue
        assert (info.state, info.attempts, info.reason) == (
            "scheduled",
            attempt,
            f"failure {attempt}",
        )
        assert info.next_attempt_at == pytest.approx(clock.now_ns() / 1e9 + pause_s)
        assert info.first_failure_at == pytest.approx(began)
        clock.advance(pause_s)
        assert queue.retry_info(id_).next_attempt_at is None
    queue.nack(queue.lease(), "for good")
    info = queue.retry_info(id_)
    assert (info.state, info.attempts, info.max_attempts) == ("dead", 3, 3)
    assert info.reason == "for good"
    queue.redrive()
    assert queue.retry_info(id_).attempts == 0


def test_a_message_that_is_done_is_told_from_the_log(queue: Queue, clock: ManualClock) -> None:
    id_ = queue.enqueue(b"x")
    queue.nack(queue.lease(), "once")
    clock.advance(1)
    queue.ack(queue.lease())
    info = queue.retry_info(id_)
    assert (info.state, info.attempts, info.reason) == ("done", 2, "once")
    assert info.first_failure_at == info.last_failure_at != 0


def test_a_lease_that_ran_out_is_a_failure(queue: Queue, clock: ManualClock) -> None:
    id_ = queue.enqueue(b"x")
    queue.lease(lease_s=5)
    clock.advance(6)
    queue.stats()
    assert queue.retry_info(id_).reason == "lease ran out"


def test_it_is_of_one_group(queue: Queue) -> None:
    queue.groups.create("audit")
    id_ = queue.enqueue(b"x")
    queue.lease(group="audit")
    assert queue.retry_info(id_).attempts == 0
    assert queue.retry_info(id_, group="audit").attempts == 1


def test_an_id_of_another_queue_is_refused(queue: Queue) -> None:
    other = QueueStore()
    id_ = other.queue.enqueue(b"x")
    with pytest.raises(NoSuchMessage):
        queue.retry_info(id_)
    other.close()
