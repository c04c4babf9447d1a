"""Middleware: hooks around publishing and running jobs.

One small protocol for logging, metrics, tracing and context propagation, and for a user's error
reporter or database connections. Hooks are called in order; `around_attempt` of the first is the
outermost.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import InvalidInput
from penstock.tasks.context import Attempt
from penstock.worker import Failed

if TYPE_CHECKING:
    from penstock.tasks.task import AnyTask

log = logging.getLogger("penstock.tasks")
_HOOKS = ("before_enqueue", "around_attempt", "on_done", "on_failed", "on_dead")


@dataclass(slots=True)
class Enqueuing:
    """A job that is about to be published. Headers may be added."""

    task: "AnyTask"
    headers: dict[str, str]


class TaskMiddleware:
    """Derive from it and override some of the hooks. They are plain functions.

    They run where the job runs: in the thread of a function, in the event loop for a coroutine.
    """

    def before_enqueue(self, job: Enqueuing) -> None:
        """Called before a job is published. If it raises, nothing is."""

    def around_attempt(self, attempt: Attempt) -> AbstractContextManager[object]:
        """Return a context manager for the call of the function. It sees what that raises."""
        return nullcontext()

    def on_done(self, attempt: Attempt) -> None:
        """Called when the function returned, before the ack. What it raises is logged."""

    def on_failed(self, attempt: Attempt, error: BaseException) -> None:
        """Called if the attempt failed and the job is tried again. What it raises is logged."""

    def on_dead(self, attempt: Attempt, error: BaseException) -> None:
        """Called if the attempt failed and the job is a dead letter. What it raises is logged."""


class MiddlewareStack:
    """Several middlewares as one. Hooks that are not overridden cost nothing."""

    def __init__(self, middleware: Iterable[TaskMiddleware]) -> None:
        self._all: Sequence[TaskMiddleware] = tuple(middleware)
        for one in self._all:
            if isinstance(one, type) or not isinstance(one, TaskMiddleware):
                raise InvalidInput(
                    f"middleware has {one!r}; it must be an object of a class that derives from "
                    f"penstock.tasks.TaskMiddleware"
                )
        overridden = {
            hook: tuple(
                one
                for one in self._all
                if getattr(type(one), hook) is not getattr(TaskMiddleware, hook)
            )
            for hook in _HOOKS
        }
        self._before, self._around = overridden["before_enqueue"], overridden["around_attempt"]
        self._done, self._failed = overridden["on_done"], overridden["on_failed"]
        self._dead = overridden["on_dead"]

    @property
    def adds_headers(self) -> bool:
        return bool(self._before)

    def headers_of(self, task: "AnyTask", headers: dict[str, str] | None) -> dict[str, str] | None:
        """Return the headers of a job that is about to be published."""
        if not self._before:
            return headers
        job = Enqueuing(task, dict(headers or {}))
        for one in self._before:
            one.before_enqueue(job)
        return job.headers or None

    def around(self, attempt: Attempt) -> AbstractContextManager[object]:
        if not self._around:
            return _NOTHING
        if len(self._around) == 1:
            return self._around[0].around_attempt(attempt)
        stack = ExitStack()
        try:
            for one in self._around:
                stack.enter_context(one.around_attempt(attempt))
        except BaseException:
            stack.close()
            raise
        return stack

    def done(self, attempt: Attempt) -> None:
        for one in self._done:
            try:
                one.on_done(attempt)
            except Exception:
                log.exception("middleware %r: on_done of %s failed", one, attempt.id)

    def failed(self, attempt: Attempt, error: BaseException, failure: Failed) -> None:
        is_dead = failure.dead or attempt.is_last
        for one in self._dead if is_dead else self._failed:
            try:
                (one.on_dead if is_dead else one.on_failed)(attempt, error)
            except Exception:
                log.exception("middleware %r: a hook of %s failed", one, attempt.id)


_NOTHING = nullcontext()
