"""Inline mode: a job runs where it is enqueued."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.codec import parse_id
from penstock.errors import InvalidInput
from penstock.model import NewMessage
from penstock.operations import LeaseMessage
from penstock.queue.operation_handlers import run
from penstock.queue.queue import Queue
from penstock.tasks.job import Job
from penstock.tasks.pending import runner_of
from penstock.tasks.registry import Tasks
from penstock.tasks.task import AnyTask
from penstock.worker import Failed

_LEASE_S = 3600.0


def run_inline(tasks: Tasks, task: AnyTask, message: NewMessage) -> Job[Any]:
    """Publish a job and run it at once, also a delayed one. Raise what its function raises."""
    name = task.options.queue
    queue = tasks.queue(name)
    assert isinstance(queue, Queue)  # a box is in memory
    (published,) = queue.publish([message])
    job: Job[Any] = Job(tasks, name, published.id, task.arguments, is_duplicate=published.duplicate)
    if published.duplicate:
        return job
    leased = run(queue.behaviours, LeaseMessage(parse_id(published.id)[2], lease_s=_LEASE_S))
    if not leased:
        raise InvalidInput(f"job {job.id} cannot run now: {job.why().sentence}")
    runner = runner_of(tasks, name, None)
    try:
        if runner.is_async(leased[0]):
            done = _finished(runner.call_async(leased[0]))
        else:
            done = runner.call(leased[0])
    except Failed as failed:
        queue.nack(leased, failed.reason, dead=True)
        raise (failed.__cause__ or failed) from None
    queue.ack(leased, emit=() if done is None else done.emit)
    return job


def _finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end, in another thread: the caller's may have an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
