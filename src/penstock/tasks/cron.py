"""Tasks that run again and again: their schedules are on record in the queue.

A worker puts the schedules of its tasks when it starts. The same again changes nothing. Each tick
is one job, over restarts and kills: the queue publishes it, see `queue.firing`.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock.checking import Duration
from penstock.errors import InvalidInput
from penstock.names import is_name
from penstock.operations.scheduling import Schedule, ScheduleState
from penstock.queue.schedule_times import times_of

if TYPE_CHECKING:
    from penstock.tasks.registry import Tasks
    from penstock.tasks.task import RunnableTask

_PREFIX = "task."


@dataclass(frozen=True, slots=True)
class TaskSchedule:
    """When a task runs by itself."""

    task: "RunnableTask"
    schedule: Schedule

    @classmethod
    def of(
        cls,
        task: "RunnableTask",
        *,
        cron: str | None,
        every_s: Duration | None,
        time_zone: str | None,
        misfire: str,
    ) -> "TaskSchedule":
        """Return the schedule of a task. Raise InvalidInput if it cannot run by itself."""
        if task.options.unique_for_s is not None:
            raise InvalidInput(
                f"task {task.name!r} runs by a schedule: leave unique_for_s out, each tick is one "
                f"job already"
            )
        try:
            encoded = task.arguments.encode((), {})
        except TypeError as error:
            raise InvalidInput(
                f"task {task.name!r} runs by a schedule, so all its parameters need defaults: "
                f"{error}"
            ) from None
        if not is_name("schedule", f"{_PREFIX}{task.name}"):
            raise InvalidInput(
                f"task {task.name!r} runs by a schedule, so its name has at most 59 characters "
                f"and no ':', and does not end with '.': give another name="
            )
        timing: Any = {"cron": cron, "every_s": every_s, "time_zone": time_zone}
        message = task.message_of(encoded)
        try:
            schedule = Schedule(f"{_PREFIX}{task.name}", message, misfire=misfire, **timing)
            if every_s is not None or find_spec("cronsim") is not None:
                times_of(schedule, 0)  # else the process that has the queue refuses what is wrong
        except InvalidInput as error:
            raise InvalidInput(f"task {task.name!r}: {error}") from None
        return cls(task, schedule)


def put_schedules(tasks: "Tasks") -> list[ScheduleState]:
    """Put the schedules of all tasks on record, each in the queue of its task."""
    return [
        tasks.queue(one.task.options.queue).put_schedule(one.schedule) for one in tasks.schedules
    ]
