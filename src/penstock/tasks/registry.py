"""`Tasks`: the functions of a program that can be enqueued, and where their queues are."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from penstock.checking import Duration, did_you_mean
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage, NewMessage
from penstock.operations.scheduling import ScheduleState
from penstock.queue.facade import AnyQueue
from penstock.queue.handlers import check_handler, is_coroutine_function
from penstock.tasks.cron import TaskSchedule, put_schedules
from penstock.tasks.envelope import check_task_name, feeds_of
from penstock.tasks.following import Follower
from penstock.tasks.job import Job
from penstock.tasks.middleware import MiddlewareStack, TaskMiddleware
from penstock.tasks.options import DEFAULT_QUEUE, LIMITS, TaskKeywords, TaskOptions
from penstock.tasks.places import OpenQueues, Place, place_of
from penstock.tasks.run import WorkflowRun
from penstock.tasks.task import AsyncTask, Enqueues, RunnableTask, Task

if TYPE_CHECKING:
    from penstock.client import OpenOptions

P = ParamSpec("P")
T = TypeVar("T")

Inline = Callable[[Enqueues[Any, Any], NewMessage], Job[Any]]


class _TaskDecorator:
    """What `tasks.task(queue="mail")`, `tasks.cron(…)` and `tasks.every(…)` return."""

    def __init__(
        self, tasks: "Tasks", options: TaskKeywords, timing: Mapping[str, Any] | None = None
    ) -> None:
        self._tasks = tasks
        self._options = options
        self._timing = timing

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, T]]
    ) -> AsyncTask[P, T]: ...

    @overload
    def __call__(self, function: Callable[P, T]) -> Task[P, T]: ...

    def __call__(self, function: Callable[..., Any]) -> Any:
        task = self._tasks.add(function, **self._options)
        if self._timing is not None:
            try:
                self._tasks.schedules.append(TaskSchedule.of(task, **self._timing))
            except InvalidInput:
                self._tasks.forget(task)
                raise
        return task


class Tasks:
    """The tasks of a program.

    `place` is a directory with a queue in each subdirectory, the URL of a broker (with a namespace,
    if it is not `default`), or `memory:`. Without it, the environment variable PENSTOCK_URL says
    it. Settings are those of `penstock.open`. Queues are opened when they are first used.

    >>> tasks = Tasks("memory:")
    >>> @tasks.task(keep_result_s=60)
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> add(1, 2)
    3
    >>> job = add.enqueue(1, 2)
    >>> tasks.run_pending()
    1
    >>> job.result()
    3
    >>> tasks.close()
    """

    def __init__(
        self,
        place: str | PathLike[str] | None = None,
        *,
        middleware: Iterable[TaskMiddleware] = (),
        shared: bool = True,
        **settings: Unpack["OpenOptions"],
    ) -> None:
        self._where = place
        self._shared = shared  # a directory: with other processes
        self._settings: Mapping[str, Any] = settings
        self._place: Place | None = None
        self._open = OpenQueues()
        self._follower = Follower(self)
        self._tasks: dict[str, RunnableTask] = {}
        self.schedules: list[TaskSchedule] = []
        self.middleware = MiddlewareStack(middleware)
        self.inline: Inline | None = None  # of `penstock.testing`: runs a job instead

    def __repr__(self) -> str:
        return f"<Tasks {self._where!r}: {', '.join(self._tasks) or 'none'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- defining ----------------------------------------------------------------------------------

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> AsyncTask[P, T]: ...

    @overload
    def task(self, function: Callable[P, T], /) -> Task[P, T]: ...

    @overload
    def task(self, **options: Unpack[TaskKeywords]) -> _TaskDecorator: ...

    def task(self, function: Any = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Make a function a task: `@tasks.task`, or `@tasks.task(queue="mail", timeout_s=30)`."""
        if function is None:
            return _TaskDecorator(self, cast(TaskKeywords, options))
        return self.add(function, **options)

    def add(self, function: Callable[..., Any], **options: Unpack[TaskKeywords]) -> RunnableTask:
        """Make a function a task, and return it."""
        _check_function(function)
        values: dict[str, Any] = dict(options)
        name = check_task_name(values.pop("name", getattr(function, "__name__", None)))
        for option in values:
            if option not in TaskKeywords.__annotations__:
                hint = did_you_mean(option, TaskKeywords.__annotations__)
                raise InvalidInput(f"a task has no option {option!r}; {hint}")
        if name in self._tasks:
            raise InvalidInput(f"there is a task {name!r} already: give one of them another name=")
        if values.keys() & LIMITS:
            values.setdefault("queue", name)
        kind = AsyncTask if is_coroutine_function(function) else Task
        made: RunnableTask = kind(self, name, function, TaskOptions(**values))
        self._check_limits_alone(made)
        self._tasks[name] = made
        return made

    def _check_limits_alone(self, new: RunnableTask) -> None:
        """Raise InvalidInput if a task with limits would share its queue with another."""
        queue = new.options.queue
        for other in self._tasks.values():
            if other.options.queue == queue and (other.options.limits or new.options.limits):
                limited = new if new.options.limits else other
                raise InvalidInput(
                    f"the tasks {other.name!r} and {new.name!r} both use the queue {queue!r}, and "
                    f"the limits of {limited.name!r} are those of its queue: give it a queue of "
                    f"its own"
                )

    def limits_of(self, queue: str) -> Mapping[str, Any]:
        """The settings of a queue that hold the limits of its task; empty if it has none."""
        for task in self._tasks.values():
            if task.options.queue == queue:
                return task.options.limits
        return {}

    def cron(
        self,
        expression: str,
        *,
        timezone: str = "UTC",
        misfire: str = "once",
        **options: Unpack[TaskKeywords],
    ) -> _TaskDecorator:
        """Make a function a task that runs by a cron expression: `@tasks.cron("30 6 * * mon-fri")`.

        `misfire` says what happens to ticks that were missed: "skip", "once" or "all".
        """
        if callable(expression):
            raise InvalidInput(
                f"@tasks.cron over {expression!r} needs an expression: @tasks.cron('0 6 * * *')"
            )
        if "time_zone" in options:
            raise InvalidInput("cron has no option time_zone; it is timezone= here")
        timing = {"cron": expression, "every_s": None, "time_zone": timezone, "misfire": misfire}
        return _TaskDecorator(self, options, timing)

    def every(
        self, every_s: Duration, *, misfire: str = "once", **options: Unpack[TaskKeywords]
    ) -> _TaskDecorator:
        """Make a function a task that runs at an interval, from 1 second on."""
        if callable(every_s):
            raise InvalidInput(
                f"@tasks.every over {every_s!r} needs an interval in seconds: @tasks.every(60)"
            )
        timing = {"cron": None, "every_s": every_s, "time_zone": None, "misfire": misfire}
        return _TaskDecorator(self, options, timing)

    def forget(self, task: RunnableTask) -> None:
        """Remove a task. Jobs that were enqueued are not run any more."""
        self._tasks.pop(task.name, None)

    def put_schedules(self) -> list[ScheduleState]:
        """Put the schedules of `cron` and `every` on record. A worker does so when it starts."""
        return put_schedules(self)

    def __getitem__(self, name: str) -> RunnableTask:
        return self._tasks[name]

    def __iter__(self) -> Iterator[RunnableTask]:
        return iter(list(self._tasks.values()))

    def get(self, name: str) -> RunnableTask | None:
        return self._tasks.get(name)

    @property
    def queue_names(self) -> list[str]:
        """The queues that the tasks use, sorted."""
        return sorted({task.options.queue for task in self._tasks.values()})

    # -- queues ------------------------------------------------------------------------------------

    def queue(self, name: str = DEFAULT_QUEUE) -> AnyQueue:
        """Return one of the queues, open. It is closed with the others, by `close`."""
        return self._open.get(name, self._used_place(), self.limits_of(name))

    def prepare(self, name: str) -> None:
        """Set the limits of a task at a broker, if it has some. A worker does so when it starts."""
        limits = self.limits_of(name)
        if limits:
            self._used_place().prepare(name, limits)

    def known_queues(self) -> list[str]:
        """Return the names of the queues that are used, open or there."""
        names = [*self.queue_names, *self._open.names(), *self._used_place().queues()]
        return list(dict.fromkeys(names))

    def follow(self, queues: Iterable[str], *, at_once: bool = False) -> int:
        """Tell these queues what became of messages of others that their messages come after.

        A broker does that by itself, soon; with `at_once`, it is done when this returns. In a
        directory workers do it, and processes that change a workflow. Return the number of changes.
        """
        if self._used_place().follows and not at_once:
            return 0
        return self._follower.follow(queues)

    def settled(self, queue: str, messages: Iterable[LeasedMessage]) -> None:
        """Let steps of other queues go that come after settled messages of a queue."""
        if self._used_place().follows:
            return
        fed: dict[tuple[str, ...], list[str]] = {}
        for message in messages:
            if feeds := tuple(feeds_of(message.payload)):
                fed.setdefault(feeds, []).append(message.id)
        for feeds, ids in fed.items():
            self._follower.settled(ids, queue, feeds)

    def _used_place(self) -> Place:
        if self._place is None:
            self._place = place_of(self._where, self._settings, shared=self._shared)
        return self._place

    def job(self, id: str, *, queue: str = DEFAULT_QUEUE) -> Job[Any]:
        """Return a job by its id."""
        return Job(self, queue, id)

    def workflow(self, id: str, *, queue: str = DEFAULT_QUEUE) -> WorkflowRun:
        """Return a workflow by its id."""
        return WorkflowRun(self, queue, id)

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Use queues of another place within a block, such as in tests."""
        before = self._place, self._open
        self._place, self._open = place, OpenQueues()
        try:
            yield
        finally:
            self._open.close()
            self._place, self._open = before

    def close(self) -> None:
        """Close the queues that were opened. They are opened again if they are used again."""
        self._open.close()

    # -- running -----------------------------------------------------------------------------------

    def run_pending(self, *, limit: int = 10_000) -> int:
        """Run jobs that are ready, one after the other in this thread, until none is left.

        Return their number, at most `limit`. For scripts and tests; `TasksWorker` is for services.
        """
        from penstock.tasks.pending import run_pending  # it imports this module

        return run_pending(self, limit)

    async def arun_pending(self, *, limit: int = 10_000) -> int:
        """Do the same in an event loop: coroutines run in it, functions in threads."""
        from penstock.tasks.pending import arun_pending

        return await arun_pending(self, limit)


def _check_function(function: object) -> None:
    """Raise InvalidInput if this cannot be a task: no function, or one that needs an object."""
    if isinstance(function, str):
        raise InvalidInput(
            f"@tasks.task is given {function!r}, which is no function: its name is an option, "
            f"@tasks.task(name={function!r})"
        )
    parameters = getattr(getattr(function, "__code__", None), "co_varnames", ())
    in_class = "." in getattr(function, "__qualname__", "").rpartition("<locals>.")[2]
    is_method = in_class and parameters[:1] in (("self",), ("cls",))
    if is_method or isinstance(function, classmethod | staticmethod):
        raise InvalidInput(
            f"{function!r} is a method: the object or class that it needs is not part of a "
            f"message. Make a function a task, with what it needs as arguments"
        )
    if not callable(function):
        raise InvalidInput(f"{function!r} is no function, so it cannot be a task")
    check_handler(function)
