"""Outcomes of a task that its function chooses by raising, and by the type of what it raised."""

import traceback
from typing import TYPE_CHECKING

from penstock.checking import Duration, check_seconds
from penstock.queue.settings import YEARS_S
from penstock.tasks.arguments import Unreadable
from penstock.worker import Failed, TimeLimitExceeded
from penstock.worker.outcomes import error_text

if TYPE_CHECKING:
    from penstock.tasks.options import TaskOptions

_MAX_REASON_CHARS = 4000
_MAX_FIRST_LINE_CHARS = 1000
# Raised if `timeout_s` is over: in a thread, in a coroutine.
TIMEOUTS = (TimeLimitExceeded, TimeoutError)


class Retry(Exception):
    """Raise it to try again after `delay`, or after the task's backoff. It uses an attempt.

    >>> from datetime import timedelta
    >>> raise Retry("the printer is busy", delay=timedelta(minutes=5))
    Traceback (most recent call last):
        ...
    penstock.tasks.outcomes.Retry: the printer is busy
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.delay_s = None if delay is None else check_seconds("delay", delay, 0, YEARS_S)


class GiveUp(Exception):
    """Raise it if another attempt makes no sense: the job is a dead letter at once."""


class Discard(Exception):
    """Raise it if there is nothing to do any more: the job is done, and has no result."""


def failure_of(error: BaseException, options: "TaskOptions", attempt: int) -> Failed:
    """Return how an attempt that raised is settled."""
    reason = reason_of(error)
    if isinstance(error, Retry):
        delay_s = options.backoff_delay_s(attempt) if error.delay_s is None else error.delay_s
        return Failed(reason, delay_s=delay_s)
    if isinstance(error, (GiveUp, Unreadable, *options.dead_on)):
        return Failed(reason, dead=True)
    if options.retry_on and not isinstance(error, (*options.retry_on, *TIMEOUTS)):
        return Failed(reason, dead=True)
    return Failed(reason, delay_s=options.backoff_delay_s(attempt))


def reason_of(error: BaseException) -> str:
    """Return the error in a line, and below it where it was raised: at most 4,000 characters."""
    name = type(error).__qualname__
    module = type(error).__module__
    if module not in ("builtins", "__main__") and not module.startswith("penstock."):
        name = f"{module}.{name}"  # as Python prints it
    first = error_text(error, name).replace("\n", " ")[:_MAX_FIRST_LINE_CHARS]
    if isinstance(error, Retry | GiveUp | Unreadable):
        return first
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/penstock/tasks/" not in frame.filename
    ]
    where = "".join(traceback.format_list(frames)).rstrip()
    return f"{first}\n{where}"[:_MAX_REASON_CHARS] if where else first


__all__ = ["Discard", "GiveUp", "Retry", "failure_of", "reason_of"]
