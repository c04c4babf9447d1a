"""Leases are renewed while a handler works, and what is lost is not settled."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.errors import Unreachable
from penstock.model import LeasedMessage
from penstock.queue.queue import Queue
from penstock.worker import Counts, Worker, WorkerOptions
from penstock.worker.queues import open_for_tasks
from tests.harness.virtual_loop import LoopClock, run_virtually


def test_a_handler_may_take_many_times_the_lease(queue: Queue, clock: LoopClock) -> None:
    queue.enqueue_batch([b"1", b"2"])

    async def handle(job: LeasedMessage) -> None:
        await asyncio.sleep(1000)

    options = WorkerOptions(idle_s=0, lease_s=10, concurrency=2)
    counts = run_virtually(lambda _: Worker(queue, handle, options=options).work(), clock=clock)
    assert counts == Counts(done=2)
    stats = queue.stats()
    assert (stats.acked, stats.timed_out) == (2, 0)


def test_a_message_that_was_taken_away_interrupts_its_handler(
    queue: Queue, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(b"x")
    ended: list[str] = []

    async def handle(job: LeasedMessage) -> None:
        queue.cancel(job.id)
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    options = WorkerOptions(idle_s=0, lease_s=10)
    counts = run_virtually(lambda _: Worker(queue, handle, options=options).work(), clock=clock)
    assert counts == Counts(lost=1)
    assert ended == ["cancelled"]
    assert "a lease is lost" in caplog.text


def test_one_lost_message_does_not_stop_the_renewal_of_others(
    queue: Queue, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    ids = queue.enqueue_batch([b"lost", b"kept"])
    caplog.set_level(logging.CRITICAL, logger="penstock.worker")

    async def handle(job: LeasedMessage) -> None:
        if job.payload == b"lost":
            queue.cancel(ids[0])
        await asyncio.sleep(100)

    options = WorkerOptions(idle_s=0, lease_s=10, concurrency=2)
    counts = run_virtually(lambda _: Worker(queue, handle, options=options).work(), clock=clock)
    assert counts == Counts(done=1, lost=1)
    assert queue.stats().timed_out == 0


def test_a_renewal_that_fails_is_tried_again_before_the_lease_is_over(
    queue: Queue, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(b"x")

    class Flaky:
        """Every second renewal does not reach the queue."""

        def __init__(self, face: Any) -> None:
            self._face = face
            self.renewals = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._face, name)

        async def extend(self, leased: Sequence[LeasedMessage], lease_s: float) -> None:
            self.renewals += 1
            if self.renewals % 2:
                raise Unreachable("cut")
            await self._face.extend(leased, lease_s)

    async def handle(job: LeasedMessage) -> None:
        await asyncio.sleep(100)

    async def main() -> Counts:
        flaky = Flaky((await open_for_tasks(queue))[0])
        options = WorkerOptions(idle_s=0, lease_s=10)
        counts = await Worker(flaky, handle, options=options).work()
        assert flaky.renewals > 10
        return counts

    assert run_virtually(lambda _: main(), clock=clock) == Counts(done=1)
    assert "tried again" in caplog.text
    assert queue.stats().timed_out == 0


def test_the_time_limit_ends_a_task(queue: Queue, clock: LoopClock) -> None:
    queue.enqueue(b"x", max_attempts=1)

    async def handle(job: LeasedMessage) -> None:
        await asyncio.sleep(1000)

    options = WorkerOptions(idle_s=0, time_limit_s=60)
    counts = run_virtually(lambda _: Worker(queue, handle, options=options).work(), clock=clock)
    assert counts == Counts(failed=1)
    (letter,) = queue.dead()
    assert letter.reason == "TimeLimitExceeded: not done within 60 s"


def test_the_time_limit_ends_a_thread(queue: Queue) -> None:
    queue.enqueue(b"endless", max_attempts=1)
    queue.enqueue(b"quick")
    tick = threading.Event()

    def handle(job: LeasedMessage) -> None:
        while job.payload == b"endless":
            tick.wait(0.001)

    options = WorkerOptions(idle_s=0, time_limit_s=0.5)
    assert Worker(queue, handle, options=options).run() == Counts(done=1, failed=1)
    assert next(queue.dead()).reason == "TimeLimitExceeded: not done within 0.5 s"


def test_a_worker_that_became_idle_renews_nothing_and_says_nothing(
    queue: Queue, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The timer of a lease outlives the call: there is nothing left to renew when it fires."""
    queue.enqueue(b"x")
    renewed: list[int] = []

    class Watched:
        def __init__(self, face: Any) -> None:
            self._face = face

        def __getattr__(self, name: str) -> Any:
            return getattr(self._face, name)

        async def extend(self, leased: Sequence[LeasedMessage], lease_s: float) -> None:
            renewed.append(len(leased))
            await self._face.extend(leased, lease_s)

    async def handle(job: LeasedMessage) -> None: ...

    async def main() -> Counts:
        watched = Watched((await open_for_tasks(queue))[0])
        options = WorkerOptions(idle_s=60, lease_s=10)
        return await Worker(watched, handle, options=options).work()

    assert run_virtually(lambda _: main(), clock=clock) == Counts(done=1)
    assert renewed == []
    assert caplog.records == []
