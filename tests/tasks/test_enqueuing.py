"""Defining tasks, and enqueuing them with options."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.tasks import Tasks
from tests.server.running import RunningServer


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def test_a_task_is_still_a_function(tasks: Tasks) -> None:
    task = tasks.task(add)
    assert task(1, 2) == 3
    assert (task.__name__, task.__doc__) == ("add", "Add two numbers.")
    assert tasks["add"] is task
    assert list(tasks) == [task]

    @tasks.task(queue="other")
    async def double(n: int) -> int:
        return 2 * n

    assert asyncio.run(double(3)) == 6
    assert tasks.queue_names == ["other", "tasks"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "two words"}, "A-Z, a-z"),
        ({"queue": "a/b"}, "queue"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"priority": 10}, "priority"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"retry_on": "OSError"}, "type of exception"),
        ({"backoff_factor": 0.5}, "backoff_factor"),
        ({"max_retries": 3}, "max_attempts"),
    ],
)
def test_wrong_options_are_refused(tasks: Tasks, options: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        tasks.add(add, **options)
    assert list(tasks) == []


def test_two_tasks_of_one_name_and_what_cannot_run_are_refused(tasks: Tasks) -> None:
    tasks.task(add)
    with pytest.raises(InvalidInput, match="already"):
        tasks.task(add)

    def generate() -> Any:
        yield 1

    with pytest.raises(InvalidInput, match="generator"):
        tasks.task(generate)
    with pytest.raises(InvalidInput, match="function"):
        tasks.task("add")  # type: ignore[call-overload]


def test_options_of_one_enqueue(tasks: Tasks, clock: ManualClock) -> None:
    task = tasks.add(add, priority=7, max_attempts=4)
    job = task.with_options(delay=60, priority=9, key="k", headers={"a": "b"}).enqueue(1)
    message = tasks.queue().get(job.id)
    assert (message.priority, message.key, message.headers) == (9, "k", {"a": "b"})
    assert (message.max_attempts, job.state()) == (4, "scheduled")
    assert tasks.queue().get(task.enqueue(1).id).priority == 7
    assert tasks.run_pending() == 1
    clock.advance(60)
    assert tasks.run_pending() == 1
    with pytest.raises(TypeError, match="delay"):
        task.with_options(dely=1)  # type: ignore[call-arg]


def test_a_unique_job_stands_for_the_others_of_its_window(tasks: Tasks, clock: ManualClock) -> None:
    task = tasks.add(add, unique_for_s=3600)
    first, again, other = task.enqueue(1, 2), task.enqueue(1, b=2), task.enqueue(1, 3)
    assert (first.is_duplicate, again.is_duplicate, other.is_duplicate) == (False, True, False)
    assert again.id == first.id != other.id
    assert tasks.run_pending() == 2
    assert task.enqueue(1, 2).is_duplicate  # also when it is done
    clock.advance(3600)
    assert not task.enqueue(1, 2).is_duplicate


def test_a_unique_job_by_its_key(tasks: Tasks) -> None:
    unique = tasks.task(add).with_options(unique_for_s=60, unique_key="user-7")
    first, again = unique.enqueue(1), unique.enqueue(2)
    assert (again.id, again.is_duplicate) == (first.id, True)
    with pytest.raises(TypeError, match="unique_for_s"):
        tasks["add"].with_options(unique_key="user-7")


def test_enqueue_and_wait_in_an_event_loop(tmp_path: Path) -> None:
    with Tasks(tmp_path) as tasks:
        task = tasks.add(add, keep_result_s=60)
        job = asyncio.run(task.aenqueue(1))
        tasks.run_pending()
        assert asyncio.run(job.aresult(wait_s=60)) == 2


def test_each_queue_has_a_directory_of_its_own(tmp_path: Path) -> None:
    with Tasks(tmp_path, max_attempts=3) as tasks:
        task = tasks.add(add, queue="mail")
        assert task.enqueue(1).retry_info().max_attempts == 3
    assert [path.name for path in tmp_path.iterdir()] == ["mail"]


def test_tasks_at_a_broker(server: RunningServer) -> None:
    for url in (server.url, f"{server.url}/tasks-ns"):
        with Tasks(url) as tasks:
            task = tasks.add(add, queue="sums", keep_result_s=60)
            job = task.enqueue(1, 2)
            assert tasks.run_pending() == 1
            assert (job.result(), job.state()) == (3, "done")
            assert job.why().code == "done"


def test_the_place_can_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks()
    task = tasks.task(add)
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    with pytest.raises(InvalidInput, match="PENSTOCK_URL"):
        task.enqueue(1)
    monkeypatch.setenv("PENSTOCK_URL", str(tmp_path))
    assert task.enqueue(1).state() == "ready"
    tasks.close()


def test_several_processes_use_one_directory(tmp_path: Path) -> None:
    """A second process enqueues while this one has the directory open."""
    (tmp_path / "app.py").write_text(
        "from penstock.tasks import Tasks\n"
        "tasks = Tasks('data')\n"
        "@tasks.task\n"
        "def note(n: int) -> None: ...\n"
    )
    with Tasks(tmp_path / "data") as tasks:
        ran: list[int] = []
        tasks.add(lambda n: ran.append(n), name="note")
        tasks.queue()
        command = [sys.executable, "-c", "import app; app.note.enqueue(7); app.tasks.close()"]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=100)
        assert tasks.run_pending() == 1
        assert ran == [7]
