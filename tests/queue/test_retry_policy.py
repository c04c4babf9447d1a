"""A retry policy of the user's decides when a failed message is tried again."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock import FailedAttempt
from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.ledger.memory_files import MemoryFiles
from penstock.queue.queue import Queue, open_queue
from tests.harness.queue_store import QUIET


class Policy:
    def __init__(self, answer: Callable[[FailedAttempt], Any]) -> None:
        self.answer = answer
        self.asked: list[FailedAttempt] = []

    def delay_s(self, failed: FailedAttempt) -> float | None:
        self.asked.append(failed)
        return self.answer(failed)  # type: ignore[no-any-return]


def opened(policy: object, clock: ManualClock) -> Queue:
    settings = {**QUIET, "backoff_jitter": 0.0, "backoff_base_s": 7.0}
    return open_queue("/q", settings, files=MemoryFiles(), clock=clock, retry_policy=policy)  # type: ignore[arg-type]


def due_s(queue: Queue, clock: ManualClock, id_: str) -> float:
    info = queue.retry_info(id_)
    return round((info.next_attempt_ns - clock.now_ns()) / 1e9, 3)


def test_it_decides_the_delay_after_a_nack_and_after_a_timeout() -> None:
    clock, policy = ManualClock(), Policy(lambda failed: 10.0 * failed.attempt)
    queue = opened(policy, clock)
    id_ = queue.enqueue(b"x")
    queue.nack(queue.lease(), "first")
    assert due_s(queue, clock, id_) == 10
    clock.advance(10)
    queue.lease(lease_s=5)
    clock.advance(5)
    queue.stats()
    assert due_s(queue, clock, id_) == 20
    assert policy.asked == [
        FailedAttempt(1, "main", 1, 5, "first", timed_out=False),
        FailedAttempt(1, "main", 2, 5, "lease ran out", timed_out=True),
    ]


def test_none_makes_a_dead_letter() -> None:
    queue = opened(Policy(lambda failed: None), ManualClock())
    id_ = queue.enqueue(b"x")
    queue.nack(queue.lease(), "no")
    assert queue.why(id_).state == "dead"


def test_it_is_not_asked_if_a_delay_is_given_or_no_attempt_is_left() -> None:
    clock, policy = ManualClock(), Policy(lambda failed: 0.0)
    queue = opened(policy, clock)
    id_ = queue.enqueue(b"x", max_attempts=2)
    queue.nack(queue.lease(), "no", delay=3)
    assert due_s(queue, clock, id_) == 3
    clock.advance(3)
    queue.nack(queue.lease(), "no")
    assert queue.why(id_).state == "dead"
    assert policy.asked == []


@pytest.mark.parametrize("answer", [-1.0, float("nan"), float("inf"), 1e12, "soon", [], 1 / 3j])
def test_a_wrong_answer_is_logged_and_the_backoff_is_used(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    queue = opened(Policy(lambda failed: answer), clock)
    id_ = queue.enqueue(b"x")
    with caplog.at_level(logging.WARNING):
        queue.nack(queue.lease(), "no")
    assert due_s(queue, clock, id_) == 7
    assert "retry policy" in caplog.text


def test_an_exception_of_it_is_logged_and_the_backoff_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    queue = opened(Policy(lambda failed: 1 // 0), clock)
    id_ = queue.enqueue(b"x")
    with caplog.at_level(logging.ERROR):
        queue.nack(queue.lease(), "no")
    assert due_s(queue, clock, id_) == 7
    assert "ZeroDivisionError" in caplog.text


def test_an_object_without_the_method_is_refused() -> None:
    with pytest.raises(InvalidInput, match="delay_s"):
        opened(object(), ManualClock())


def test_a_queue_at_a_url_takes_none() -> None:
    with pytest.raises(InvalidInput, match="retry_policy is for directories"):
        penstock.open("http://127.0.0.1:1/a/b", retry_policy=Policy(lambda failed: 1.0))
