"""A backend of Django's tasks: enqueue, run, results, signals, wrong settings."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

TASKS = {
    "default": {
        "BACKEND": "penstock.integrations.django.PenstockBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"place": "memory:", "max_attempts": 1},
    }
}
# No test connects; those of the outbox, in the same process, say where the database is.
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql"}}
if not settings.configured:
    settings.configure(USE_TZ=True, TASKS=TASKS, DATABASES=DATABASES)
    django.setup()

try:  # Django 6, which needs Python 3.12
    from django.tasks import TaskResultStatus, task_backends
    from django.tasks.exceptions import InvalidTask as InvalidTaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:
    from django_tasks import TaskResultStatus, task_backends
    from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

from penstock.errors import InvalidInput  # noqa: E402
from penstock.integrations.django import PenstockBackend, backend_of  # noqa: E402
from penstock.testing import TaskBox, in_memory  # noqa: E402
from tests.integrations import django_jobs as jobs  # noqa: E402


@pytest.fixture
def box() -> Iterator[TaskBox]:
    jobs.ran.clear()
    with in_memory(backend_of("default").tasks) as made:
        yield made


def test_a_task_is_enqueued_and_run(box: TaskBox) -> None:
    result = jobs.add.enqueue(1, b=2)
    assert result.status == TaskResultStatus.READY
    assert result.enqueued_at is not None
    assert box.run_pending() == 1
    assert jobs.ran == [(1, 2)]
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
    found = jobs.add.get_result(result.id)
    assert (found.args, found.kwargs, found.task.func) == ([1], {"b": 2}, jobs.add.func)


def test_a_failed_task_has_its_error(box: TaskBox) -> None:
    result = jobs.fail.enqueue("no")
    assert backend_of("default").tasks.queue("mail").get(result.id).priority == 9
    box.run_pending()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is ValueError
    assert "ValueError: no" in result.errors[0].traceback
    with pytest.raises(ValueError, match="failed"):
        assert result.return_value


def test_a_finished_result_has_its_attempts_and_times(box: TaskBox) -> None:
    good, bad = jobs.add.enqueue(1, b=2), jobs.fail.enqueue("no")
    box.run_pending()
    for result in (good, bad):
        result.refresh()
        assert (result.attempts, result.worker_ids) == (1, ["run_pending"])
        assert result.started_at == result.last_attempted_at is not None
        assert result.enqueued_at and result.started_at and result.finished_at
        assert result.enqueued_at <= result.started_at <= result.finished_at


def test_an_argument_that_is_not_json_is_refused_with_the_name_of_the_task(box: TaskBox) -> None:
    values: list[Any] = [object(), timezone.now()]
    for wrong in values:
        with pytest.raises(InvalidInput, match=r"argument of task '.*django_jobs.add' is not JSON"):
            jobs.add.enqueue(wrong, b=2)
    assert box.enqueued() == []


def test_a_coroutine_that_takes_the_context(box: TaskBox) -> None:
    result = jobs.who.enqueue()
    box.run_pending()
    result.refresh()
    returned: Any = result.return_value
    assert returned == {"id": result.id, "attempt": 1}


def test_a_task_runs_later() -> None:
    now = timezone.now()
    with in_memory(backend_of("default").tasks, now_s=now.timestamp()) as box:
        result = jobs.add.using(run_after=now + timedelta(days=1)).enqueue(1)
        assert box.run_pending() == 0
        assert box.advance(timedelta(hours=25)) == 1
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL


def test_signals_are_sent(box: TaskBox) -> None:
    seen: list[tuple[str, str]] = []

    def note(name: str) -> Any:
        def receive(sender: Any, task_result: Any, **_: Any) -> None:
            seen.append((name, str(task_result.status)))

        return receive

    receivers = {
        signal: note(name)
        for name, signal in (
            ("enqueued", task_enqueued),
            ("started", task_started),
            ("finished", task_finished),
        )
    }
    for signal, receive in receivers.items():
        signal.connect(receive)
    try:
        jobs.add.enqueue(1)
        jobs.fail.enqueue("no")
        box.run_pending()
    finally:
        for signal, receive in receivers.items():
            signal.disconnect(receive)
    assert seen == [
        *[("enqueued", "READY")] * 2,
        *[("started", "RUNNING"), ("finished", "SUCCESSFUL")],
        *[("started", "RUNNING"), ("finished", "FAILED")],
    ]


def test_wrong_use_is_refused(box: TaskBox) -> None:
    with pytest.raises(InvalidTaskError, match="Queue"):
        jobs.add.using(queue_name="other")
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result("nonsense")
    for params, says in (
        ({"OPTIONS": {"path": "x"}}, "path"),
        ({"QUEUES": []}, "QUEUES is empty"),
        ({"OPTIONS": {"place": "memory:", "max_attempts": 0}}, "max_attempts"),
    ):
        with pytest.raises(ImproperlyConfigured, match=says):
            PenstockBackend("x", params)
