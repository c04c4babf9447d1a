"""Django: a backend of `django.tasks` (Django 6), or of the package `django-tasks` before.

    TASKS = {
        "default": {
            "BACKEND": "penstock.integrations.django.PenstockBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"place": "./data", "keep_result_s": 3600, "max_attempts": 5},
        }
    }

`penstock worker penstock.integrations.django_worker:tasks` runs the jobs.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections
from django.utils.module_loading import import_string

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist as ResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:  # before Django 6
    from django_tasks import TaskContext, TaskResult, TaskResultStatus
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist as ResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

from penstock.clock import SystemClock
from penstock.errors import InvalidInput, NoSuchMessage
from penstock.model import Message
from penstock.queue.facade import AnyQueue
from penstock.tasks import Attempt, NoResult, ResultError, TaskMiddleware, Tasks, current
from penstock.tasks.envelope import unpack

_clock = SystemClock()
_OPTIONS = ("place", "keep_result_s", "max_attempts", "timeout_s", "settings")
_RUNNING = ("leased",)
_FAILED = ("dead", "expired", "cancelled")


class CloseConnections(TaskMiddleware):
    """Closes database connections that are too old or broken, before and after each job."""

    @contextmanager
    def around_attempt(self, attempt: Attempt) -> Iterator[None]:
        close_old_connections()
        try:
            yield
        finally:
            close_old_connections()


class PenstockBackend(BaseTaskBackend):  # type: ignore[misc]
    """Publishes Django's tasks to queues of Penstock, one for each name in QUEUES."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown or not self.queues:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: OPTIONS has {unknown}; it takes {list(_OPTIONS)}"
                if unknown
                else f"TASKS[{alias!r}]: QUEUES is empty; name the queues, as [{'default'!r}]"
            )
        try:
            self.tasks = Tasks(
                options.get("place"),
                middleware=[CloseConnections()],
                **options.get("settings", {}),
            )
            own = {name: options[name] for name in ("max_attempts", "timeout_s") if name in options}
            for queue in sorted(self.queues):
                for kind, function in (("sync", _run), ("async", _run_async)):
                    self.tasks.add(
                        function,
                        name=f"django.{kind}:{queue}",
                        queue=queue,
                        keep_result_s=options.get("keep_result_s", 86400),
                        **own,
                    )
        except InvalidInput as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: {error}") from error

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Publish a call of a task."""
        self.validate_task(task)
        try:
            json.dumps([args, kwargs])
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"an argument of task {task.module_path!r} is not JSON: {error}. Give the primary "
                f"key of a model instead of the object, and text instead of a date"
            ) from None
        kind = "async" if iscoroutinefunction(task.func) else "sync"
        published = self.tasks[f"django.{kind}:{task.queue_name}"].with_options(
            priority=5 + round(task.priority * 4 / 100),  # -100 to 100 becomes 1 to 9
            deliver_at=task.run_after,
        )
        job = published.enqueue(self.alias, task.module_path, list(args), dict(kwargs))
        result = self._result(job.id, task, list(args), dict(kwargs), TaskResultStatus.READY)
        object.__setattr__(result, "enqueued_at", _now())
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the state of a job, and what it returned."""
        for name in sorted(self.queues):
            queue = self.tasks.queue(name)
            try:
                message = queue.get(result_id)
            except (NoSuchMessage, InvalidInput):
                continue
            found = self._found(queue, name, message)
            if found is not None:
                return found
        raise ResultDoesNotExist(result_id)

    def _found(self, queue: AnyQueue, name: str, message: Message) -> Any:
        envelope = unpack(message.payload)
        runs = None if envelope is None else self.tasks.get(envelope.task)
        if envelope is None or runs is None:
            return None
        _, path, args, kwargs = runs.arguments.decode(envelope.args)[0]
        task = import_string(path).using(queue_name=name)
        job, info = runs.job(message.id), queue.retry_info(message.id)
        result = self._result(message.id, task, args, kwargs, _status(info.state))
        values: dict[str, Any] = {"enqueued_at": datetime.fromtimestamp(message.published_at, UTC)}
        history = queue.history(message.id)
        attempts = [event for event in history if event.event == "leased"]
        if attempts:
            values["started_at"] = datetime.fromtimestamp(attempts[0].at, UTC)
            values["last_attempted_at"] = datetime.fromtimestamp(attempts[-1].at, UTC)
            # One for each attempt: Django counts them.
            result.worker_ids.extend(event.holder or "penstock" for event in attempts)
        if result.status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED):
            values["finished_at"] = datetime.fromtimestamp(history[-1].at, UTC)
        if info.last_failure_at is not None:
            result.errors.append(_error(info.reason))
        if result.status == TaskResultStatus.SUCCESSFUL:
            try:
                values["_return_value"] = job.result()
            except NoResult:
                pass  # not kept that long
            except ResultError:  # cancelled
                values["status"] = TaskResultStatus.FAILED
        for field, value in values.items():
            object.__setattr__(result, field, value)
        return result

    def _result(self, id: str, task: Any, args: Any, kwargs: Any, status: Any) -> Any:
        return TaskResult(
            task=task,
            id=id,
            status=status,
            enqueued_at=None,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    def running(self, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of the job that runs now."""
        attempt = current()
        task = import_string(path).using(queue_name=attempt.task.options.queue)
        result = self._result(attempt.id, task, args, kwargs, TaskResultStatus.RUNNING)
        now = _now()
        published = datetime.fromtimestamp(attempt.message.published_at, UTC)
        for field, value in (
            ("enqueued_at", published),
            ("started_at", now),
            ("last_attempted_at", now),
        ):
            object.__setattr__(result, field, value)
        # One for each attempt: Django counts them.
        result.worker_ids.extend(["penstock"] * attempt.number)
        return result


def _now() -> datetime:
    return datetime.fromtimestamp(_clock.now_ns() / 1e9, UTC)


def _status(state: str) -> Any:
    if state in _RUNNING:
        return TaskResultStatus.RUNNING
    if state in _FAILED:
        return TaskResultStatus.FAILED
    return TaskResultStatus.SUCCESSFUL if state == "done" else TaskResultStatus.READY


def _error(reason: str) -> Any:
    name = reason.partition("\n")[0].partition(":")[0]
    path = name if "." in name else f"builtins.{name}"
    return TaskError(exception_class_path=path, traceback=reason)


# -- in the worker ---------------------------------------------------------------------------------


def backend_of(alias: str) -> PenstockBackend:
    """Return a backend of Django by its alias in the settings."""
    try:
        from django.tasks import task_backends
    except ImportError:
        from django_tasks import task_backends
    backend = task_backends[alias]
    assert isinstance(backend, PenstockBackend)
    return backend


@contextmanager
def _reported(alias: str, path: str, args: list[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Send Django's signals around a job."""
    backend = backend_of(alias)
    result = backend.running(path, args, kwargs)
    task_started.send(type(backend), task_result=result)
    status = TaskResultStatus.FAILED
    try:
        yield result
        status = TaskResultStatus.SUCCESSFUL
    finally:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", _now())
        task_finished.send(type(backend), task_result=result)


def _arguments_of(result: Any, args: list[Any]) -> list[Any]:
    return [TaskContext(task_result=result), *args] if result.task.takes_context else args


def _run(alias: str, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    with _reported(alias, path, args, kwargs) as result:
        return result.task.func(*_arguments_of(result, args), **kwargs)


async def _run_async(alias: str, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    with _reported(alias, path, args, kwargs) as result:
        return await result.task.func(*_arguments_of(result, args), **kwargs)
