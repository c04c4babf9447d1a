"""`run_pending`: jobs in the calling thread, with the lease of a worker, and with time limits."""

import asyncio
import threading
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.tasks import Tasks, TasksWorkerOptions, current
from penstock.tasks.pending import LEASE_S, LeaseRenewal


def test_a_job_of_a_process_that_was_killed_comes_back_after_the_lease_of_a_worker(
    tasks: Tasks, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    @tasks.task
    def die() -> None:
        ran.append(current().number)
        if len(ran) == 1:
            raise KeyboardInterrupt  # stands for the end of the process

    job = die.enqueue()
    queue: Any = tasks.queue()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(queue), "release", lambda *_: None)
        tasks.run_pending()
    clock.advance(LEASE_S - 1)
    assert (tasks.run_pending(), job.state()) == (0, "leased")
    clock.advance(2)
    assert job.state() == "scheduled"  # for its next attempt
    clock.advance(60)
    assert (tasks.run_pending(), job.state(), ran) == (1, "done", [1, 2])
    assert TasksWorkerOptions().lease_s == LEASE_S


def test_the_lease_is_renewed_while_a_job_runs(tasks: Tasks, clock: ManualClock) -> None:
    task = tasks.add(lambda: None, name="one")
    task.enqueue()
    queue: Any = tasks.queue()
    (leased,) = queue.lease(1, lease_s=LEASE_S)
    renewals = threading.Semaphore(0)

    class Renewed:
        def extend(self, *args: Any) -> Any:
            extended = queue.extend(*args)
            renewals.release()
            return extended

    renewed: Any = Renewed()
    with LeaseRenewal(every_s=0.001) as renewal:
        renewal.keep(renewed, leased)
        for _ in range(3):
            clock.advance(LEASE_S - 1)
            assert renewals.acquire(timeout=60)  # may have begun before the clock advanced
            assert renewals.acquire(timeout=60)
        renewal.let_go()
    assert queue.lease(1) == []
    queue.ack(leased)


@pytest.mark.parametrize("catches", [False, True])
def test_a_function_that_takes_too_long_fails(tasks: Tasks, catches: bool) -> None:
    tick = threading.Event()

    def slow() -> None:
        try:
            while True:
                tick.wait(0.001)
        except Exception:
            if not catches:
                raise

    job = tasks.add(slow, timeout_s=0.01, max_attempts=1).enqueue()
    assert tasks.run_pending() == 1
    assert job.state() == "dead"
    assert job.retry_info().reason.startswith("TimeLimitExceeded: not done within 0.01 s")


def test_a_function_with_a_time_limit_returns_and_raises_as_without(tasks: Tasks) -> None:
    @tasks.task(timeout_s=60, keep_result_s=60, max_attempts=1)
    def half(n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n // 2

    good, bad = half.enqueue(4), half.enqueue(3)
    assert tasks.run_pending() == 2
    assert (good.result(), bad.state()) == (2, "dead")
    assert bad.retry_info().reason.startswith("ValueError: odd")


def test_a_time_limit_holds_in_a_thread_that_has_an_event_loop(tasks: Tasks) -> None:
    ran: list[str] = []

    @tasks.task(timeout_s=60)
    def plain() -> None:
        ran.append("plain")

    async def in_a_loop() -> int:
        return tasks.run_pending() + await tasks.arun_pending()

    plain.enqueue()
    assert (asyncio.run(in_a_loop()), ran) == (1, ["plain"])
