"""The worker of tasks: threads, the event loop, child processes, time limits, a stop."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.tasks import Tasks, TasksWorker, TasksWorkerOptions, current
from penstock.worker import Counts
from tests.server.running import RunningServer
from tests.tasks import jobs


@pytest.fixture
def real() -> Iterator[Tasks]:
    """Tasks in memory with the clock of the machine."""
    with Tasks("memory:", backoff_base_s=0, max_attempts=2) as made:
        yield made


def run(tasks: Tasks, target: str | None = None, **options: Any) -> Counts:
    made = TasksWorkerOptions(**{"idle_s": 0, **options})
    return TasksWorker(tasks, options=made, target=target).run()


def test_functions_run_in_threads_and_coroutines_in_the_loop(real: Tasks) -> None:
    where: dict[str, str] = {}

    @real.task
    def plain() -> None:
        where["plain"] = threading.current_thread().name

    @real.task
    async def coroutine() -> None:
        await asyncio.sleep(0)
        where["coroutine"] = threading.current_thread().name

    @real.task(queue="only")
    async def only() -> None:
        where["only"] = threading.current_thread().name

    for task in (plain, coroutine, only):
        task.enqueue()
    assert run(real) == Counts(done=3)
    assert where["plain"].startswith("penstock worker")
    assert where["coroutine"] == where["only"] == "MainThread"


def test_a_job_may_enqueue_another_in_a_queue_that_was_idle(real: Tasks) -> None:
    ran: list[str] = []

    @real.task(queue="a")
    def last() -> None:
        ran.append("last")

    @real.task(queue="b")
    def first() -> None:
        ran.append("first")
        last.enqueue()

    first.enqueue()
    assert run(real) == Counts(done=2)
    assert ran == ["first", "last"]


def test_coroutines_share_the_limit_with_functions(real: Tasks) -> None:
    running, most = 0, 0

    @real.task
    async def wait() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    @real.task
    def plain() -> None: ...

    for _ in range(20):
        wait.enqueue()
        plain.enqueue()
    assert run(real, concurrency=3) == Counts(done=40)
    assert 2 <= most <= 3


def test_outcomes_and_results_are_those_of_run_pending(real: Tasks) -> None:
    @real.task(keep_result_s=60)
    def one() -> int:
        return current().number

    @real.task
    def fail() -> None:
        raise ValueError("no")

    good, bad = one.enqueue(), fail.enqueue()
    assert run(real) == Counts(done=1, failed=2)
    assert good.result() == 1
    assert (bad.state(), bad.retry_info().attempts) == ("dead", 2)
    assert bad.retry_info().reason.startswith("ValueError: no\n")


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_job_that_takes_too_long_is_interrupted_and_fails(real: Tasks, kind: str) -> None:
    options: Any = {"timeout_s": 0.05, "max_attempts": 1, "name": "slow"}
    tick = threading.Event()

    def function() -> None:
        while True:
            tick.wait(0.001)

    async def coroutine() -> None:
        await asyncio.Event().wait()

    job = real.add(function if kind == "function" else coroutine, **options).enqueue()
    assert run(real) == Counts(failed=1)
    assert job.retry_info().reason.startswith("TimeLimitExceeded: not done within 0.05 s")
    assert job.state() == "dead"


def test_a_time_out_of_the_job_itself_is_an_error_like_others(real: Tasks) -> None:
    @real.task(timeout_s=60, max_attempts=1)
    async def ask() -> None:
        raise TimeoutError("the service did not answer")

    job = ask.enqueue()
    run(real)
    assert job.retry_info().reason.startswith("TimeoutError: the service did not answer")


def test_backoff_of_the_task_applies_to_a_time_out(real: Tasks) -> None:
    tick = threading.Event()

    @real.task(timeout_s=0.05, backoff_s=3600)
    def slow() -> None:
        while True:
            tick.wait(0.001)

    job = slow.enqueue()
    assert run(real) == Counts(failed=1)
    assert job.state() == "scheduled"


def test_a_stop_hands_back_what_runs(real: Tasks) -> None:
    began = threading.Event()

    @real.task
    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    job = endless.enqueue()
    worker = TasksWorker(real, options=TasksWorkerOptions(stop_s=0))
    counts: list[Counts] = []
    thread = threading.Thread(target=lambda: counts.append(worker.run()))
    thread.start()
    assert began.wait(60)
    worker.stop()
    thread.join(60)
    assert counts == [Counts(handed_back=1)]
    assert (job.state(), job.retry_info().attempts) == ("ready", 0)


def test_only_some_queues(real: Tasks) -> None:
    ran: list[str] = []
    for name in ("a", "b"):
        real.add(lambda name=name: ran.append(name), name=name, queue=name).enqueue()
    assert run(real, queues=["a"]) == Counts(done=1)
    assert ran == ["a"]
    with pytest.raises(InvalidInput, match="no task uses queue 'c'"):
        run(real, queues=["c"])


def test_wrong_use_is_refused(real: Tasks) -> None:
    with pytest.raises(InvalidInput, match="no tasks"):
        TasksWorker(real)
    real.add(lambda: None, name="x")
    with pytest.raises(InvalidInput, match="target"):
        TasksWorker(real, options=TasksWorkerOptions(processes=1))
    with pytest.raises(InvalidInput, match="concurrency"):
        TasksWorkerOptions(concurrency=0)
    with pytest.raises(InvalidInput, match="Tasks"):
        TasksWorker("app:tasks")  # type: ignore[arg-type]


def test_a_worker_at_a_broker(server: RunningServer) -> None:
    with Tasks(server.url, retry_s=5) as tasks:
        task = tasks.add(lambda: 1, name="one", queue="worked", keep_result_s=60)
        found = [task.enqueue() for _ in range(50)]
        assert run(tasks, idle_s=0.1) == Counts(done=50)
        assert {job.result() for job in found} == {1}


def test_the_log_names_the_directory_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.worker")
    with Tasks(tmp_path) as tasks:
        tasks.add(lambda: None, name="fine").enqueue()
        run(tasks)
    said = [one.getMessage() for one in caplog.records if one.name == "penstock.worker"]
    assert said == [f"working on {tmp_path / 'tasks'}, group main, 8 at a time"]


# -- child processes -------------------------------------------------------------------------------

TARGET = "tests.tasks.jobs:tasks"


@contextmanager
def fresh() -> Iterator[Tasks]:
    try:
        yield jobs.tasks
    finally:
        jobs.tasks.close()  # forgets the queue in memory


def test_jobs_run_in_child_processes() -> None:
    with fresh() as tasks:
        found = [jobs.whoami.enqueue(n) for n in range(6)]
        doubled, refused, died = jobs.double.enqueue(4), jobs.refuse.enqueue(), jobs.die.enqueue()
        late = jobs.hang.enqueue()
        after = jobs.whoami.enqueue(7)  # by a process that replaced another
        counts = run(tasks, TARGET, processes=2)
        assert counts == Counts(done=8, failed=3)
        results = [job.result() for job in [*found, after]]
        assert [n for n, _ in results] == [0, 1, 2, 3, 4, 5, 7]
        assert os.getpid() not in {pid for _, pid in results}
        assert doubled.result() == 8
        assert refused.retry_info().reason == "GiveUp: no"
        assert died.retry_info().reason.startswith("ProcessDied: the process of the job ended by")
        assert late.retry_info().reason.startswith("TimeLimitExceeded: not done within 0.2 s")
        assert {job.state() for job in (refused, died, late)} == {"dead"}


def test_a_child_that_cannot_import_the_tasks_fails_the_job() -> None:
    with fresh() as tasks:
        job = jobs.whoami.with_options(max_attempts=1).enqueue(1)
        assert run(tasks, "tests.tasks.jobs:missing", processes=1) == Counts(failed=1)
        assert "could not import the tasks" in job.retry_info().reason


def test_what_child_processes_log_is_logged_by_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "penstock.tasks")
    with fresh() as tasks:
        fine, bad = jobs.whoami.enqueue(1), jobs.leave.enqueue()
        run(tasks, TARGET, processes=1)
        assert tasks.job(bad.id).retry_info().reason.startswith("SystemExit: config missing")
    ours = [one for one in caplog.records if one.name == "penstock.tasks"]
    assert [
        (one.levelname, one.getMessage().split("\n")[0].partition(" in ")[0]) for one in ours
    ] == [
        ("DEBUG", f"whoami {fine.id} done"),
        (
            "ERROR",
            f"leave {bad.id} failed, attempt 1 of 1; it is a dead letter: "
            f"SystemExit: config missing",
        ),
    ]


def test_a_signal_to_the_group_of_a_worker_does_not_end_its_jobs() -> None:
    with fresh() as tasks:
        job = jobs.told_to_end.with_options(max_attempts=1).enqueue()
        assert run(tasks, TARGET, processes=1) == Counts(done=1)
        assert job.result() == "programs of the job end by it"


LEFT_ALONE = """
import threading
if __name__ == "__main__":
    from penstock.tasks import TasksWorker, TasksWorkerOptions
    from tests.tasks import jobs
    job = jobs.whoami.enqueue(1)
    options = TasksWorkerOptions(processes=1)
    worker = TasksWorker(jobs.tasks, options=options, target="tests.tasks.jobs:tasks")
    threading.Thread(target=worker.run, daemon=True).start()
    print(job.result(wait_s=60)[0])
