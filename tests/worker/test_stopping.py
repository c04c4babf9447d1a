"""A stop takes nothing more, lets work end, and hands the rest back without spending an attempt."""

import asyncio
import ctypes
import logging
import operator
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from penstock.model import LeasedMessage
from penstock.queue.queue import Queue
from penstock.worker import Counts, Worker, WorkerOptions
from tests.harness.virtual_loop import LoopClock, run_virtually


def test_work_under_way_is_finished_and_nothing_more_is_taken(
    queue: Queue, clock: LoopClock
) -> None:
    queue.enqueue_batch([b"1", b"2", b"3"])
    worker = Worker(queue, lambda job: None)

    async def handle(job: LeasedMessage) -> None:
        worker.stop()
        await asyncio.sleep(10)

    worker = Worker(queue, handle, options=WorkerOptions(concurrency=1, stop_s=20))
    assert run_virtually(lambda _: worker.work(), clock=clock) == Counts(done=1)
    stats = queue.stats()
    assert (stats.acked, stats.ready, stats.leased) == (1, 2, 0)


def test_a_stop_wakes_a_worker_that_waits_for_messages(queue: Queue) -> None:
    worker = Worker(queue, lambda job: None)
    results: list[Counts] = []
    thread = threading.Thread(target=lambda: results.append(worker.run()))
    thread.start()
    worker.stop()
    thread.join(timeout=60)
    assert results == [Counts()]


def test_what_does_not_end_in_time_is_handed_back_and_no_attempt_is_spent(
    queue: Queue, clock: LoopClock
) -> None:
    id_ = queue.enqueue(b"long")
    cancelled: list[bool] = []

    async def handle(job: LeasedMessage) -> None:
        worker.stop()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    worker = Worker(queue, handle, options=WorkerOptions(stop_s=5))
    assert run_virtually(lambda _: worker.work(), clock=clock) == Counts(handed_back=1)
    assert cancelled == [True]
    assert queue.state(id_) == "ready"
    (job,) = queue.lease()
    assert job.attempt == 1


@pytest.mark.parametrize("answer", ["return", "raise"])
def test_a_call_that_caught_its_interruption_is_handed_back(
    queue: Queue, clock: LoopClock, answer: str
) -> None:
    """Its work is not done, whatever it answers."""
    queue.enqueue(b"long")

    async def handle(job: LeasedMessage) -> None:
        worker.stop()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            if answer == "raise":
                raise ValueError("tidied up") from None

    worker = Worker(queue, handle, options=WorkerOptions(stop_s=5))
    assert run_virtually(lambda _: worker.work(), clock=clock) == Counts(handed_back=1)
    assert (queue.stats().ready, queue.stats().acked) == (1, 0)


def test_a_task_that_caught_its_time_limit_has_failed(queue: Queue, clock: LoopClock) -> None:
    queue.enqueue(b"long", max_attempts=1)

    async def handle(job: LeasedMessage) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return

    worker = Worker(queue, handle, options=WorkerOptions(idle_s=0, time_limit_s=5))
    assert run_virtually(lambda _: worker.work(), clock=clock) == Counts(failed=1)
    assert (queue.stats().dead, queue.stats().acked) == (1, 0)


def test_a_thread_that_caught_its_time_limit_has_failed(queue: Queue) -> None:
    queue.enqueue(b"long", max_attempts=1)
    caught = threading.Event()

    def handle(job: LeasedMessage) -> None:
        try:
            while not caught.wait(0.001):
                pass
        except Exception:
            caught.set()

    worker = Worker(queue, handle, options=WorkerOptions(idle_s=0, time_limit_s=0.01))
    assert worker.run() == Counts(failed=1)
    assert caught.is_set()
    assert (queue.stats().dead, queue.stats().acked) == (1, 0)


def test_a_second_stop_does_not_wait(queue: Queue, clock: LoopClock) -> None:
    queue.enqueue(b"long")
    began_ns = clock.monotonic_ns()

    async def handle(job: LeasedMessage) -> None:
        worker.stop()
        worker.stop()
        await asyncio.sleep(1000)

    worker = Worker(queue, handle, options=WorkerOptions(stop_s=3600))
    assert run_virtually(lambda _: worker.work(), clock=clock) == Counts(handed_back=1)
    assert clock.monotonic_ns() == began_ns


