"""Run the message of a task: read it, call the function, and say what happens to it."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage
from penstock.queue.facade import AnyQueue
from penstock.queue.handlers import check_done
from penstock.tasks.arguments import UnknownArgument, Unreadable
from penstock.tasks.context import Attempt, reset_current, set_current
from penstock.tasks.envelope import VERSION, Envelope, unpack
from penstock.tasks.middleware import MiddlewareStack
from penstock.tasks.outcomes import Discard, GiveUp, Retry, failure_of
from penstock.tasks.progress import Report
from penstock.tasks.results import done_with
from penstock.tasks.steps import fill_in, result_id
from penstock.tasks.task import RunnableTask
from penstock.worker import Done, Failed, TimeLimitExceeded
from penstock.worker.outcomes import error_text
from penstock.worker.settling import HandedBack, LeaseLost

log = logging.getLogger("penstock.tasks")

_clock = SystemClock()


class Runner:
    """Runs the messages of one queue: a handler of a worker, in threads and as tasks."""

    def __init__(
        self,
        tasks: Mapping[str, RunnableTask],
        middleware: MiddlewareStack,
        queue_name: str,
        queue_max_attempts: int | None,
        queue_of: Callable[[str], AnyQueue] | None,
        report: Report | None = None,
    ) -> None:
        """`queue_of` returns queues, for the results that steps take. None: they are filled in.

        `report` takes the progress of jobs.
        """
        self._report = report
        self._queue_of = queue_of
        self._tasks = tasks
        self._middleware = middleware
        self._queue_name = queue_name
        self._queue_max_attempts = queue_max_attempts

    def is_async(self, message: LeasedMessage) -> bool:
        """Return whether the task of a message is a coroutine function."""
        task = self._task_of(unpack(message.payload))
        return task is not None and task.is_async

    def time_limit_s(self, message: LeasedMessage) -> float | None:
        """Return the time limit of a function. A coroutine has one of its own."""
        task = self._task_of(unpack(message.payload))
        return None if task is None or task.is_async else task.options.timeout_s

    def time_limit_of_any(self, message: LeasedMessage) -> float | None:
        """Return the time limit of a function or coroutine that runs in a child process."""
        task = self._task_of(unpack(message.payload))
        return None if task is None else task.options.timeout_s

    def call(self, message: LeasedMessage) -> Done | None:
        """Run a function. Return the outcome, or raise Failed."""
        attempt = self._attempt(self.filled_in(message))
        if attempt is None:
            return None
        began_ns = _clock.monotonic_ns()
        token = set_current(attempt)
        value, raised = None, None
        try:
            with self._middleware.around(attempt):
                try:
                    value = attempt.task.function(*attempt.args, **attempt.kwargs)
                    _check_done(attempt, value)
                except BaseException as error:
                    raised = error  # also if a middleware swallows it
                    raise
        except BaseException as error:
            raised = error
        finally:
            reset_current(token)
        if raised is None:
            return self._returned(attempt, value, began_ns)
        is_in_main = threading.current_thread() is threading.main_thread()
        if isinstance(raised, KeyboardInterrupt) and is_in_main and self._queue_of is not None:
            raise raised  # Ctrl-C in `run_pending`; a child ignores it, so there the job raised it
        self._raised(attempt, raised, began_ns)
        return None

    async def call_async(self, message: LeasedMessage) -> Done | None:
        """Run a coroutine function. Return the outcome, or raise Failed."""
        if b'"inputs"' in message.payload:
            message = await asyncio.to_thread(self.filled_in, message)
        attempt = self._attempt(message)
        if attempt is None:
            return None
        began_ns = _clock.monotonic_ns()
        token = set_current(attempt)
        value, raised = None, None
        limit = asyncio.timeout(attempt.task.options.timeout_s)
        try:
            with self._middleware.around(attempt):
                try:
                    async with limit:
                        value = await attempt.task.function(*attempt.args, **attempt.kwargs)
                    _check_done(attempt, value)
                except BaseException as error:
                    raised = error  # also if a middleware swallows it
                    raise
        except BaseException as error:
            raised = error
        finally:
            reset_current(token)
        if raised is None:
            return self._returned(attempt, value, began_ns)
        this = asyncio.current_task()
        if isinstance(raised, asyncio.CancelledError) and this is not None and this.cancelling():
            raise raised  # a stop or a lost lease; else the job raised it itself
        if isinstance(raised, TimeoutError) and limit.expired():
            raised = TimeLimitExceeded().with_traceback(raised.__traceback__)
        self._raised(attempt, raised, began_ns)
        return None

    def failed(self, message: LeasedMessage, error: Exception) -> Failed:
        """Return the outcome of an attempt that ended without one: its process is gone."""
        try:
            attempt = self._attempt(message)
            if attempt is not None:
                self._raised(attempt, error, _clock.monotonic_ns())
        except Failed as failed:
            return failed
        return Failed(error_text(error))

    # -- reading -----------------------------------------------------------------------------------

    def _task_of(self, envelope: Envelope | None) -> RunnableTask | None:
        return None if envelope is None else self._tasks.get(envelope.task)

    def filled_in(self, message: LeasedMessage) -> LeasedMessage:
        """Return a message with the results among its arguments. Raise Failed if one is missing."""
        if self._queue_of is None or b'"inputs"' not in message.payload:
            return message
        try:
            payload = fill_in(message.payload, self._queue_name, self._queue_of)
        except Unreadable as error:
            raise _refused(message, str(error), dead=True) from None
        return message._replace(message=message.message._replace(payload=payload))

    def _attempt(self, message: LeasedMessage) -> Attempt | None:
        """Return the attempt that a message asks for; None for a result or plan that has expired.

        Raise Failed if it cannot be read: a dead letter, unless another worker may know more.
        """
        envelope = unpack(message.payload)
        if envelope is None or not (envelope.task or envelope.result_of or envelope.plan_of):
            raise _refused(message, "this message is not the call of a task", dead=True)
        if envelope.v > VERSION:
            raise _refused(
                message,
                f"the message has version {envelope.v}, and this worker reads {VERSION}: a newer "
                f"worker may run it",
            )
        if envelope.result_of or envelope.plan_of:
            return None
        task = self._tasks.get(envelope.task)
        if task is None:
            raise _refused(
                message,
                f"this worker has no task {envelope.task!r} in queue {self._queue_name!r}: another "
                f"one may have it",
            )
        try:
            args, kwargs = task.arguments.decode(envelope.args)
        except Unreadable as error:
            raise _refused(message, str(error), dead=True) from None
        except UnknownArgument as error:
            raise _refused(message, str(error)) from None
        most = message.message.max_attempts or self._queue_max_attempts
        key = result_id(envelope.flow.id, envelope.flow.step) if envelope.flow else ""
        return Attempt(task, message, args, kwargs, most, envelope.keep_s, key, report=self._report)

    # -- outcomes ----------------------------------------------------------------------------------

    def _returned(self, attempt: Attempt, value: Any, began_ns: int) -> Done | None:
        self._log(attempt, "done", began_ns)
        self._middleware.done(attempt)
        return done_with(attempt, value)

    def _raised(self, attempt: Attempt, error: BaseException, began_ns: int) -> None:
        """Return for a job that is done nevertheless; else raise Failed."""
        if isinstance(error, HandedBack | LeaseLost):
            raise error  # of the worker: there is no outcome
        if isinstance(error, Discard):
            self._log(attempt, f"discarded ({error_text(error)})", began_ns)
            self._middleware.done(attempt)
            return
        options = attempt.task.options
        if isinstance(error, TimeLimitExceeded) and not str(error):
            limit = f"not done within {options.timeout_s:g} s" if options.timeout_s else ""
            error = TimeLimitExceeded(limit).with_traceback(error.__traceback__)
        failure = failure_of(error, options, attempt.number)
        is_dead = failure.dead or attempt.is_last
        log.log(
            logging.ERROR if is_dead else logging.WARNING,
            "%s %s failed, attempt %d of %s%s: %s",
            attempt.task.name,
            attempt.id,
            attempt.number,
            attempt.max_attempts or "?",
            "; it is a dead letter" if is_dead else "",
            failure.reason.partition("\n")[0],
            exc_info=None if isinstance(error, Retry | GiveUp) else error,
        )
        self._middleware.failed(attempt, error, failure)
        raise failure from error

    def _log(self, attempt: Attempt, outcome: str, began_ns: int) -> None:
        if log.isEnabledFor(logging.DEBUG):
            took_s = (_clock.monotonic_ns() - began_ns) / 1e9
            log.debug(
                "%s %s %s in %.3f s, attempt %d",
                attempt.task.name,
                attempt.id,
                outcome,
                took_s,
                attempt.number,
            )


def _check_done(attempt: Attempt, value: object) -> None:
    """Raise GiveUp if a function returned a coroutine or generator: its work has not run."""
    try:
        check_done(value)
    except InvalidInput:
        raise GiveUp(
            f"the function of task {attempt.task.name!r} returned a {type(value).__name__}, which "
            f"was not run. A decorator below @tasks.task that makes a plain function of a "
            f"coroutine function does that: make it a coroutine function too"
        ) from None


def _refused(message: LeasedMessage, reason: str, *, dead: bool = False) -> Failed:
    log.error("message %s was not run: %s", message.id, reason)
    return Failed(reason, dead=dead)
