"""A worker calls its handler for each message, and settles by what came of it."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

import penstock
import penstock.aio
from penstock.errors import InvalidInput, LedgerClosed
from penstock.model import LeasedMessage, NewMessage
from penstock.queue.queue import Queue
from penstock.worker import Counts, Worker, WorkerOptions
from tests.harness.virtual_loop import LoopClock, run_virtually

UNTIL_EMPTY = WorkerOptions(idle_s=0)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="penstock.worker")


def test_what_the_handler_returns_from_is_done(queue: Queue) -> None:
    queue.enqueue_batch([b"%d" % n for n in range(20)])
    seen: list[bytes] = []
    counts = Worker(queue, lambda job: seen.append(job.payload), options=UNTIL_EMPTY).run()
    assert counts == Counts(done=20)
    assert sorted(seen) == sorted(b"%d" % n for n in range(20))
    assert (queue.stats().acked, queue.stats().ready, queue.stats().leased) == (20, 0, 0)


def test_what_the_handler_raises_is_the_reason_of_the_failure(queue: Queue) -> None:
    queue.enqueue(b"bad")

    def handle(job: LeasedMessage) -> None:
        raise ValueError(f"no {job.payload!r}")

    counts = Worker(queue, handle, options=UNTIL_EMPTY).run()
    assert counts == Counts(failed=2)
    (letter,) = queue.dead()
    assert (letter.reason, letter.attempts) == ("ValueError: no b'bad'", 2)


def test_a_coroutine_function_is_called_as_a_task(queue: Queue, clock: LoopClock) -> None:
    queue.enqueue_batch([b"1", b"x", b"3"])
    at_once: list[int] = []
    running = 0

    async def handle(job: LeasedMessage) -> None:
        nonlocal running
        running += 1
        at_once.append(running)
        await asyncio.sleep(1)
        running -= 1
        int(job.payload)

    options = WorkerOptions(idle_s=0, concurrency=3)
    counts = run_virtually(lambda _: Worker(queue, handle, options=options).work(), clock=clock)
    assert counts == Counts(done=2, failed=2)
    assert max(at_once) == 3


def test_an_object_with_an_async_call_is_called_as_a_task_too(
    queue: Queue, clock: LoopClock
) -> None:
    class Handler:
        async def __call__(self, job: LeasedMessage) -> None:
            await asyncio.sleep(0)

    queue.enqueue(b"x")
    counts = run_virtually(
        lambda _: Worker(queue, Handler(), options=UNTIL_EMPTY).work(), clock=clock
    )
    assert counts.done == 1


def test_no_more_calls_at_a_time_than_the_concurrency(queue: Queue) -> None:
    queue.enqueue_batch([b"%d" % n for n in range(12)])
    together = threading.Barrier(3)  # breaks unless exactly so many calls meet, again and again

    def handle(job: LeasedMessage) -> None:
        together.wait(timeout=30)

    counts = Worker(queue, handle, options=WorkerOptions(idle_s=0, concurrency=3)).run()
    assert counts.done == 12


def test_batches_are_lists_that_are_settled_as_one(queue: Queue) -> None:
    queue.enqueue_batch([NewMessage(payload=b"%d" % n, max_attempts=1) for n in range(7)])
    sizes: list[int] = []

    def handle(jobs: list[LeasedMessage]) -> None:
        sizes.append(len(jobs))
        if jobs[0].payload == b"3":
            raise RuntimeError("this batch fails")

    counts = Worker(queue, handle, options=WorkerOptions(idle_s=0, batch=3)).run()
    assert sizes == [3, 3, 1]
    assert (counts.done, counts.failed) == (4, 3)
    assert {letter.payload for letter in queue.dead()} == {b"3", b"4", b"5"}


def test_a_worker_of_a_group_works_on_that_group(queue: Queue) -> None:
    queue.groups.create("audit")
    queue.enqueue(b"x")
    options = WorkerOptions(idle_s=0, group="audit", holder="auditor")
    assert Worker(queue, lambda job: None, options=options).run().done == 1
    stats = queue.stats()
    assert (stats.groups["audit"].acked, stats.ready) == (1, 1)
    id_ = queue.peek()[0].id
    assert [event.holder for event in queue.history(id_, group="audit")][1] == "auditor"


def test_a_path_is_opened_and_closed_by_the_worker(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as queue:
        queue.enqueue(b"x")
    assert Worker(tmp_path, lambda job: None, options=UNTIL_EMPTY).run().done == 1
    with penstock.open(tmp_path) as queue:
        assert queue.stats().acked == 1


def test_an_async_queue_is_left_open(tmp_path: Path) -> None:
    async def main() -> int:
        async with await penstock.aio.open(tmp_path) as queue:
            await queue.enqueue(b"x")
            counts = await Worker(queue, lambda job: None, options=UNTIL_EMPTY).work()
            return counts.done + (await queue.stats()).acked

    assert asyncio.run(main()) == 2


def test_a_queue_that_can_do_no_more_ends_the_worker_with_its_error(queue: Queue) -> None:
    queue.close()
    with pytest.raises(LedgerClosed):
        Worker(queue, lambda job: None).run()


def test_a_handler_that_exits_only_fails_its_message(queue: Queue) -> None:
    def leave(job: LeasedMessage) -> None:
        raise SystemExit(3)

    async def leave_soon(job: LeasedMessage) -> None:
        raise SystemExit(3)

    for handler in (leave, leave_soon):
        queue.enqueue(b"x", max_attempts=1)
        assert Worker(queue, handler, options=UNTIL_EMPTY).run() == Counts(failed=1)
    assert ["SystemExit" in letter.reason for letter in queue.dead()] == [True, True]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"concurrency": 0}, {"batch": 0}, {"lease_s": 0}, {"stop_s": -1}, {"idle_s": "x"}),
        *({"group": "a b"}, {"group": None}, {"group": 5}, {"holder": 5}),
    ],
)
def test_options_outside_their_limits_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        WorkerOptions(**wrong)  # type: ignore[arg-type]


def test_a_worker_may_not_hold_more_than_it_could_ever_settle() -> None:
    with pytest.raises(InvalidInput, match="10000"):
        WorkerOptions(concurrency=200, batch=100)
