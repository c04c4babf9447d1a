"""StartMessageMoveTask, ListMessageMoveTasks and CancelMessageMoveTask: redrives of dead letters.

A task moves the dead letters that a dead-letter queue shows back to their sources. That is one
paced redrive of each source; the record of the dead-letter queue keeps the last tasks.
"""

import json
import secrets
from binascii import a2b_base64, b2a_base64
from typing import Any, NamedTuple

import msgspec

from penstock.broker import QueueName, Verb
from penstock.broker.access import INSIDE
from penstock.broker.paced_redrive import PacedRedrive
from penstock.errors import NoSuchQueue, NoSuchRedrive
from penstock.model import NS
from penstock.operations import GetStats, Redrive
from penstock.server.replies import Reply
from penstock.server.sqs import bodies
from penstock.server.sqs.errors import SqsError, invalid_value
from penstock.server.sqs.names import arn_of_queue, queue_of_arn
from penstock.server.sqs.records import MoveTask, Record
from penstock.server.sqs.request import Request

MAX_RATE_PER_S = 500
MAX_TASKS = 10  # that are remembered of a queue
_CANCELLED = "CANCELLED"


class _State(NamedTuple):
    """What became of a task so far."""

    status: str
    moved: int
    reason: str = ""


async def start_message_move_task(request: Request, body: bodies.StartMessageMoveTask) -> Reply:
    queue = await _source(request, body.SourceArn)
    rate = body.MaxNumberOfMessagesPerSecond
    if rate is not None and not 1 <= rate <= MAX_RATE_PER_S:
        raise invalid_value(
            "MaxNumberOfMessagesPerSecond", rate, f"Must be 1 to {MAX_RATE_PER_S}, if provided."
        )
    request.broker.admit(request.caller, Verb.MANAGE, queue.namespace)
    async with request.records.turn:
        sources = request.records.sources(queue)
        if not sources:
            raise invalid_value(
                "SourceArn",
                body.SourceArn,
                "Source queue must be configured as a Dead Letter Queue.",
            )
        _check_destination(body.DestinationArn, sources)
        for task in request.record(queue).tasks:
            if (await _state(request, queue, task)).status == "RUNNING":
                raise SqsError(
                    "UnsupportedOperation",
                    "There is already a task running. Only one active task is allowed for a "
                    "source queue arn at a given time.",
                )
        made = await _start(request, queue, sources, rate, body.DestinationArn or "")
    return request.reply({"TaskHandle": _handle(request, queue, made)})


async def _start(
    request: Request,
    queue: QueueName,
    sources: list[QueueName],
    rate: int | None,
    destination: str,
) -> MoveTask:
    broker, redrives, count = request.broker, {}, 0
    for source in sources:
        begun = await broker.redrives.begin(
            request.caller, source, Redrive(), float(rate or MAX_RATE_PER_S)
        )
        if begun.id:
            redrives[source.name] = begun.id
            count += begun.letters
    task = MoveTask(
        secrets.token_hex(8),
        broker.clock.now_ns() * 1000 // NS,
        rate or 0,
        count,
        redrives,
        destination,
    )

    def add(record: Record) -> Record:
        return msgspec.structs.replace(record, tasks=(task, *record.tasks)[:MAX_TASKS])

    info = await broker.store.info(queue)
    await request.records.edit(queue, info.identity, add)
    return task


def _check_destination(arn: str | None, sources: list[QueueName]) -> None:
    """Raise an error unless dead letters go back to where they are."""
    if arn is not None and [queue_of_arn(arn)] != sources:
        raise SqsError(
            "UnsupportedOperation",
            "Dead letters can only be moved back to their own queue: leave DestinationArn out.",
        )


async def list_message_move_tasks(request: Request, body: bodies.ListMessageMoveTasks) -> Reply:
    queue = await _source(request, body.SourceArn)
    request.broker.admit(request.caller, Verb.READ, queue.namespace)
    limit = 1 if body.MaxResults is None else body.MaxResults
    if not 1 <= limit <= MAX_TASKS:
        raise invalid_value("MaxResults", limit, f"Must be 1 to {MAX_TASKS}, if provided.")
    tasks = request.record(queue).tasks[:limit]
    return request.reply({"Results": [await _row(request, queue, task) for task in tasks]})


