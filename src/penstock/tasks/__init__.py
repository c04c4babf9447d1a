"""Tasks: functions that are called later, by a worker. A task is a message, a result as well.

>>> from penstock.tasks import Tasks
>>> tasks = Tasks("memory:")
>>> @tasks.task
... def welcome(user_id: int, *, locale: str = "en") -> None:
...     print("hello", user_id, locale)
>>> job = welcome.enqueue(7, locale="de")
>>> tasks.run_pending()
hello 7 de
1
>>> job.state()
'done'
>>> tasks.close()
"""

try:
    import msgspec as _  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "penstock.tasks needs the package 'msgspec', which is not installed; "
        "install Penstock with the extra tasks (pip install '.[tasks]' in its checkout)",
        name="msgspec",
    ) from None

from penstock.tasks.context import Attempt, current
from penstock.tasks.embedding import worker_running, worker_thread
from penstock.tasks.job import Job, JobFailed, NoResult, NotFinished, ResultError
from penstock.tasks.middleware import Enqueuing, TaskMiddleware
from penstock.tasks.options import EnqueueOptions, TaskOptions
from penstock.tasks.outcomes import Discard, GiveUp, Retry
from penstock.tasks.progress import JobProgress
from penstock.tasks.registry import Tasks
from penstock.tasks.reporting import CarryContext, CountJobs, TraceJobs
from penstock.tasks.run import StepState, WorkflowRun
from penstock.tasks.steps import Signature
from penstock.tasks.task import AsyncTask, Task
from penstock.tasks.worker import TasksWorker, TasksWorkerOptions
from penstock.tasks.workflow import Step, Workflow, chain, chord, group

__all__ = [
    "AsyncTask",
    "Attempt",
    "CarryContext",
    "CountJobs",
    "Discard",
    "EnqueueOptions",
    "Enqueuing",
    "GiveUp",
    "Job",
    "JobFailed",
    "JobProgress",
    "NoResult",
    "NotFinished",
    "ResultError",
    "Retry",
    "Signature",
    "Step",
    "StepState",
    "Task",
    "TaskMiddleware",
    "TaskOptions",
    "Tasks",
    "TasksWorker",
    "TasksWorkerOptions",
    "TraceJobs",
    "Workflow",
    "WorkflowRun",
    "chain",
    "chord",
    "current",
    "group",
    "worker_running",
    "worker_thread",
]
