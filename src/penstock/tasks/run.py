"""A workflow that was enqueued: its steps and their states, its results, cancel and retry."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.checking import Duration
from penstock.errors import InvalidInput, NoSuchMessage, NoSuchQueue
from penstock.queue.facade import AnyQueue
from penstock.tasks.arguments import Arguments
from penstock.tasks.ending import FORGOTTEN, End, how_it_ended, how_removed_ones_ended
from penstock.tasks.envelope import Plan, PlannedStep
from penstock.tasks.job import Job
from penstock.tasks.steps import flow_id, gate_id, result_id, step_id

if TYPE_CHECKING:
    from penstock.tasks.registry import Tasks

_plan_decoder = msgspec.json.Decoder(Plan)
_ENDED = ("done", "expired", "cancelled", FORGOTTEN)


class StepState(NamedTuple):
    """A step of a workflow as it is now."""

    name: str
    task: str
    after: list[str]
    id: str  # of its message
    state: str
    reason: str  # of a failure; empty if the state says it
    queue: str = ""


def read_plan(queue: AnyQueue, flow: str) -> Plan:
    """Return the plan of a workflow. Raise NoSuchMessage if it is not kept any more."""
    found = None if "/" in flow else queue.find(flow_id(flow))  # `a/b` is a step of `a`
    if found is None:
        raise NoSuchMessage(
            f"there is no workflow {flow!r} in this queue: it was never enqueued, or its time is "
            f"over"
        )
    return _plan_decoder.decode(queue.get(found).payload)


def read_steps(queue_of: Callable[[str], AnyQueue], home: str, flow: str) -> list[StepState]:
    """Return the steps of a workflow with their states, in the order of its plan.

    `home` is the queue of its first step; `queue_of` returns a queue by its name.
    """
    plan = read_plan(queue_of(home), flow)
    gate_end = _end_of_gate(queue_of(home), plan)
    found, removed = [], dict[str, list[str]]()
    for step in plan.steps:
        own = step.queue or home
        id_ = _find(queue_of(own), step_id(flow, step.name)) or ""
        has_result = partial(_has_result, queue_of(own), flow, step.name)
        end: End | None
        if id_:
            end = _end_of_step(queue_of(own), id_, has_result)
        elif gate_end.state == "done":  # so long ago that its id is forgotten
            end = End("done" if has_result() else FORGOTTEN)
        else:
            end = gate_end
        if end is None:
            removed.setdefault(own, []).append(id_)
            end = End("")
        found.append(StepState(step.name, step.task, list(step.after), id_, *end, own))
    if not removed:
        return found
    ends = {
        id_: end
        for name, ids in removed.items()
        for id_, end in how_removed_ones_ended(queue_of(name), ids).items()
    }
    return [
        one if one.state else one._replace(state=ends[one.id].state, reason=ends[one.id].reason)
        for one in found
    ]


def _end_of_step(queue: AnyQueue, id_: str, has_result: Callable[[], bool]) -> End | None:
    """Return the state of a step, also of one that has not ended, and why it failed.

    None: compaction has removed it, so it has ended, and has no result.
    """
    try:
        state = queue.state(id_)
        if state == "done":
            return End("done") if has_result() else how_it_ended(queue, id_)
        # Of what has ended, the event log alone knows the reason: too slow for many steps.
        is_known = state in _ENDED
        return End(state, "" if is_known else queue.retry_info(id_).reason.partition("\n")[0])
    except NoSuchMessage:
        return End("done") if has_result() else None


def _has_result(queue: AnyQueue, flow: str, step: str) -> bool:
    return _find(queue, result_id(flow, step)) is not None


def _find(queue: AnyQueue, dedup_id: str) -> str | None:
    try:
        return queue.find(dedup_id)
    except NoSuchQueue:  # its first message is not published yet
        return None


def is_closed(home: AnyQueue, gate: str) -> bool:
    """Return whether a gate is closed: not opened, and neither cancelled nor expired."""
    try:
        return home.state(gate) == "scheduled"
    except NoSuchMessage:  # compaction keeps what is not done
        return False


def _end_of_gate(home: AnyQueue, plan: Plan) -> End:
    """Return the state of steps whose messages were not published; done: all were."""
    gate = home.find(gate_id(plan.plan_of)) if plan.digest else None
    if gate is None:
        return End("done")
    if is_closed(home, gate):
        return End("blocked")  # the workflow is not published as a whole yet
    try:
        state = how_it_ended(home, gate).state
    except NoSuchMessage:
        state = how_removed_ones_ended(home, [gate])[gate].state
    return End(state if state in ("done", FORGOTTEN) else "cancelled")


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
        return read_steps(self._tasks.queue, self.queue_name, self.id)

    def states(self) -> Mapping[str, str]:
        """Return the state of each step by its name."""
        return {step.name: step.state for step in self.steps()}

    def state(self) -> str:
        """Return `running`, `done`, or `failed` if steps are dead and no other can run.

        `forgotten`: all steps have ended, and of some it is not known any more how.
        """
        states = set(self.states().values())
        if states <= {"done"}:
            return "done"
        if states <= {"done", FORGOTTEN}:
            return FORGOTTEN
        return "running" if states - {"dead", *_ENDED} else "failed"

    def job(self, step: str) -> Job[Any]:
        """Return the job of a step."""
        planned = {one.name: one for one in read_plan(self._queue, self.id).steps}
        if step not in planned:
            raise InvalidInput(f"workflow {self.id!r} has no step {step!r}; it has {[*planned]}")
        return self._job_of(planned[step])

    def _job_of(self, step: PlannedStep) -> Job[Any]:
        queue = step.queue or self.queue_name
        id_ = _find(self._tasks.queue(queue), step_id(self.id, step.name))
        if id_ is None:
            raise NoSuchMessage(
                f"step {step.name!r} of workflow {self.id!r} is not published yet, or was forgotten"
            )
        task = self._tasks.get(step.task)
        arguments: Arguments | None = None if task is None else task.arguments
        key = result_id(self.id, step.name)
        return Job(self._tasks, queue, id_, arguments, result_key=key)

    def result(self, step: str | None = None, wait_s: Duration = 0) -> Any:
        """Return the result of a step, of the last one by default; wait for it up to `wait_s`."""
        if step is None:
            return self._job_of(read_plan(self._queue, self.id).steps[-1]).result(wait_s)
        return self.job(step).result(wait_s)

    def results(self, wait_s: Duration = 0) -> dict[str, Any]:
        """Return the results of all steps by name."""
        # The plan is read once: it grows with the number of steps.
        steps = read_plan(self._queue, self.id).steps
        return {step.name: self._job_of(step).result(wait_s) for step in steps}

    def cancel(self) -> int:
        """Cancel every step that is not done. Return their number."""
        # From the end: a step whose predecessor is cancelled would be dead before its turn.
        steps = [step for step in reversed(self.steps()) if step.state not in _ENDED]
        gate = self._queue.find(gate_id(self.id))
        is_begun = gate is None or not is_closed(self._queue, gate)
        if gate is not None and not is_begun:
            self._queue.cancel(gate)  # then no step begins, also of those that are not published
        queue_of = self._tasks.queue
        cancelled = [queue_of(step.queue).cancel(step.id) for step in steps if step.id]
        self._tasks.follow({step.queue for step in steps if step.id}, at_once=True)
        return sum(cancelled) if is_begun else len(steps)

    def retry(self) -> int:
        """Try failed steps again; those that wait for them follow. Return the number of steps."""
        steps = self.steps()
        dead = {step.name: step for step in steps if step.state == "dead"}
        first: dict[str, list[str]] = {}
        for step in dead.values():
            if not any(name in dead for name in step.after):
                first.setdefault(step.queue, []).append(step.id)
        count = sum(self._tasks.queue(queue).redrive(ids) for queue, ids in first.items())
        self._tasks.follow({step.queue for step in steps if step.id}, at_once=True)
        return count
