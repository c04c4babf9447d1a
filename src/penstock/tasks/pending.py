"""Run what is ready in the calling thread or event loop: for scripts, and for tests."""

import asyncio
from typing import TYPE_CHECKING

from penstock.checking import check_whole
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage
from penstock.tasks.places import max_attempts_of
from penstock.tasks.progress import Report, reporting_to
from penstock.tasks.running import Runner
from penstock.worker import Failed

if TYPE_CHECKING:
    from penstock.tasks.registry import Tasks

_LEASE_S = 3600.0  # not renewed


def run_pending(tasks: "Tasks", limit: int) -> int:
    """Run ready jobs until none is left, or `limit` were run. Return their number."""
    count, before = 0, -1
    _begin(tasks, limit)
    while before < count < limit:
        before = count
        for name in tasks.queue_names:
            while count < limit and run_next(tasks, name):
                count += 1
    return count


async def arun_pending(tasks: "Tasks", limit: int) -> int:
    """Do the same in an event loop: coroutines run in it, functions in threads."""
    count, before = 0, -1
    await asyncio.to_thread(_begin, tasks, limit)
    while before < count < limit:
        before = count
        for name in tasks.queue_names:
            while count < limit and await arun_next(tasks, name):
                count += 1
    return count


def _begin(tasks: "Tasks", limit: int) -> None:
    check_whole("limit", limit, 1, 1_000_000_000)
    for name in tasks.queue_names:
        tasks.prepare(name)


def run_next(tasks: "Tasks", queue_name: str) -> bool:
    """Run the next job of a queue. Return False if none is ready."""
    queue = tasks.queue(queue_name)
    leased, runner = _lease(tasks, queue_name)
    if not leased:
        return False
    try:
        if runner.is_async(leased[0]):
            _check_no_loop()
            done = asyncio.run(runner.call_async(leased[0]))
        else:
            done = runner.call(leased[0])
    except Failed as failed:
        queue.nack(leased, failed.reason, delay=failed.delay_s, dead=failed.dead)
    except BaseException:  # an interrupt: the attempt does not count
        queue.release(leased)
        raise
    else:
        queue.ack(leased, emit=() if done is None else done.emit)
    return True


async def arun_next(tasks: "Tasks", queue_name: str) -> bool:
    """Do the same in an event loop."""
    queue = tasks.queue(queue_name)
    leased, runner = await asyncio.to_thread(_lease, tasks, queue_name)
    if not leased:
        return False
    try:
        if runner.is_async(leased[0]):
            done = await runner.call_async(leased[0])
        else:
            done = await asyncio.to_thread(runner.call, leased[0])
    except Failed as failed:
        delay_s, dead = failed.delay_s, failed.dead
        await asyncio.to_thread(queue.nack, leased, failed.reason, delay=delay_s, dead=dead)
    except BaseException:
        queue.release(leased)
        raise
    else:
        await asyncio.to_thread(queue.ack, leased, emit=() if done is None else done.emit)
    return True


def _lease(tasks: "Tasks", queue_name: str) -> tuple[list[LeasedMessage], Runner]:
    queue = tasks.queue(queue_name)
    leased = queue.lease(1, lease_s=_LEASE_S, holder="run_pending")
    report = reporting_to(queue, _LEASE_S)
    return leased, runner_of(tasks, queue_name, max_attempts_of(queue), report=report)


def _check_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput(
        "run_pending cannot run a coroutine inside a running event loop: use `await "
        "tasks.arun_pending()` there"
    )


def runner_of(
    tasks: "Tasks",
    queue_name: str,
    queue_max_attempts: int | None,
    *,
    report: Report | None = None,
    in_child: bool = False,
) -> Runner:
    """Return what runs the messages of one queue of these tasks, in a child without the queue."""
    own = {task.name: task for task in tasks if task.options.queue == queue_name}
    queue = None if in_child else tasks.queue(queue_name)
    return Runner(own, tasks.middleware, queue_name, queue_max_attempts, queue, report)
