"""The worker of tasks: runs the jobs of all queues of a `Tasks`.

Each queue has calls of its own, so a queue with slow jobs does not hold up another. Functions run
in threads, coroutine functions in the event loop. With `processes`, all run in child processes
instead: for work that needs cores, and to end what a thread cannot end.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from penstock.checking import check_number, check_whole, did_you_mean
from penstock.errors import InvalidInput, TooManyRequests, Unavailable
from penstock.tasks.following import WorkerNews
from penstock.tasks.pending import runner_of
from penstock.tasks.places import max_attempts_of
from penstock.tasks.processes import ProcessCaller
from penstock.tasks.progress import ProgressReports, Report
from penstock.tasks.registry import Tasks
from penstock.tasks.running import Runner
from penstock.worker import Counts, WorkerOptions
from penstock.worker.calling import Caller, caller_of
from penstock.worker.shift import FIRST_PAUSE_S, LONGEST_PAUSE_S, Shift
from penstock.worker.stopping import StopButton

log = logging.getLogger("penstock.tasks")

_CHECKED_BY_WORKER = ("concurrency", "lease_s", "prefetch", "stop_s", "idle_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksWorkerOptions:
    """The options of a worker of tasks. `docs/tasks.md` lists them; a test compares the two."""

    queues: Sequence[str] = ()  # empty: all queues of the tasks
    concurrency: int = 8  # jobs of each queue at a time
    processes: int = 0  # child processes that run the jobs of each queue; 0: threads and the loop
    lease_s: float = 30.0  # renewed as long as a job runs
    prefetch: int = 500  # maximum number of jobs that are leased ahead
    stop_s: float = 20.0  # how long a stop waits for running jobs; then they are handed back
    idle_s: float | None = None  # stop when no job came for so long; None: never

    def __post_init__(self) -> None:
        check_whole("processes", self.processes, 0, 1000)
        check_number("stop_s", self.stop_s, 0, 86400)
        self.for_queue()

    def for_queue(self) -> WorkerOptions:
        """Return the options of the worker of one queue."""
        own = {name: getattr(self, name) for name in _CHECKED_BY_WORKER}
        if self.processes:
            own["concurrency"] = self.processes
        return WorkerOptions(**own)


class TasksWorker:
    """Runs the jobs of a `Tasks` until it is stopped.

    `target` is needed for child processes only: MODULE:NAME, under which they import the tasks.

    >>> tasks = Tasks("memory:")
    >>> @tasks.task
    ... def greet(name: str) -> None:
    ...     print("hello", name)
    >>> job = greet.enqueue("Ann")
    >>> TasksWorker(tasks, options=TasksWorkerOptions(idle_s=0)).run().done
    hello Ann
    1
    >>> tasks.close()
    """

    def __init__(
        self, tasks: Tasks, *, options: TasksWorkerOptions | None = None, target: str | None = None
    ) -> None:
        if not isinstance(tasks, Tasks):
            raise InvalidInput(f"tasks is {tasks!r}; it must be a penstock.tasks.Tasks")
        self._tasks = tasks
        self._options = options or TasksWorkerOptions()
        self._target = target
        self._button = StopButton()
        self._announced: set[str] = set()  # queues whose work was logged: one log line each
        self._holder = f"{socket.gethostname()}:{os.getpid()}"
        names = tasks.queue_names
        if not names:
            raise InvalidInput("there are no tasks: decorate functions with @tasks.task")
        for name in self._options.queues:
            if name not in names:
                raise InvalidInput(f"no task uses queue {name!r}; {did_you_mean(name, names)}")
        self._names = list(self._options.queues) or names
        if self._options.processes and target is None:
            raise InvalidInput("processes need target=MODULE:NAME, to import the tasks in a child")

    def run(self) -> Counts:
        """Work until a stop, SIGTERM or SIGINT. Return the number of jobs by outcome."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        return asyncio.run(self.work(heed_signals=in_main_thread))

    async def work(self, *, heed_signals: bool = False) -> Counts:
        """Do the same in a program that has an event loop of its own."""
        counts = Counts()
        self._news = WorkerNews(self._tasks, self._names)
        with self._button.at_work(heed_signals=heed_signals):
            put = self._tasks.put_schedules
            is_working = await self._retried("the schedules could not be put", put)
            while is_working:
                before = asdict(counts)
                await self._news.look()
                async with self._news.carried():
                    await self._work_once(counts)
                # A job of one queue may have enqueued another in a queue that was idle before.
                is_working = not self._button.asked.is_set() and asdict(counts) != before
        return counts

    def stop(self) -> None:
        """Lease no more, let jobs finish within `stop_s`, and release the others.

        Callable from any thread. A second call does not wait.
        """
        self._button.press()

    async def _retried(self, failure: str, call: Callable[[], object]) -> bool:
        """Call, once at least, until the broker answers. Return False if a stop came first."""
        asked, pause_s = asyncio.ensure_future(self._button.asked.wait()), FIRST_PAUSE_S
        try:
            while not asked.done():
                try:
                    await asyncio.to_thread(call)
                    return True
                except (Unavailable, TooManyRequests) as error:
                    log.warning("%s; next try in %.1f s: %s", failure, pause_s, error)
                await asyncio.wait([asked], timeout=pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            return False
        finally:
            asked.cancel()

    async def _work_once(self, counts: Counts) -> None:
        """Work on all queues until a stop, or until each was idle. If one fails, all stop."""
        working = [asyncio.ensure_future(self._work_on(name, counts)) for name in self._names]
        try:
            await asyncio.wait(working, return_when=asyncio.FIRST_EXCEPTION)
            if any(one.done() and one.exception() for one in working):
                self._button.press()
        except asyncio.CancelledError:
            for one in working:
                one.cancel()
            raise
        finally:
            await asyncio.wait(working)
        for one in working:
            one.result()

    async def _work_on(self, name: str, counts: Counts) -> None:
        prepare = partial(self._tasks.prepare, name)
        if not await self._retried(f"the limits of queue {name} could not be set", prepare):
            return
        opened = self._tasks.queue(name)
        most = await asyncio.to_thread(max_attempts_of, opened)
        queue = opened.for_tasks()
        reports = ProgressReports(queue, self._options.lease_s)
        caller: Caller | None = None
        try:
            runner = runner_of(self._tasks, name, most, report=reports.report)
            caller, time_limit_of = self._caller(name, runner, most, reports.report)
            options, holder, button = self._options.for_queue(), self._holder, self._button
            working = Shift(
                *(queue, caller, options, holder, counts, button, time_limit_of),
                warns_if_new=False,  # its name is that of tasks, and is not misspelt
                on_settled=partial(self._news.settled, name),
                announces=name not in self._announced,
            )
            self._announced.add(name)
            await working.work()
        finally:
            if isinstance(caller, ProcessCaller):
                await asyncio.to_thread(caller.join)
            await reports.close()
            await queue.close()

    def _caller(
        self, name: str, runner: Runner, most: int | None, report: Report
    ) -> tuple[Caller, Callable[..., float | None] | None]:
        """Return what calls the functions of a queue, and their time limits."""
        options = self._options
        own = [task for task in self._tasks if task.options.queue == name]
        if options.processes and self._target is not None:
            count = options.processes
            return ProcessCaller(self._target, name, most, count, runner, report), None
        kinds = {task.is_async for task in own}
        limited = any(task.options.timeout_s is not None for task in own if not task.is_async)
        time_limit_of = runner.time_limit_s if limited else None
        if kinds == {True}:
            return caller_of(runner.call_async, options.concurrency), None
        if kinds == {False}:
            # A time limit begins with the call: no thread is given calls ahead of it.
            ahead = 0 if limited else options.prefetch
            return caller_of(runner.call, options.concurrency, ahead), time_limit_of
        return caller_of(runner, options.concurrency), time_limit_of
