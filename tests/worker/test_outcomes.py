"""Outcomes that a handler chooses: follow-up messages with the ack, a delay, a dead letter."""

from typing import Any

import penstock
from penstock.queue.queue import Queue
from penstock.worker import Counts, Done, Failed, Worker, WorkerOptions

IDLE = WorkerOptions(idle_s=0)


def test_messages_are_published_with_the_ack(queue: Queue) -> None:
    queue.enqueue(b"order")
    seen: list[bytes] = []

    def handle(job: penstock.LeasedMessage) -> object:
        seen.append(job.payload)
        return Done(emit=["shipment"]) if job.payload == b"order" else None

    assert Worker(queue, handle, options=IDLE).run() == Counts(done=2)
    assert seen == [b"order", b"shipment"]
    assert queue.stats().published == 2


def test_a_coroutine_and_middleware_pass_it_on(queue: Queue) -> None:
    queue.enqueue(b"order")

    class Nothing:
        def before(self, message: Any) -> None: ...
        def after(self, message: Any) -> None: ...
        def failed(self, message: Any, error: Exception) -> None: ...

    async def handle(job: penstock.LeasedMessage) -> object:
        return Done(emit=[b"next"]) if job.payload == b"order" else None

    assert Worker(queue, handle, options=IDLE, middleware=[Nothing()]).run() == Counts(done=2)


def test_a_failure_has_its_own_reason_and_is_dead_at_once(queue: Queue) -> None:
    id_ = queue.enqueue(b"x")

    def handle(job: penstock.LeasedMessage) -> None:
        raise Failed("no such user", dead=True)

    assert Worker(queue, handle, options=IDLE).run() == Counts(failed=1)
    info = queue.retry_info(id_)
    assert (info.state, info.reason, info.attempts) == ("dead", "no such user", 1)


def test_a_failure_says_when_to_try_again(queue: Queue) -> None:
    id_ = queue.enqueue(b"x")

    def handle(job: penstock.LeasedMessage) -> None:
        raise Failed("busy", delay_s=300)

    assert Worker(queue, handle, options=IDLE).run() == Counts(failed=1)
    assert queue.retry_info(id_).next_attempt_ns == queue.core.clock.now_ns() + 300 * 10**9


def test_an_error_without_a_text_is_settled_too(queue: Queue) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def handle(job: penstock.LeasedMessage) -> None:
        raise Unprintable

    id_ = queue.enqueue(b"x", max_attempts=1)
    assert Worker(queue, handle, options=IDLE).run() == Counts(failed=1)
    assert "Unprintable: its text cannot be read" in queue.retry_info(id_).reason
