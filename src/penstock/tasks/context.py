"""What a running function can ask about its own job: `current()`."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.checking import check_number
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage
from penstock.queue.progress import check_progress

if TYPE_CHECKING:
    from penstock.tasks.progress import Report
    from penstock.tasks.task import RunnableTask

_current: ContextVar["Attempt"] = ContextVar("penstock task attempt")


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of a job: what middleware is given, and what `current()` returns."""

    task: "RunnableTask"
    message: LeasedMessage
    args: list[Any]
    kwargs: dict[str, Any]
    max_attempts: int | None  # None: the worker may not read the queue's settings
    keep_result_s: float = 0.0
    result_key: str = ""  # of a step of a workflow: the dedup id of its result
    notes: dict[str, Any] = field(default_factory=dict)  # of middleware, for this attempt
    report: "Report | None" = None  # None: nothing takes reports, as in inline mode

    @property
    def id(self) -> str:
        """The id of the job, the same in every attempt."""
        return self.message.id

    @property
    def number(self) -> int:
        """The number of this attempt, from 1."""
        return self.message.attempt

    @property
    def is_last(self) -> bool:
        """Is the job a dead letter if this attempt fails?"""
        return self.max_attempts is not None and self.number >= self.max_attempts

    def progress(self, share: float, note: str = "") -> None:
        """Say how far the job is: a share of its work from 0 to 1, and a note.

        It renews the lease. `job.progress()`, `why` and the dashboard show the newest report, at
        most two a second. A note is cut at 500 characters.
        """
        said = check_progress(check_number("share", share, 0, 1), note)
        if self.report is not None and said is not None:
            self.report(self.message, said)


def current() -> Attempt:
    """Return the attempt that the calling function runs in.

    Raise InvalidInput outside of a job: a task that is called like a function has none.
    """
    try:
        return _current.get()
    except LookupError:
        raise InvalidInput(
            "there is no current job: current() works inside a task that a worker runs"
        ) from None


def set_current(attempt: Attempt) -> Any:
    return _current.set(attempt)


def reset_current(token: Any) -> None:
    _current.reset(token)