"""


SIGNALLED = """
import os, signal
if __name__ == "__mp_main__":  # a child starts
    os.kill(os.getpid(), signal.SIGTERM)
if __name__ == "__main__":
    from penstock.tasks import TasksWorker, TasksWorkerOptions
    from tests.tasks import jobs
    job = jobs.whoami.enqueue(1)
    options = TasksWorkerOptions(idle_s=0, processes=1)
    print(TasksWorker(jobs.tasks, options=options, target="tests.tasks.jobs:tasks").run())
"""


def output_of(script: str, tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(script)
    ended = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.strip()


def test_a_signal_to_the_group_of_a_worker_does_not_end_processes_that_start(
    tmp_path: Path,
) -> None:
    assert output_of(SIGNALLED, tmp_path) == str(Counts(done=1))


def test_a_program_ends_though_a_worker_in_a_thread_has_processes(tmp_path: Path) -> None:
    assert output_of(LEFT_ALONE, tmp_path) == "1"


def test_a_worker_has_no_processes_or_threads_when_it_has_stopped() -> None:
    with fresh() as tasks:
        before = set(threading.enumerate())
        jobs.whoami.enqueue(1)
        assert run(tasks, TARGET, processes=2) == Counts(done=1)
        left = {one.name for one in set(threading.enumerate()) - before}
        assert (left, multiprocessing.active_children()) == (set(), [])
