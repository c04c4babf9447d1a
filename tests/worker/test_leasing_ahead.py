"""A worker leases ahead for fast handlers, keeps those leases, and gives them back."""

import asyncio
import logging
import threading
from collections import Counter
from typing import Any

import pytest

from penstock.model import LeasedMessage
from penstock.queue.queue import Queue
from penstock.worker import Counts, Worker, WorkerOptions
from tests.harness.virtual_loop import LoopClock, run_virtually

UNTIL_EMPTY = WorkerOptions(idle_s=0)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="penstock.worker")


class Watched:
    """A queue that counts the calls of its methods."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._queue, name)


def fill(queue: Queue, count: int) -> list[str]:
    return queue.enqueue_batch([b"%d" % number for number in range(count)])


def test_a_fast_handler_needs_few_requests(queue: Queue, clock: LoopClock) -> None:
    fill(queue, 1000)

    async def handle(job: LeasedMessage) -> None: ...

    async def main() -> tuple[Counts, Counter[str]]:
        watched: Any = Watched(queue.for_tasks())
        return await Worker(watched, handle, options=UNTIL_EMPTY).work(), watched.calls

    counts, calls = run_virtually(lambda _: main(), clock=clock)
    assert counts == Counts(done=1000)
    assert calls["lease"] < 20
    assert calls["ack"] < 30


@pytest.mark.parametrize("prefetch", [0, 500])
def test_a_slow_handler_gets_nothing_that_others_could_have(
    queue: Queue, clock: LoopClock, prefetch: int
) -> None:
    fill(queue, 20)
    leased: list[int] = []

    async def handle(job: LeasedMessage) -> None:
        leased.append(queue.stats().leased)
        await asyncio.sleep(1)

    options = WorkerOptions(idle_s=0, concurrency=2, prefetch=prefetch)
    counts = run_virtually(lambda _: Worker(queue, handle, options=options).work(), clock=clock)
    assert counts == Counts(done=20)
    assert max(leased) <= 2


def test_without_prefetch_no_message_waits_for_its_handler(queue: Queue) -> None:
    fill(queue, 20)
    leased: list[int] = []
    options = WorkerOptions(idle_s=0, prefetch=0)
    worker = Worker(queue, lambda job: leased.append(queue.stats().leased), options=options)
    assert worker.run() == Counts(done=20)
    assert max(leased) == 1


def test_what_waits_for_a_handler_stays_leased(queue: Queue, clock: LoopClock) -> None:
    """The tenth call takes ten times the lease, while the messages after it wait."""
    fill(queue, 40)
    called: list[bytes] = []

    async def handle(job: LeasedMessage) -> None:
        called.append(job.payload)
        if len(called) == 10:
            assert queue.stats().leased > 1
            await asyncio.sleep(100)

    options = WorkerOptions(idle_s=0, lease_s=10)
    counts = run_virtually(lambda _: Worker(queue, handle, options=options).work(), clock=clock)
    assert counts == Counts(done=40)
    assert called == [b"%d" % number for number in range(40)]
    assert queue.stats().timed_out == 0


def test_a_message_that_is_lost_while_it_waits_is_not_handled(
    queue: Queue, clock: LoopClock
) -> None:
    ids = fill(queue, 20)
    called: list[str] = []

    async def handle(job: LeasedMessage) -> None:
        called.append(job.id)
        if len(called) == 10:
            assert queue.state(ids[15]) == "leased"
            queue.cancel(ids[15])
            await asyncio.sleep(100)

    options = WorkerOptions(idle_s=0, lease_s=10)
    counts = run_virtually(lambda _: Worker(queue, handle, options=options).work(), clock=clock)
    assert counts == Counts(done=19, lost=1)
    assert called == [id_ for id_ in ids if id_ != ids[15]]


def check_given_back(queue: Queue, counts: Counts, handled: int) -> None:
    stats = queue.stats()
    assert counts.done == handled
    assert (stats.acked, stats.ready, stats.leased) == (handled, 50 - handled, 0)
    assert all(message.attempt == 1 for message in queue.lease(50)), "an attempt was spent"


def test_a_stop_releases_what_tasks_have_not_begun(queue: Queue, clock: LoopClock) -> None:
    fill(queue, 50)
    called: list[bytes] = []

    async def handle(job: LeasedMessage) -> None:
        called.append(job.payload)
        if len(called) == 10:
            assert queue.stats().leased > 1
            worker.stop()

    worker = Worker(queue, handle)
    counts = run_virtually(lambda _: worker.work(), clock=clock)
    check_given_back(queue, counts, len(called))
    assert 10 <= len(called) < 13


def test_a_stop_releases_what_threads_have_not_begun(queue: Queue) -> None:
    """The tenth call ends when the messages behind it, which its thread already has, are free."""
    fill(queue, 50)
    called: list[bytes] = []
    tick = threading.Event()

    def handle(job: LeasedMessage) -> None:
        called.append(job.payload)
        if len(called) == 10:
            assert queue.stats().leased > 1
            worker.stop()
            while queue.stats().leased > 1:
                tick.wait(0.001)

    worker = Worker(queue, handle, options=WorkerOptions(stop_s=60))
    counts = worker.run()
    check_given_back(queue, counts, 10)


def test_settlements_of_failures_do_not_hold_up_the_others(queue: Queue, clock: LoopClock) -> None:
    fill(queue, 100)

    async def handle(job: LeasedMessage) -> None:
        if int(job.payload) % 3 == 0:
            raise ValueError(job.payload)

    options = WorkerOptions(idle_s=0, concurrency=4)
    counts = run_virtually(lambda _: Worker(queue, handle, options=options).work(), clock=clock)
    assert counts == Counts(done=66, failed=68)  # two attempts each
    assert len(list(queue.dead())) == 34
