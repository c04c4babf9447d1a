"""Run what is ready in the calling thread: for scripts, and for tests."""

import asyncio
from typing import TYPE_CHECKING

from penstock.checking import check_whole
from penstock.tasks.places import max_attempts_of
from penstock.tasks.progress import Report, reporting_to
from penstock.tasks.running import Runner
from penstock.worker import Failed

if TYPE_CHECKING:
    from penstock.tasks.registry import Tasks

_LEASE_S = 3600.0  # not renewed


def run_pending(tasks: "Tasks", limit: int) -> int:
    """Run ready jobs until none is left, or `limit` were run. Return their number."""
    check_whole("limit", limit, 1, 1_000_000_000)
    count = 0
    for name in tasks.queue_names:
        tasks.prepare(name)
    while count < limit:
        before = count
        for name in tasks.queue_names:
            while count < limit and run_next(tasks, name):
                count += 1
        if count == before:
            break
    return count


def run_next(tasks: "Tasks", queue_name: str) -> bool:
    """Run the next job of a queue. Return False if none is ready."""
    queue = tasks.queue(queue_name)
    leased = queue.lease(1, lease_s=_LEASE_S, holder="run_pending")
    if not leased:
        return False
    report = reporting_to(queue, _LEASE_S)
    runner = runner_of(tasks, queue_name, max_attempts_of(queue), report=report)
    try:
        if runner.is_async(leased[0]):
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
