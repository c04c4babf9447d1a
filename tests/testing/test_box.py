"""Tasks in a box: real queues in memory, a clock that is told the time, assertions."""

import asyncio
from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.tasks import Retry, Tasks
from penstock.testing import in_memory


def _tasks(path: Path) -> Tasks:
    tasks = Tasks(path)

    @tasks.task(queue="mail")
    def welcome(user_id: int, *, locale: str = "en") -> None:
        if locale == "xx":
            raise Retry("no such language", delay=100)

    @tasks.task(keep_result_s=60)
    async def double(n: int) -> int:
        return 2 * n

    return tasks


def test_nothing_of_a_box_is_left(tmp_path: Path) -> None:
    tasks = _tasks(tmp_path / "data")
    with in_memory(tasks) as box:
        job = tasks["welcome"].enqueue(7)
        assert box.run_pending() == 1
        assert job.state() == "done"
    assert not (tmp_path / "data").exists()
    with in_memory(tasks) as box:
        box.assert_not_enqueued(tasks["welcome"])
        assert box.queue("mail").stats().published == 0


def test_time_passes_when_it_is_told_to_and_jobs_run_when_they_are_due(tmp_path: Path) -> None:
    tasks = _tasks(tmp_path)
    with in_memory(tasks, max_attempts=3) as box:
        welcome = tasks["welcome"]
        later = welcome.with_options(delay=3600).enqueue(7)
        assert box.advance(3599) == 0
        assert box.advance(1) == 1
        assert later.state() == "done"
        failing = welcome.enqueue(1, locale="xx")
        began_ns = box.clock.now_ns()
        assert box.advance(1000) == 3
        assert failing.state() == "dead"
        info = failing.retry_info()
        assert info.last_failure_ns - began_ns == 200 * 10**9  # each attempt was in time


def test_assertions_say_what_is_enqueued_instead(tmp_path: Path) -> None:
    tasks = _tasks(tmp_path)
    with in_memory(tasks) as box:
        welcome = tasks["welcome"]
        with pytest.raises(AssertionError, match="there are no jobs of this task"):
            box.assert_enqueued(welcome, 7)
        welcome.enqueue(7, locale="de")
        job = box.assert_enqueued(welcome, 7, locale="de")
        assert (job.args, job.kwargs, job.state) == ([7], {"locale": "de"}, "ready")
        box.assert_not_enqueued(tasks["double"])
        with pytest.raises(AssertionError, match=r"there are: welcome\(7, locale='de'\)"):
            box.assert_enqueued(welcome, 7)
        welcome.enqueue(7, locale="de")
        with pytest.raises(AssertionError, match="2 jobs"):
            box.assert_enqueued(welcome, 7, locale="de")
        with pytest.raises(AssertionError, match="welcome"):
            box.assert_not_enqueued(welcome)
        assert box.run_next(welcome)
        assert len(box.enqueued()) == 1


def test_inline_runs_at_once_and_raises_what_the_function_raises(tmp_path: Path) -> None:
    tasks = _tasks(tmp_path)
    with in_memory(tasks) as box:
        waiting = tasks["double"].enqueue(1)
        with box.inline():
            assert tasks["double"].with_options(delay=60).enqueue(4).result() == 8
            with pytest.raises(Retry, match="no such language"):
                tasks["welcome"].enqueue(1, locale="xx")
        assert waiting.state() == "ready"
        box.assert_enqueued(tasks["double"], 1)


def test_inline_within_an_event_loop(tmp_path: Path) -> None:
    tasks = _tasks(tmp_path)

    async def main() -> None:
        assert (await tasks["double"].aenqueue(4)).state() == "done"
        assert tasks["double"].enqueue(5).result() == 10

    with in_memory(tasks) as box, box.inline():
        asyncio.run(main())


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Tasks"), in_memory("tasks"):  # type: ignore[arg-type]
        pass
    with in_memory(_tasks(tmp_path)) as box, pytest.raises(InvalidInput, match="duration"):
        box.advance(-1)


def test_time_passes_although_a_job_that_is_due_cannot_run(tmp_path: Path) -> None:
    tasks = _tasks(tmp_path)
    with in_memory(tasks) as box:
        tasks["welcome"].with_options(delay=10).enqueue(7)
        box.queue("mail").pause()
        assert box.advance(60) == 0
        box.queue("mail").resume()
        assert box.run_pending() == 1
