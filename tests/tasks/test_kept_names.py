"""Unique jobs, results and workflows: what one of them keeps never displaces another."""

from collections.abc import Iterator

import pytest

from penstock.clock import ManualClock
from penstock.errors import QueueFull
from penstock.tasks import NoResult, Tasks, chain
from penstock.tasks.places import Memory

LIMITS = {"dedup_entries": 5, "result_entries": 5}


@pytest.fixture
def tasks(clock: ManualClock) -> Iterator[Tasks]:
    made = Tasks("memory:")
    with made.at(Memory({"backoff_jitter": 0.0, **LIMITS}, clock)):
        yield made


def test_workflows_and_results_leave_room_for_unique_jobs_and_short_results(tasks: Tasks) -> None:
    @tasks.task(keep_result_s=86400)
    def add(x: int, y: int = 1) -> int:
        return x + y

    @tasks.task(unique_for_s=600)
    def daily(user: int) -> None: ...

    for _ in range(4):
        for x in range(5):
            add.enqueue(x)
        run = chain(add.s(1), add.s(2), add.s(3)).enqueue()
        tasks.run_pending()
        assert run.result() == 7
    assert [daily.enqueue(7).is_duplicate for _ in range(3)] == [False, True, True]
    job = add.with_options(keep_result_s=60).enqueue(1)
    tasks.run_pending()
    assert job.result() == 2


def test_a_unique_job_beyond_the_limit_is_refused(tasks: Tasks, clock: ManualClock) -> None:
    @tasks.task(unique_for_s=600)
    def daily(user: int) -> None: ...

    for user in range(5):
        daily.enqueue(user)
    with pytest.raises(QueueFull, match="dedup_entries"):
        daily.enqueue(5)
    assert daily.enqueue(4).is_duplicate
    clock.advance(600)
    assert not daily.enqueue(5).is_duplicate


def test_a_result_that_made_room_for_newer_ones_says_so(tasks: Tasks) -> None:
    @tasks.task(keep_result_s=86400)
    def double(x: int) -> int:
        return 2 * x

    jobs = [double.enqueue(x) for x in range(6)]
    tasks.run_pending()
    assert [job.result() for job in jobs[1:]] == [2, 4, 6, 8, 10]
    with pytest.raises(NoResult, match="keeps the newest 5 results.*result_entries"):
        jobs[0].result()


def test_a_workflow_is_refused_while_the_steps_before_it_are_not_done(tasks: Tasks) -> None:
    @tasks.task
    def add(x: int, y: int) -> int:
        return x + y

    def sum_up() -> object:
        return chain(add.s(1, 2), add.s(3), add.s(4)).enqueue(id=None)

    first = chain(add.s(1, 2), add.s(3), add.s(4)).enqueue(id="2026-11-18")
    with pytest.raises(QueueFull, match=r"3 more.*result_entries"):
        sum_up()
    tasks.run_pending(limit=1)
    sum_up()  # forgets the one step that is done
    with pytest.raises(QueueFull):
        sum_up()
    tasks.run_pending()
    assert first.result() == 10
    sum_up()
