"""Tasks that run by themselves: at the times of a cron expression, or at an interval."""

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.errors import InvalidInput, Unavailable
from penstock.tasks import Tasks, TasksWorker, TasksWorkerOptions, worker
from penstock.testing import in_memory
from penstock.worker import Counts

MONDAY = datetime(2026, 3, 23, tzinfo=UTC).timestamp()  # of the week in which DST begins


def test_a_task_runs_at_the_times_of_a_cron_expression() -> None:
    tasks = Tasks("memory:")
    ran: list[str] = []

    @tasks.cron("30 6 * * mon-fri", timezone="Europe/Berlin", queue="reports")
    def report(title: str = "daily") -> None:
        ran.append(title)

    with in_memory(tasks, now_s=MONDAY) as box:
        (state,) = tasks.put_schedules()
        assert (state.name, state.cron) == ("task.report", "30 6 * * mon-fri")
        assert datetime.fromtimestamp(state.next_ns / 1e9, UTC).hour == 5  # 6:30 in Berlin
        assert box.advance(7 * 86400) == 5
        assert ran == ["daily"] * 5
        (again,) = tasks.put_schedules()
        assert datetime.fromtimestamp(again.next_ns / 1e9, UTC).hour == 4  # in summer


def test_a_task_runs_at_an_interval() -> None:
    tasks = Tasks("memory:")
    ran: list[int] = []

    @tasks.every(60)
    def beat() -> None:
        ran.append(1)

    with in_memory(tasks) as box:
        tasks.put_schedules()
        tasks.put_schedules()
        assert box.advance(600) == 10


def test_a_worker_puts_the_schedules() -> None:
    with Tasks("memory:") as tasks:

        @tasks.every(3600)
        def beat() -> None: ...

        TasksWorker(tasks, options=TasksWorkerOptions(idle_s=0)).run()
        assert [one.name for one in tasks.queue().schedules()] == ["task.beat"]


def test_what_cannot_run_by_itself_is_refused() -> None:
    tasks = Tasks("memory:")
    with pytest.raises(InvalidInput, match="need defaults"):

        @tasks.cron("0 0 * * *")
        def needs(n: int) -> None: ...

    with pytest.raises(InvalidInput, match="unique_for_s"):

        @tasks.every(60, unique_for_s=60)
        def unique() -> None: ...

    assert list(tasks) == [] and tasks.schedules == []


def test_a_worker_tries_to_put_its_schedules_until_the_broker_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.0)
    with Tasks("memory:") as tasks:

        @tasks.every(3600)
        def beat() -> None: ...

        put, calls = tasks.put_schedules, iter(range(3))

        def unreachable_at_first() -> object:
            if next(calls) < 2:
                raise Unavailable("nobody listens")
            return put()

        monkeypatch.setattr(tasks, "put_schedules", unreachable_at_first)
        TasksWorker(tasks, options=TasksWorkerOptions(idle_s=0)).run()
        assert [one.name for one in tasks.queue().schedules()] == ["task.beat"]


def test_a_stop_ends_the_tries_to_put_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    with Tasks("memory:") as tasks:

        @tasks.every(3600)
        def beat() -> None: ...

        working = TasksWorker(tasks)

        def unreachable() -> object:
            working.stop()
            raise Unavailable("nobody listens")

        monkeypatch.setattr(tasks, "put_schedules", unreachable)
        assert working.run() == Counts()


def test_a_wrong_schedule_is_refused_where_it_is_written_with_the_name_of_its_task() -> None:
    tasks = Tasks("memory:")

    def report() -> None: ...

    wrong: list[tuple[str, Any]] = [
        ("needs an interval in seconds: @tasks.every", lambda: tasks.every(report)),  # type: ignore[arg-type]
        ("needs an expression: @tasks.cron", lambda: tasks.cron(report)),  # type: ignore[arg-type]
        ("task 'report': cron is '61", lambda: tasks.cron("61 * * * *")(report)),
        ("task 'report': every_s", lambda: tasks.every(0)(report)),
        ("task 'report': .*zone", lambda: tasks.cron("* * * * *", timezone="Mars")(report)),
        ("timezone=", lambda: tasks.cron("* * * * *", time_zone="UTC")(report)),  # type: ignore[call-arg]
        ("at most 59 characters", lambda: tasks.every(5, name="x" * 60)(report)),
        ("no ':'", lambda: tasks.every(5, name="a:b")(report)),
    ]
    for says, call in wrong:
        with pytest.raises(InvalidInput, match=says):
            call()
    assert (list(tasks), tasks.schedules) == ([], [])
    tasks.every(5, name="x" * 59)(report)
    with tasks:
        assert len(tasks.put_schedules()) == 1