def test_cancelling_the_worker_hands_back_at_once(queue: Queue, clock: LoopClock) -> None:
    id_ = queue.enqueue(b"long")

    async def main() -> None:
        began = asyncio.Event()

        async def handle(job: LeasedMessage) -> None:
            began.set()
            await asyncio.sleep(1000)

        working = asyncio.create_task(Worker(queue, handle).work())
        await began.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    run_virtually(lambda _: main(), clock=clock)
    assert clock.passed_ns < 10**9
    assert queue.state(id_) == "ready"


def test_a_thread_is_interrupted_and_its_message_handed_back(queue: Queue) -> None:
    id_ = queue.enqueue(b"long")
    tick = threading.Event()

    def handle(job: LeasedMessage) -> None:
        worker.stop()
        while True:
            try:
                tick.wait(0.001)
            except Exception:  # what a careless handler does
                continue

    worker = Worker(queue, handle, options=WorkerOptions(stop_s=0))
    assert worker.run() == Counts(handed_back=1)
    assert queue.state(id_) == "ready"


def test_a_thread_that_cannot_be_interrupted_is_left_alone(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.gettrace() is not None:
        pytest.skip("CPython 3.11 hangs: a tracer, and an exception pending in another thread")
    monkeypatch.setattr("penstock.worker.shift._GRACE_S", 0.01)
    id_ = queue.enqueue(b"stuck")
    is_stuck, let_go = threading.Lock(), threading.Lock()
    is_stuck.acquire()
    let_go.acquire()

    def raise_when_stuck(thread_id: int, error: type[BaseException] | None) -> None:
        with is_stuck:
            raised = None if error is None else ctypes.py_object(error)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), raised)

    def handle(job: LeasedMessage) -> None:
        worker.stop()
        # All of it in C: no Python code runs between the release and the end of the wait.
        any(map(operator.call, (is_stuck.release, let_go.acquire)))  # type: ignore[arg-type]

    monkeypatch.setattr("penstock.worker.calling._raise_in", raise_when_stuck)
    worker = Worker(queue, handle, options=WorkerOptions(stop_s=0))
    try:
        assert worker.run() == Counts(handed_back=1)
        assert queue.state(id_) == "ready"
        assert "1 calls of the handler did not end" in caplog.text
    finally:
        let_go.release()


def test_a_stop_before_the_beginning_is_heeded(queue: Queue) -> None:
    queue.enqueue(b"x")
    worker = Worker(queue, lambda job: None)
    worker.stop()
    assert worker.run() == Counts()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    with penstock.open(tmp_path / "queue") as queue:
        queue.enqueue_batch([b"1", b"2", b"3"])
    program = (
        "import sys, threading\n"
        "from penstock.worker import Worker, WorkerOptions\n"
        "def handle(job):\n"
        "    print('began', flush=True)\n"
        "    while True: threading.Event().wait(0.01)\n"
        "counts = Worker(sys.argv[1], handle, options=WorkerOptions(stop_s=0.05)).run()\n"
        "print(counts, flush=True)\n"
    )
    line = [sys.executable, "-c", program, str(tmp_path / "queue")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        process.send_signal(number)
        said = process.stdout.read()
        assert process.wait(timeout=60) == 0
    assert said == "Counts(done=0, failed=0, handed_back=1, lost=0)\n"
    with penstock.open(tmp_path / "queue") as queue:
        stats = queue.stats()
        assert (stats.ready, stats.leased, stats.acked) == (3, 0, 0)
        assert queue.lease()[0].attempt == 1


def test_failures_are_logged_without_the_payload(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    id_ = queue.enqueue(b"the secret", max_attempts=1)

    def handle(job: LeasedMessage) -> None:
        raise ValueError("no")

    caplog.set_level(logging.INFO, logger="penstock.worker")
    Worker(queue, handle, options=WorkerOptions(idle_s=0)).run()
    assert f"handling {id_} failed: ValueError: no" in caplog.text
    assert "the secret" not in caplog.text
