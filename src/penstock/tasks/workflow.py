"""Workflows: steps that run after others, with their results. `chain`, `group` and `chord` too.

A workflow is published as a whole, see `publishing.py`: its plan, and a message for each step that
is blocked until the steps before it are done. The plan is never delivered. It says which steps
there are, for `find`. Nothing else is stored: the state of a workflow is that of its messages.
"""

import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.checking import Duration, as_seconds, check_choice, check_number
from penstock.errors import InvalidInput
from penstock.queue.after import AFTER_FAILED
from penstock.tasks.options import MAX_KEEP_RESULT_S
from penstock.tasks.publishing import StepCall, abandon_workflow, publish_workflow
from penstock.tasks.run import WorkflowRun
from penstock.tasks.steps import ResultOf, Signature, check_step_name

if TYPE_CHECKING:
    from penstock.tasks.registry import Tasks

MAX_STEPS = 10_000
DEFAULT_KEEP_S = 7 * 86400.0
_MAX_ID_CHARACTERS = 200


class Step:
    """A step of a workflow, as the steps after it name it."""

    __slots__ = ("flow", "name", "number")

    def __init__(self, flow: "Workflow", name: str, number: int) -> None:
        self.flow = flow
        self.name = name
        self.number = number

    @property
    def result(self) -> Any:
        """Stands for what the step returns, in the arguments of a later step."""
        return ResultOf(self.flow, (self.name,))


class Workflow:
    """Named steps, each after others. Build it, then `enqueue` it as a whole.

    >>> from penstock.tasks import Tasks, Workflow
    >>> tasks = Tasks("memory:")
    >>> @tasks.task
    ... def fetch(url: str) -> list[int]:
    ...     return [1, 2, 3]
    >>> @tasks.task
    ... def total(numbers: list[int]) -> int:
    ...     return sum(numbers)
    >>> flow = Workflow()
    >>> fetched = flow.step("fetch", fetch.s("http://…"))
    >>> added = flow.step("add", total.s(fetched.result))
    >>> run = flow.enqueue()
    >>> tasks.run_pending()
    2
    >>> run.result("add")
    6
    >>> tasks.close()
    """

    def __init__(self, *, keep_s: Duration = DEFAULT_KEEP_S) -> None:
        """`keep_s`: how long the plan and the results of the steps are kept."""
        self._keep_s = check_number("keep_s", as_seconds(keep_s), 1, MAX_KEEP_RESULT_S)
        self._tasks: Tasks | None = None
        self._numbers: dict[str, int] = {}
        self._steps: list[StepCall] = []

    def step(
        self,
        name: str,
        call: Signature,
        *,
        after: Step | Iterable[Step] = (),
        after_failed: str | None = None,
    ) -> Step:
        """Add a step. It runs after those whose results it takes, and after those in `after`.

        If one of them fails, it is dead as well; with `after_failed="run"` it runs all the same.
        """
        if not isinstance(call, Signature):
            raise InvalidInput(f"a step is task.s(…), not {call!r}")
        if check_step_name(name) in self._numbers:
            raise InvalidInput(f"the workflow has a step {name!r} already")
        if len(self._steps) >= MAX_STEPS:
            raise InvalidInput(f"a workflow has at most {MAX_STEPS} steps")
        if self._tasks is not None and call.task.tasks is not self._tasks:
            raise InvalidInput(
                f"step {name!r} is a task of {call.task.tasks!r}, and the others are of "
                f"{self._tasks!r}: the steps of a workflow are tasks of one Tasks"
            )
        if after_failed is not None:
            check_choice(f"after_failed of step {name!r}", after_failed, AFTER_FAILED)
        data, inputs = call.split()
        if inputs and after_failed == "run":
            raise InvalidInput(
                f"step {name!r} takes results, so it cannot run after a failed step: leave "
                f"after_failed out, or the results"
            )
        earlier = [(one.flow, step) for one in inputs.values() for step in one.steps]
        for one in after if isinstance(after, Iterable) and not isinstance(after, str) else [after]:
            if not isinstance(one, Step):
                raise InvalidInput(
                    f"after of step {name!r} has {one!r}; it must have steps, as step() returned "
                    f"them"
                )
            earlier.append((one.flow, one.name))
        for flow, step in earlier:
            if flow is not self:
                raise InvalidInput(f"step {name!r} is after {step!r}, a step of another workflow")
        before = {self._numbers[step] for _, step in earlier}
        if after_failed is not None and not before:
            raise InvalidInput(f"step {name!r} has after_failed, and comes after no other step")
        self._tasks = call.task.tasks
        self._numbers[name] = len(self._steps)
        self._steps.append(StepCall(name, call, data, inputs, sorted(before), after_failed))
        return Step(self, name, self._numbers[name])

    def enqueue(self, *, id: str | None = None) -> WorkflowRun:
        """Publish all steps, or none.

        With an `id` of your own, a second workflow with that id is not published: the first stands
        for it, as long as it is kept. If a crash or an error left the first without some of its
        steps, none of them has run, and the second call completes it, as a duplicate.
        """
        if self._tasks is None:
            raise InvalidInput("the workflow has no steps")
        flow = uuid.uuid4().hex if id is None else _check_id(id)
        tasks, home = self._tasks, self._steps[0].queue
        try:
            is_new = publish_workflow(tasks, flow, self._steps, self._keep_s)
        except BaseException:
            if id is None:  # with an id of the caller's, a second call completes it
                abandon_workflow(tasks, flow, home)
            raise
        run = WorkflowRun(tasks, home, flow, is_duplicate=not is_new)
        tasks.follow({step.queue for step in self._steps})
        return run


