"""A task: a function that can be called, and that can be enqueued with the same arguments."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from penstock.checking import as_seconds, check_number, did_you_mean
from penstock.model import NewMessage
from penstock.queue.dedup import UNIQUE_PREFIX
from penstock.queue.unique import HEADER, header_of
from penstock.tasks.arguments import Arguments
from penstock.tasks.envelope import pack
from penstock.tasks.job import Job
from penstock.tasks.options import (
    MAX_KEEP_RESULT_S,
    EnqueueOptions,
    TaskOptions,
    check_unique,
)

if TYPE_CHECKING:
    from penstock.tasks.registry import Tasks
    from penstock.tasks.steps import Signature

P = ParamSpec("P")
T = TypeVar("T")

_OF_MESSAGE = ("delay", "deliver_at", "key", "tenant", "ttl")


class Enqueues(Generic[P, T]):
    """What can be enqueued: a task, or a task with options."""

    def __init__(
        self,
        tasks: "Tasks",
        name: str,
        arguments: Arguments,
        options: TaskOptions,
        own: EnqueueOptions,
    ) -> None:
        self.tasks = tasks
        self.name = name
        self.options = options
        self.arguments = arguments
        self._own = own
        self._is_plain = not own and options.priority is None and options.max_attempts is None
        self._is_plain &= options.unique_for_s is None and options.unique is None

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Publish a call. A worker runs it.

        Raise InvalidInput if an argument does not fit its annotation; then nothing is published.
        """
        tasks, options = self.tasks, self.options
        encoded = self.arguments.encode(args, kwargs)
        if tasks.inline is not None:
            return tasks.inline(self, self.message_of(encoded))
        queue = tasks.queue(options.queue)
        if self._is_plain and not tasks.middleware.adds_headers:
            job_id = queue.enqueue(pack(self.name, encoded, options.keep_result_s))
            return Job(tasks, options.queue, job_id, self.arguments)
        (published,) = queue.publish([self.message_of(encoded)])
        return Job(
            tasks, options.queue, published.id, self.arguments, is_duplicate=published.duplicate
        )

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Do the same without blocking the event loop."""
        return await asyncio.to_thread(self.enqueue, *args, **kwargs)

    def job(self, id: str) -> Job[T]:
        """Return a job of this task by its id, for example in another process."""
        return Job(self.tasks, self.options.queue, id, self.arguments)

    def message_of(self, encoded: bytes) -> NewMessage:
        """Return the message of a call with encoded arguments."""
        own, options = self._own, self.options
        keep_s = own.get("keep_result_s")
        if keep_s is not None:
            keep_s = check_number("keep_result_s", as_seconds(keep_s), 0, MAX_KEEP_RESULT_S)
        mode, unique_s = self._unique()
        name = self._unique_id(own.get("unique_key"), encoded) if mode or unique_s else None
        given: Mapping[str, str] | None = own.get("headers")
        headers = self.tasks.middleware.headers_of(self, None if given is None else dict(given))
        if mode is not None and name is not None:
            headers = {**(headers or {}), HEADER: header_of(mode, name)}
        priority = own.get("priority")
        attempts = own.get("max_attempts")
        rest: Any = {name: own[name] for name in _OF_MESSAGE if name in own}  # type: ignore[literal-required]
        return NewMessage(
            payload=pack(self.name, encoded, options.keep_result_s if keep_s is None else keep_s),
            priority=options.priority if priority is None else priority,
            headers=headers,
            dedup_id=None if mode is not None else name,
            dedup_window_s=unique_s,
            max_attempts=options.max_attempts if attempts is None else attempts,
            **rest,
        )

    def _unique(self) -> tuple[str | None, Any]:
        """Return the mode and the window of a unique job. Those of the call replace the task's."""
        mode, for_s = self._own.get("unique"), self._own.get("unique_for_s")
        if mode is None and for_s is None:
            mode, for_s = self.options.unique, self.options.unique_for_s
        check_unique(mode, for_s)
        return mode, for_s

    def _unique_id(self, key: str | None, encoded: bytes) -> str:
        """Return the dedup id of a unique job: by its key, or else by its arguments."""
        if key is not None:
            return f"{UNIQUE_PREFIX}{self.name}:key:{key}"
        digest = hashlib.sha256(self.arguments.normalised(encoded)).hexdigest()
        return f"{UNIQUE_PREFIX}{self.name}:args:{digest}"


class _WithFunction(Enqueues[P, T]):
    """A task of either kind."""

    is_async = False
    __name__: str

    def __init__(
        self, tasks: "Tasks", name: str, function: Callable[..., Any], options: TaskOptions
    ) -> None:
        super().__init__(tasks, name, Arguments(name, function), options, {})
        self.function = function
        wrapped: Any = self
        update_wrapper(wrapped, function)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def with_options(self, **options: Unpack[EnqueueOptions]) -> Enqueues[P, T]:
        """Return the task with options for `enqueue`: delay, priority, key, unique_for_s, …"""
        for name in options:
            if name not in EnqueueOptions.__annotations__:
                hint = did_you_mean(name, EnqueueOptions.__annotations__)
                raise TypeError(f"with_options has no option {name!r}; {hint}")
        if options.get("unique_key") is not None and not (
            options.get("unique")
            or options.get("unique_for_s")
            or self.options.unique
            or self.options.unique_for_s
        ):
            raise TypeError(
                "unique_key needs unique or unique_for_s: how long no other job may have the key"
            )
        check_unique(options.get("unique"), options.get("unique_for_s"))
        return Enqueues(self.tasks, self.name, self.arguments, self.options, options)

    def s(self, *args: Any, **kwargs: Any) -> "Signature":
        """Return a call for a workflow. In a chain it gets the result before it first."""
        from penstock.tasks.steps import Signature  # it imports this module

        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> "Signature":
        """Return a call for a workflow that gets no result of the step before it."""
        from penstock.tasks.steps import Signature

        return Signature(self, args, kwargs, takes_result=False)


class Task(_WithFunction[P, T]):
    """A function that is a task. A call runs it here and now."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self.function(*args, **kwargs)
        return result


class AsyncTask(_WithFunction[P, T]):
    """A coroutine function that is a task. A call returns its coroutine."""

    is_async = True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        coroutine: Coroutine[Any, Any, T] = self.function(*args, **kwargs)
        return coroutine


AnyTask = Enqueues[Any, Any]
RunnableTask = _WithFunction[Any, Any]
