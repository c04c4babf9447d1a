"""A box for the tasks of a test: their queues are in memory, and time passes when it is told to.

It is the real core of the queues, on files in memory. So retries, delays, unique jobs, results and
dead letters are those of production.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock.checking import Duration, as_seconds, check_number
from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.model import Message, NewMessage
from penstock.queue.facade import AnyQueue
from penstock.tasks.envelope import unpack
from penstock.tasks.job import Job
from penstock.tasks.pending import arun_pending, run_next, run_pending
from penstock.tasks.places import Memory
from penstock.tasks.registry import Tasks
from penstock.tasks.task import AnyTask

_LONGEST_S = 10 * 365 * 86400.0
_MAX_JOBS = 1_000_000
_MAX_SHOWN = 20


class EnqueuedJob(NamedTuple):
    """A job that is not done."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    state: str
    message: Message


class TaskBox:
    """The tasks of one test. Made by `in_memory`."""

    def __init__(self, tasks: Tasks, clock: ManualClock) -> None:
        self.tasks = tasks
        self.clock = clock

    def queue(self, name: str) -> AnyQueue:
        """Return a queue of the tasks, in memory."""
        return self.tasks.queue(name)

    # -- running -----------------------------------------------------------------------------------

    def run_pending(self, *, limit: int = 10_000) -> int:
        """Run jobs that are ready, in this thread, until none is left. Return their number."""
        return run_pending(self.tasks, limit)

    async def arun_pending(self, *, limit: int = 10_000) -> int:
        """Do the same in an event loop: coroutines run in it, functions in threads."""
        return await arun_pending(self.tasks, limit)

    def run_next(self, task: AnyTask) -> bool:
        """Run the next job of the queue of a task. Return False if none is ready."""
        return run_next(self.tasks, task.options.queue)

    def advance(self, duration: Duration) -> int:
        """Let time pass, and run each job when it is due. Return the number of jobs."""
        left_s = check_number("duration", as_seconds(duration), 0, _LONGEST_S)
        count = self.run_pending()
        while left_s > 0:
            step_s = min(left_s, self._next_due_s(left_s))
            self.clock.advance(step_s)
            left_s -= step_s
            count += self.run_pending()
        return count

    def _next_due_s(self, most_s: float) -> float:
        """Return the seconds until the next job or tick is due.

        What is due already cannot run now.
        """
        now_ns, found_ns = self.clock.now_ns(), round(most_s * 1e9)
        for job in self._not_done("scheduled"):
            info = self.tasks.queue(self.tasks[job.task].options.queue).retry_info(job.message.id)
            due_ns = info.next_attempt_ns or job.message.deliver_at_ns
            if due_ns > now_ns:
                found_ns = min(found_ns, due_ns - now_ns)
        for name in self.tasks.queue_names:
            for schedule in self.tasks.queue(name).schedules():
                if schedule.next_ns > now_ns:
                    found_ns = min(found_ns, schedule.next_ns - now_ns)
        return found_ns / 1e9

    # -- looking -----------------------------------------------------------------------------------

    def enqueued(self, task: AnyTask | None = None) -> list[EnqueuedJob]:
        """Return the jobs that are not done, of one task or of all, in the order of enqueuing."""
        return [job for job in self._not_done(None) if task is None or job.task == task.name]

    def _not_done(self, state: str | None) -> Iterator[EnqueuedJob]:
        for name in self.tasks.queue_names:
            queue = self.tasks.queue(name)
            for count, message in enumerate(queue.browse(state)):
                if count >= _MAX_JOBS:
                    raise InvalidInput(f"there are more than {_MAX_JOBS} jobs in queue {name!r}")
                envelope = unpack(message.payload)
                task = None if envelope is None else self.tasks.get(envelope.task)
                if envelope is None or task is None:
                    continue  # a result, or no task
                args, kwargs = task.arguments.decode(envelope.args)
                yield EnqueuedJob(task.name, args, kwargs, queue.state(message.id), message)

    def assert_enqueued(self, task: AnyTask, *args: Any, **kwargs: Any) -> EnqueuedJob:
        """Return the one job of a task with these arguments that is not done.

        Raise AssertionError if there is none, or more than one.
        """
        wanted = task.arguments.decode(task.arguments.encode(args, kwargs))
        found = self.enqueued(task)
        same = [job for job in found if (job.args, job.kwargs) == wanted]
        if len(same) != 1:
            raise AssertionError(
                f"{len(same) or 'no'} jobs {_call(task.name, *wanted)} are enqueued, not one; "
                f"{_listed(found)}"
            )
        return same[0]

    def assert_not_enqueued(self, task: AnyTask) -> None:
        """Raise AssertionError if a job of a task is not done."""
        found = self.enqueued(task)
        if found:
            raise AssertionError(f"jobs of {task.name} are enqueued: {_listed(found)}")

    # -- inline ------------------------------------------------------------------------------------

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Run each job when it is enqueued, within a block. What it raises, `enqueue` raises.

        Delays are ignored, and nothing is tried again.
        """
        before, self.tasks.inline = self.tasks.inline, self._run_now
        try:
            yield
        finally:
            self.tasks.inline = before

    def _run_now(self, task: AnyTask, message: NewMessage) -> Job[Any]:
        from penstock.testing.inline import run_inline  # it imports this package

        return run_inline(self.tasks, task, message)


@contextmanager
def in_memory(
    tasks: Tasks, *, now_s: float = 1_700_000_000.0, **settings: object
) -> Iterator[TaskBox]:
    """Put tasks into a box for a block: queues in memory, at a time that stands still.

    Settings are those of a queue, such as `max_attempts`.
    """
    if not isinstance(tasks, Tasks):
        raise InvalidInput(f"tasks is {tasks!r}; it must be a penstock.tasks.Tasks")
    clock = ManualClock(now_s=now_s)
    with tasks.at(Memory({"backoff_jitter": 0.0, **settings}, clock)):
        yield TaskBox(tasks, clock)


def _call(name: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    given = [*(repr(one) for one in args), *(f"{name}={one!r}" for name, one in kwargs.items())]
    return f"{name}({', '.join(given)})"


def _listed(found: list[EnqueuedJob]) -> str:
    if not found:
        return "there are no jobs of this task"
    shown = [_call(job.task, job.args, job.kwargs) for job in found[:_MAX_SHOWN]]
    more = f" and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
    return f"there are: {', '.join(shown)}{more}"
