"""Publish a workflow, as a whole or not at all.

Steps in one queue are one write. Steps in several queues take a write for each, at least. So they
are behind a gate (`queue/gate.py`):

1. One write to the home queue, that of the first step: the plan of the workflow, and a closed gate.
2. The steps, each `after` the gate and the steps before it. A step can only name messages that
   are on disk, so a batch has all steps of a queue whose predecessors are on disk or in it.
3. When all of them are on disk: one write that opens the gate.

A publisher that dies before the last write leaves steps that never run; they are cancelled with
the gate when the time of the workflow is over. After it, all of them run. Every write has dedup
ids, so a second call with the same id of the workflow completes what the first one left.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.codec.layout import MAX_PRIORITY
from penstock.errors import InvalidInput, PenstockError
from penstock.model import NewMessage
from penstock.operations import OpenGate
from penstock.queue.gate import CLOSED, HEADER
from penstock.tasks.envelope import VERSION, Flow, Plan, PlannedStep, pack_mark, pack_step
from penstock.tasks.run import is_closed, read_plan
from penstock.tasks.steps import ResultOf, Signature, flow_id, gate_id, step_id

if TYPE_CHECKING:
    from penstock.tasks.registry import Tasks

MOST_NAMED = 100  # messages of another queue that a step names; beyond it, a relay does
_MOST_IN_BATCH = 5000


class StepCall(NamedTuple):
    """A step of a workflow that is not published yet."""

    name: str
    call: Signature
    args: bytes  # those that are known
    inputs: dict[str, ResultOf]
    before: list[int]  # numbers of the steps that it comes after
    after_failed: str | None

    @property
    def queue(self) -> str:
        return self.call.task.options.queue


def publish_workflow(tasks: "Tasks", flow: str, steps: Sequence[StepCall], keep_s: float) -> bool:
    """Publish a workflow. Return False if there is one with that id, which stands for it.

    One that another call began and left without some steps is completed: that is False, too.
    Raise InvalidInput if that one has other steps and was not published as a whole.
    """
    messages = _messages(flow, steps, keep_s)
    home = tasks.queue(steps[0].queue)
    if all(step.queue == steps[0].queue for step in steps):
        plan = _plan_message(flow, steps, keep_s)
        numbered = [
            replace(message, after=[number + 1 for number in step.before] or None)
            for message, step in zip(messages, steps, strict=True)
        ]
        return not home.publish([plan, *numbered])[0].duplicate
    digest = _digest(steps, keep_s)
    plan = _plan_message(flow, steps, keep_s, digest)
    begun, gate = home.publish([plan, _gate_message(flow, keep_s)])
    if begun.duplicate:
        if not is_closed(home, gate.id):
            return False
        if read_plan(home, flow).digest != digest:
            raise InvalidInput(
                f"workflow {flow!r} was begun with other steps or arguments, and is not published "
                f"as a whole: use another id"
            )
    nodes = _with_relays(flow, steps, messages)
    _publish_nodes(tasks, nodes, gate.id, steps[0].queue)
    if not home.run(OpenGate(gate.id)):
        raise InvalidInput(
            f"workflow {flow!r} was cancelled, or its time was over, before it was published as a "
            f"whole: none of its steps runs"
        )
    return not begun.duplicate  # the first write decides, whoever completes it


def abandon_workflow(tasks: "Tasks", flow: str, home: str) -> None:
    """Cancel a workflow that could not be published as a whole, if that is possible now.

    If not, its gate expires.
    """
    with suppress(PenstockError):
        gate = tasks.queue(home).find(gate_id(flow))
        if gate is not None and is_closed(tasks.queue(home), gate):
            tasks.queue(home).cancel(gate)


# -- messages --------------------------------------------------------------------------------------


def _plan_message(
    flow: str, steps: Sequence[StepCall], keep_s: float, digest: str = ""
) -> NewMessage:
    home = steps[0].queue
    planned = [
        PlannedStep(
            step.name,
            step.call.task.name,
            [steps[number].name for number in step.before],
            "" if step.queue == home else step.queue,
        )
        for step in steps
    ]
    return NewMessage(
        payload=msgspec.json.encode(Plan(VERSION, flow, planned, digest)),
        delay=keep_s,
        ttl=0,
        dedup_id=flow_id(flow),
        dedup_window_s=keep_s,
    )


def _gate_message(flow: str, keep_s: float) -> NewMessage:
    return NewMessage(
        payload=pack_mark(flow),
        delay=keep_s,
        ttl=0,
        headers={HEADER: CLOSED},
        dedup_id=gate_id(flow),
        dedup_window_s=keep_s,
    )


def _messages(flow: str, steps: Sequence[StepCall], keep_s: float) -> list[NewMessage]:
    """Return the messages of steps, without what they come after."""
    feeds: list[set[str]] = [set() for _ in steps]
    queues = {step.name: step.queue for step in steps}
    for step in steps:
        for number in step.before:
            if steps[number].queue != step.queue:
                feeds[number].add(step.queue)
    made = []
    for step, fed in zip(steps, feeds, strict=True):
        options = step.call.task.options
        taken = {name for one in step.inputs.values() for name in one.steps}
        part = Flow(
            id=flow,
            step=step.name,
            inputs={
                parameter: list(one.steps) if one.is_list else one.steps[0]
                for parameter, one in step.inputs.items()
            },
            queues={name: queues[name] for name in sorted(taken) if queues[name] != step.queue},
            feeds=sorted(fed),
        )
        made.append(
            NewMessage(
                payload=pack_step(step.call.task.name, step.args, keep_s, part),
                priority=options.priority,
                max_attempts=options.max_attempts,
                headers=step.call.task.tasks.middleware.headers_of(step.call.task, None),
                dedup_id=step_id(flow, step.name),
                dedup_window_s=keep_s,
                after_failed=step.after_failed,
            )
        )
    return made


def _digest(steps: Iterable[StepCall], keep_s: float) -> str:
    """Return what tells one workflow from another with the same id."""
    digest = hashlib.sha256(repr(keep_s).encode())
    for step in steps:
        inputs = sorted((name, one.steps, one.is_list) for name, one in step.inputs.items())
        said = step.name, step.call.task.name, step.queue, step.before, step.after_failed, inputs
        digest.update(repr(said).encode() + step.args)
    return digest.hexdigest()


# -- over several queues ---------------------------------------------------------------------------


class _Node(NamedTuple):
    """A message that is to be published behind the gate."""

    queue: str
    message: NewMessage
    before: list[int]  # numbers of other nodes


def _with_relays(
    flow: str, steps: Sequence[StepCall], messages: Sequence[NewMessage]
) -> list[_Node]:
    """Return the steps and their relays.

    A step that comes after very many of another queue names one message there instead: a relay,
    which comes after them and does nothing. So what is followed from queue to queue stays small.
    """
    nodes = [
        _Node(step.queue, message, step.before)
        for step, message in zip(steps, messages, strict=True)
    ]
    relays: dict[tuple[object, ...], int] = {}
    for number, step in enumerate(steps):
        by_queue: dict[str, list[int]] = {}
        for earlier in step.before:
            by_queue.setdefault(steps[earlier].queue, []).append(earlier)
        before: list[int] = []
        for queue, its_steps in by_queue.items():
            if queue == step.queue or len(its_steps) <= MOST_NAMED:
                before += its_steps
                continue
            key = (queue, step.queue, step.after_failed, *its_steps)
            if key not in relays:
                relays[key] = len(nodes)
                message = NewMessage(
                    payload=pack_mark(flow, feeds=[step.queue]),
                    priority=MAX_PRIORITY,
                    dedup_id=step_id(flow, f"/{len(relays)}"),
                    dedup_window_s=messages[number].dedup_window_s,
                    after_failed=step.after_failed,
                )
                nodes.append(_Node(queue, message, its_steps))
            before.append(relays[key])
        nodes[number] = nodes[number]._replace(before=before)
    return nodes


def _publish_nodes(tasks: "Tasks", nodes: Sequence[_Node], gate: str, home: str) -> None:
    """Publish messages. All but those of the home queue are on disk when it returns.

    A message names others only when they are on disk: if the power fails, it never names one that
    is lost.
    """
    ids: list[str] = [""] * len(nodes)
    unsynced = {home}
    for queue, numbers in in_batches([node.queue for node in nodes], [n.before for n in nodes]):
        for name in sorted(unsynced - {queue}):
            tasks.queue(name).sync()
        unsynced &= {queue}
        index = {number: position for position, number in enumerate(numbers)}
        batch = [
            replace(
                message := nodes[number].message,
                headers={**(message.headers or {}), HEADER: gate},
                after=[
                    gate,
                    *(index[one] if one in index else ids[one] for one in nodes[number].before),
                ],
            )
            for number in numbers
        ]
        for number, published in zip(numbers, tasks.queue(queue).publish(batch), strict=True):
            ids[number] = published.id
        unsynced.add(queue)
    for name in sorted(unsynced - {home}):
        tasks.queue(name).sync()


def in_batches(
    queues: Sequence[str], before: Sequence[Sequence[int]], most: int = _MOST_IN_BATCH
) -> Iterator[tuple[str, list[int]]]:
    """Yield batches of one queue each, so that all nodes before a node are in its batch or earlier.

    The next batch is of the queue with the most nodes that can be published: few batches, though
    not always the fewest. It takes as many steps as there are nodes and pairs.

    >>> list(in_batches(["a", "b", "a", "a"], [[], [0], [1], []]))
    [('a', [0, 3]), ('b', [1]), ('a', [2])]
    """
    missing = [len(one) for one in before]
    later: list[list[int]] = [[] for _ in queues]
    for number, its_before in enumerate(before):
        for earlier in its_before:
            later[earlier].append(number)
    ready: dict[str, deque[int]] = {queue: deque() for queue in queues}
    for number, count in enumerate(missing):
        if not count:
            ready[queues[number]].append(number)
    while any(ready.values()):
        queue = max(ready, key=lambda name: len(ready[name]))
        batch: list[int] = []
        while ready[queue] and len(batch) < most:
            batch.append(ready[queue].popleft())
            for number in later[batch[-1]]:
                missing[number] -= 1
                if not missing[number]:
                    ready[queues[number]].append(number)
        yield queue, batch