def _check_id(id: object) -> str:
    if not isinstance(id, str) or not 1 <= len(id) <= _MAX_ID_CHARACTERS or not id.isprintable():
        raise InvalidInput(
            f"id is {id!r}; it must have 1 to {_MAX_ID_CHARACTERS} printable characters"
        )
    if "/" in id:  # `a/b` would be step `b` of workflow `a`
        raise InvalidInput(
            f"id is {id!r}; it must not contain '/', which separates the id from the names of "
            f"steps: use another character, such as ':'"
        )
    return id


def chain(*calls: Signature, keep_s: Duration = DEFAULT_KEEP_S) -> Workflow:
    """Return a workflow of calls one after the other: `chain(fetch.s(url), parse.s()).enqueue()`.

    Each gets the result of the one before as its first argument; one of `task.si(…)` does not.
    """
    flow = Workflow(keep_s=keep_s)
    before: Step | None = None
    for number, call in enumerate(calls, 1):
        name = f"{number} {_name_of(call)}"
        if before is None:
            before = flow.step(name, call)
        else:
            before = flow.step(name, _with_first(call, before.result), after=[before])
    return flow


def group(*calls: Signature, keep_s: Duration = DEFAULT_KEEP_S) -> Workflow:
    """Return a workflow of calls that do not wait for each other."""
    flow = Workflow(keep_s=keep_s)
    _add_all(flow, calls)
    return flow


def chord(
    calls: Sequence[Signature], last: Signature, *, keep_s: Duration = DEFAULT_KEEP_S
) -> Workflow:
    """Return a workflow of calls, and one after all of them that gets the list of their results."""
    flow = Workflow(keep_s=keep_s)
    steps = _add_all(flow, calls)
    if not steps:
        raise InvalidInput("a chord needs at least one call before the last")
    results = ResultOf(flow, tuple(step.name for step in steps), is_list=True)
    flow.step(f"{len(steps) + 1} {_name_of(last)}", _with_first(last, results), after=steps)
    return flow


def _add_all(flow: Workflow, calls: Iterable[Signature]) -> list[Step]:
    return [flow.step(f"{n} {_name_of(call)}", call) for n, call in enumerate(calls, 1)]


def _with_first(call: Signature, first: Any) -> Signature:
    """Return a call with its first argument. `Workflow.step` refuses what is no call."""
    return call.with_first(first) if isinstance(call, Signature) else call


def _name_of(call: object) -> str:
    return call.task.name if isinstance(call, Signature) else "step"
