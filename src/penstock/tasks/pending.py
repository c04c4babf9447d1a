"""Run what is ready in the calling thread or event loop: for scripts, and for tests."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import TYPE_CHECKING, Self, cast

from penstock.checking import check_whole
from penstock.errors import InvalidInput, PenstockError, ReceiptInvalid
from penstock.locks import Lock
from penstock.model import LeasedMessage
from penstock.queue.facade import AnyQueue
from penstock.tasks.places import max_attempts_of
from penstock.tasks.progress import Report, reporting_to
from penstock.tasks.running import Runner
from penstock.worker import Done, Failed, TimeLimitExceeded
from penstock.worker.calling import caller_of
from penstock.worker.settling import HandedBack

if TYPE_CHECKING:
    from penstock.tasks.registry import Tasks

log = logging.getLogger("penstock.tasks")

LEASE_S = 30.0  # as of a worker: a job whose process is killed comes back after it
_RENEW_S = LEASE_S / 3
_INTERRUPT_S = 5.0  # for a function that is interrupted with the program


def run_pending(tasks: "Tasks", limit: int) -> int:
    """Run ready jobs until none is left, or `limit` were run. Return their number."""
    count, is_over = 0, False
    _begin(tasks, limit)
    with LeaseRenewal() as renewal:
        while not is_over:
            before = count
            for name in tasks.queue_names:
                while count < limit and _run_next(tasks, name, renewal):
                    count += 1
            is_over = count == limit or (count == before and not tasks.follow(tasks.queue_names))
    return count


async def arun_pending(tasks: "Tasks", limit: int) -> int:
    """Do the same in an event loop: coroutines run in it, functions in threads."""
    count, is_over = 0, False
    await asyncio.to_thread(_begin, tasks, limit)
    with LeaseRenewal() as renewal:
        while not is_over:
            before = count
            for name in tasks.queue_names:
                while count < limit and await _arun_next(tasks, name, renewal):
                    count += 1
            is_over = count == limit or (
                count == before and not await asyncio.to_thread(tasks.follow, tasks.queue_names)
            )
    return count


def _begin(tasks: "Tasks", limit: int) -> None:
    check_whole("limit", limit, 1, 1_000_000_000)
    for name in tasks.queue_names:
        tasks.prepare(name)


def run_next(tasks: "Tasks", queue_name: str) -> bool:
    """Run the next job of a queue. Return False if none is ready."""
    with LeaseRenewal() as renewal:
        return _run_next(tasks, queue_name, renewal)


def _run_next(tasks: "Tasks", queue_name: str, renewal: "LeaseRenewal") -> bool:
    queue = tasks.queue(queue_name)
    leased, runner = _lease(tasks, queue_name, renewal)
    if not leased:
        return False
    try:
        done = _call(runner, leased[0])
    except Failed as failed:
        renewal.let_go()
        queue.nack(leased, failed.reason, delay=failed.delay_s, dead=failed.dead)
    except BaseException:  # an interrupt: the attempt does not count
        renewal.let_go()
        queue.release(leased)
        raise
    else:
        renewal.let_go()
        queue.ack(leased, emit=() if done is None else done.emit)
    tasks.settled(queue_name, leased)
    return True


async def _arun_next(tasks: "Tasks", queue_name: str, renewal: "LeaseRenewal") -> bool:
    """Do the same in an event loop."""
    queue = tasks.queue(queue_name)
    leased, runner = await asyncio.to_thread(_lease, tasks, queue_name, renewal)
    if not leased:
        return False
    try:
        done = await _acall(runner, leased[0])
    except Failed as failed:
        await asyncio.to_thread(renewal.let_go)
        delay_s, dead = failed.delay_s, failed.dead
        await asyncio.to_thread(queue.nack, leased, failed.reason, delay=delay_s, dead=dead)
    except BaseException:
        renewal.let_go()
        queue.release(leased)
        raise
    else:
        await asyncio.to_thread(renewal.let_go)
        await asyncio.to_thread(queue.ack, leased, emit=() if done is None else done.emit)
    await asyncio.to_thread(tasks.settled, queue_name, leased)
    return True


def _lease(
    tasks: "Tasks", queue_name: str, renewal: "LeaseRenewal"
) -> tuple[list[LeasedMessage], Runner]:
    queue = tasks.queue(queue_name)
    leased = queue.lease(1, lease_s=LEASE_S, holder="run_pending")
    for one in leased:
        renewal.keep(queue, one)
    report = reporting_to(queue, LEASE_S)
    return leased, runner_of(tasks, queue_name, max_attempts_of(queue), report=report)


def _call(runner: Runner, leased: LeasedMessage) -> Done | None:
    """Run a job. Return its outcome, or raise Failed."""
    if runner.is_async(leased):
        _check_no_loop()
        return asyncio.run(runner.call_async(leased))
    limit_s = runner.time_limit_s(leased)
    if limit_s is None:
        return runner.call(leased)
    call = _call_in_time(runner, leased, limit_s)
    if not _has_loop():
        return asyncio.run(call)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, call).result()


async def _acall(runner: Runner, leased: LeasedMessage) -> Done | None:
    """Do the same in an event loop."""
    if runner.is_async(leased):
        return await runner.call_async(leased)
    limit_s = runner.time_limit_s(leased)
    if limit_s is None:
        return await asyncio.to_thread(runner.call, leased)
    return await _call_in_time(runner, leased, limit_s)


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _check_no_loop() -> None:
    if _has_loop():
        raise InvalidInput(
            "run_pending cannot run a coroutine inside a running event loop: use `await "
            "tasks.arun_pending()` there"
        )


async def _call_in_time(runner: Runner, leased: LeasedMessage, limit_s: float) -> Done | None:
    """Run a function in another thread, as a worker does, and interrupt it after `limit_s`."""
    caller = caller_of(runner.call, 1)
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    running = caller.start(leased, ended.set_result)
    try:
        if not (await asyncio.wait([ended], timeout=limit_s))[0]:
            running.interrupt(TimeLimitExceeded)
        error = await asyncio.shield(ended)
    except asyncio.CancelledError:  # Ctrl-C
        running.interrupt(HandedBack)
        await asyncio.wait([ended], timeout=_INTERRUPT_S)
        raise
    finally:
        caller.close()
    if isinstance(error, TimeLimitExceeded):  # the function caught it
        raise runner.failed(leased, error)
    if error is not None:
        raise error
    return cast(Done | None, running.result)


class LeaseRenewal:
    """A thread that renews the lease of the job that runs, for as long as it runs."""

    def __init__(self, every_s: float = _RENEW_S) -> None:
        self._every_s = every_s
        self._lock = Lock()
        self._kept: tuple[AnyQueue, LeasedMessage] | None = None
        self._is_over = Event()
        self._thread = Thread(target=self._run, name="penstock lease renewal", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def keep(self, queue: AnyQueue, leased: LeasedMessage) -> None:
        """Renew this lease until `let_go`."""
        with self._lock:
            self._kept = queue, leased

    def let_go(self) -> None:
        """Return when no renewal is under way."""
        with self._lock:
            self._kept = None

    def _run(self) -> None:
        while not self._is_over.wait(self._every_s):
            with self._lock:
                if self._kept is not None:
                    queue, leased = self._kept
                    try:
                        queue.extend(leased, LEASE_S)
                    except ReceiptInvalid as error:
                        log.warning("the lease of %s is lost while it runs: %s", leased.id, error)
                        self._kept = None
                    except PenstockError as error:
                        log.warning("the lease of %s could not be renewed: %s", leased.id, error)


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
    queue_of = None if in_child else tasks.queue
    return Runner(own, tasks.middleware, queue_name, queue_max_attempts, queue_of, report)
