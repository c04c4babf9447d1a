"""A workflow that was enqueued: its steps and their states, its results, cancel and retry."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.checking import Duration
from penstock.errors import InvalidInput, NoSuchMessage
from penstock.queue.facade import AnyQueue
from penstock.tasks.arguments import Arguments
from penstock.tasks.envelope import Plan
from penstock.tasks.job import Job, how_it_ended
from penstock.tasks.steps import flow_id, result_id, step_id

if TYPE_CHECKING:
    from penstock.tasks.registry import Tasks

_plan_decoder = msgspec.json.Decoder(Plan)
_ENDED = ("done", "expired", "cancelled")


class StepState(NamedTuple):
    """A step of a workflow as it is now."""

    name: str
    task: str
    after: list[str]
    id: str  # of its message
    state: str
    reason: str  # of a failure; empty if it is done, expired or cancelled


def read_plan(queue: AnyQueue, flow: str) -> Plan:
    """Return the plan of a workflow. Raise NoSuchMessage if it is not kept any more."""
    found = None if "/" in flow else queue.find(flow_id(flow))  # `a/b` is a step of `a`
    if found is None:
        raise NoSuchMessage(
            f"there is no workflow {flow!r} in this queue: it was never enqueued, or its time is "
            f"over"
        )
    return _plan_decoder.decode(queue.get(found).payload)


def read_steps(queue: AnyQueue, flow: str) -> list[StepState]:
    """Return the steps of a workflow with their states, in the order of its plan."""
    found = []
    for step in read_plan(queue, flow).steps:
        id_ = queue.find(step_id(flow, step.name)) or ""
        try:
            state = queue.state(id_) if id_ else "done"
            if id_ and state == "done" and queue.find(result_id(flow, step.name)) is None:
                state = how_it_ended(queue, id_)
            # Of what has ended, the event log alone knows the reason: too slow for many steps.
            reason = "" if state in _ENDED else queue.retry_info(id_).reason.partition("\n")[0]
        except NoSuchMessage:  # removed by compaction, which keeps what is not done
            state, reason = "done", ""
        found.append(StepState(step.name, step.task, list(step.after), id_, state, reason))
    return found


class WorkflowRun:
    """One workflow that was enqueued. `tasks.workflow(id)` finds it by its id."""

    def __init__(
        self, tasks: "Tasks", queue_name: str, id: str, *, is_duplicate: bool = False
    ) -> None:
        self._tasks = tasks
        self.queue_name = queue_name
        self.id = id
        self.is_duplicate = is_duplicate  # an earlier workflow with this id stands for it

    def __repr__(self) -> str:
        return f"<WorkflowRun {self.id} in {self.queue_name}>"

    @property
    def _queue(self) -> AnyQueue:
        return self._tasks.queue(self.queue_name)

    def steps(self) -> list[StepState]:
        """Return the steps with their states."""
        return read_steps(self._queue, self.id)

    def states(self) -> Mapping[str, str]:
        """Return the state of each step by its name."""
        return {step.name: step.state for step in self.steps()}

    def state(self) -> str:
        """Return `running`, `done`, or `failed` if steps are dead and no other can run."""
        states = set(self.states().values())
        if states <= {"done"}:
            return "done"
        return "running" if states - {"dead", *_ENDED} else "failed"

    def job(self, step: str) -> Job[Any]:
        """Return the job of a step."""
        planned = {one.name: one for one in read_plan(self._queue, self.id).steps}
        if step not in planned:
            raise InvalidInput(f"workflow {self.id!r} has no step {step!r}; it has {[*planned]}")
        id_ = self._queue.find(step_id(self.id, step)) or ""
        task = self._tasks.get(planned[step].task)
        arguments: Arguments | None = None if task is None else task.arguments
        key = result_id(self.id, step)
        return Job(self._tasks, self.queue_name, id_, arguments, result_key=key)

    def result(self, step: str | None = None, wait_s: Duration = 0) -> Any:
        """Return the result of a step, of the last one by default; wait for it up to `wait_s`."""
        if step is None:
            step = read_plan(self._queue, self.id).steps[-1].name
        return self.job(step).result(wait_s)

    def results(self, wait_s: Duration = 0) -> dict[str, Any]:
        """Return the results of all steps by name."""
        names = [step.name for step in read_plan(self._queue, self.id).steps]
        return {name: self.job(name).result(wait_s) for name in names}

    def cancel(self) -> int:
        """Cancel every step that is not done. Return their number."""
        # From the end: a step whose predecessor is cancelled would be dead before its turn.
        steps = [step for step in reversed(self.steps()) if step.state not in _ENDED and step.id]
        return sum(self._queue.cancel(step.id) for step in steps)

    def retry(self) -> int:
        """Try failed steps again; those that wait for them follow. Return the number of steps."""
        dead = [step for step in self.steps() if step.state == "dead"]
        names = {step.name for step in dead}
        first = [step.id for step in dead if not names & set(step.after)]
        return self._queue.redrive(first) if first else 0