async def _row(request: Request, queue: QueueName, task: MoveTask) -> dict[str, Any]:
    state = await _state(request, queue, task)
    row: dict[str, Any] = {
        "Status": state.status,
        "SourceArn": arn_of_queue(request.region, queue),
        "ApproximateNumberOfMessagesMoved": state.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "StartedTimestamp": task.started_ms,
    }
    if state.status == "RUNNING":
        row["TaskHandle"] = _handle(request, queue, task)
    if task.destination:
        row["DestinationArn"] = task.destination
    if task.rate_per_s:
        row["MaxNumberOfMessagesPerSecond"] = task.rate_per_s
    if state.reason:
        row["FailureReason"] = state.reason
    return row


async def cancel_message_move_task(request: Request, body: bodies.CancelMessageMoveTask) -> Reply:
    queue, id_ = _read_handle(body.TaskHandle)
    await _exists(request, queue)
    request.broker.admit(request.caller, Verb.MANAGE, queue.namespace)
    async with request.records.turn:
        found = [task for task in request.record(queue).tasks if task.id == id_]
        state = await _state(request, queue, found[0]) if found else None
        if state is None or state.status != "RUNNING":
            raise _no_task()
        for name, redrive in found[0].redrives.items():
            try:
                source = QueueName(queue.namespace, name)
                await request.broker.redrives.cancel(request.caller, source, redrive)
            except (NoSuchRedrive, NoSuchQueue):
                pass  # it has just finished, or its queue was deleted
        moved = await _moved(request, queue, found[0])
        ended = msgspec.structs.replace(found[0], status=_CANCELLED, moved=moved)

        def end(record: Record) -> Record:
            tasks = tuple(ended if task.id == id_ else task for task in record.tasks)
            return msgspec.structs.replace(record, tasks=tasks)

        info = await request.broker.store.info(queue)
        await request.records.edit(queue, info.identity, end)
    return request.reply({"ApproximateNumberOfMessagesMoved": moved})


# -- states ----------------------------------------------------------------------------------------


async def _state(request: Request, queue: QueueName, task: MoveTask) -> _State:
    if task.status:
        return _State(task.status, task.moved)
    unfinished = []
    for name, id_ in task.redrives.items():
        unfinished += [
            one
            for one in await _unfinished(request, QueueName(queue.namespace, name))
            if one.id == id_
        ]
    if not unfinished:
        return _State("COMPLETED", task.to_move)
    moved = await _moved(request, queue, task)
    failed = [one for one in unfinished if one.state == "failed"]
    if failed and len(failed) == len(unfinished):
        return _State("FAILED", moved, failed[0].reason)
    return _State("RUNNING", moved)


async def _unfinished(request: Request, source: QueueName) -> list[PacedRedrive]:
    try:
        return await request.broker.redrives.list(INSIDE, source)
    except NoSuchQueue:
        return []


async def _moved(request: Request, queue: QueueName, task: MoveTask) -> int:
    """Return how many dead letters of a task are dead no more, nearly."""
    left = 0
    for name in task.redrives:
        try:
            source = QueueName(queue.namespace, name)
            left += (await request.broker.run(INSIDE, GetStats(), source)).dead
        except NoSuchQueue:
            pass
    return max(task.to_move - left, 0)


# -- names -----------------------------------------------------------------------------------------


async def _source(request: Request, arn: str) -> QueueName:
    queue = queue_of_arn(arn)
    if queue is None:
        raise invalid_value("SourceArn", arn, "It is not the ARN of a queue.")
    return await _exists(request, queue)


async def _exists(request: Request, queue: QueueName) -> QueueName:
    try:
        return await request.check_exists(queue)
    except SqsError:
        raise SqsError(
            "ResourceNotFoundException",
            "The resource that you specified for the SourceArn parameter doesn't exist.",
            404,
        ) from None


def _handle(request: Request, queue: QueueName, task: MoveTask) -> str:
    content = {"taskId": task.id, "sourceArn": arn_of_queue(request.region, queue)}
    return b2a_base64(json.dumps(content).encode(), newline=False).decode()


def _read_handle(handle: str) -> tuple[QueueName, str]:
    try:
        content = json.loads(a2b_base64(handle, strict_mode=True))
        queue, id_ = queue_of_arn(content["sourceArn"]), content["taskId"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise invalid_value("TaskHandle", handle[:100], "It is not the handle of a task.") from None
    if queue is None or not isinstance(id_, str):
        raise _no_task()
    return queue, id_


def _no_task() -> SqsError:
    return SqsError("ResourceNotFoundException", "There is no such task that runs.", 404)
