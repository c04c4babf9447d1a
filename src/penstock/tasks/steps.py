"""Steps of a workflow: a call of a task whose arguments may be results of steps before it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.errors import InvalidInput
from penstock.queue.dedup import FLOW_PREFIX, RESULT_PREFIX
from penstock.queue.facade import AnyQueue
from penstock.tasks.arguments import Unreadable
from penstock.tasks.envelope import Envelope, unpack
from penstock.tasks.task import AnyTask

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def result_id(flow: str, step: str) -> str:
    """Return the dedup id under which the result of a step is published."""
    return f"{RESULT_PREFIX}{flow}/{step}"


def step_id(flow: str, step: str) -> str:
    """Return the dedup id under which a step is published."""
    return f"{FLOW_PREFIX}{flow}/{step}"


def gate_id(flow: str) -> str:
    """Return the dedup id under which the gate of a workflow is published."""
    return f"{FLOW_PREFIX}{flow}/"  # a step's name is not empty


def flow_id(flow: str) -> str:
    """Return the dedup id under which the plan of a workflow is published."""
    return f"{FLOW_PREFIX}{flow}"


@dataclass(frozen=True, slots=True)
class ResultOf:
    """Stands for the result of a step, or the list of results of several, in arguments."""

    flow: object  # the workflow of the steps
    steps: tuple[str, ...]
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """A call of a task that is part of a chain, a group or a workflow: `task.s(…)`."""

    task: AnyTask
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    takes_result: bool = True  # of the step before it, in a chain; `task.si(…)` does not

    def with_first(self, first: ResultOf) -> "Signature":
        """Return the call with the result of a step as its first argument."""
        if not self.takes_result:
            return self
        return Signature(self.task, (first, *self.args), self.kwargs)

    def split(self) -> tuple[bytes, dict[str, ResultOf]]:
        """Return the arguments that are known, as JSON, and those that are results.

        Raise TypeError or InvalidInput if the function cannot take them.
        """
        return self.task.arguments.encode_partly(self.args, self.kwargs, ResultOf)


def fill_in(payload: bytes, queue: str, queue_of: Callable[[str], AnyQueue]) -> bytes:
    """Return a payload of a queue with the results of the steps before it among its arguments.

    Raise Unreadable if one is missing: it expired, or was too large.
    """
    envelope = unpack(payload)
    if envelope is None or envelope.flow is None or not envelope.flow.inputs:
        return payload
    flow = envelope.flow
    args = _OBJECT.decode(envelope.args)
    for name, steps in flow.inputs.items():
        several = [steps] if isinstance(steps, str) else steps
        values = [_value(queue_of(flow.queues.get(step, queue)), flow.id, step) for step in several]
        args[name] = values[0] if isinstance(steps, str) else _list_of(values)
    flow.inputs, flow.queues = {}, {}
    envelope.args = msgspec.Raw(msgspec.json.encode(args))
    return msgspec.json.encode(envelope)


def _list_of(values: Sequence[msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(b"[%s]" % b",".join(bytes(value) for value in values))


def _value(queue: AnyQueue, flow: str, step: str) -> msgspec.Raw:
    found = queue.find(result_id(flow, step))
    result: Envelope | None = None if found is None else unpack(queue.get(found).payload)
    if result is None:
        raise Unreadable(f"there is no result of step {step!r} of workflow {flow!r} any more")
    if result.error:
        raise Unreadable(f"the result of step {step!r} was not kept: {result.error}")
    return result.value


def check_step_name(name: object) -> str:
    """Return the name of a step; raise InvalidInput if it is none."""
    if not isinstance(name, str) or not 1 <= len(name) <= 100 or not name.isprintable():
        raise InvalidInput(f"a step's name is {name!r}; it must have 1 to 100 printable characters")
    return name
