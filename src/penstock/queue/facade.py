"""The methods that every queue has: embedded or of a broker, for threads or for tasks.

Each is one line here, made from the operation that it runs: the operation's fields are the
method's parameters, its docstring is the method's. A queue for threads returns the answer, one for
tasks an awaitable of it; type checkers see the right one of both.

    seek = method(Seek)        # Queue.seek(to=None, *, seq=None, ...) -> int
                               # AsyncQueue.seek(to=None, *, seq=None, ...) -> Coroutine[..., int]

What is called for every message (publish, lease, ack) has no line here: those methods are written
out in each queue, so that nothing stands between the caller and the fast path.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, overload

from penstock.model import MAIN_GROUP_NAME, Message
from penstock.operations import (
    Cancel,
    CreateGroup,
    DeleteGroup,
    Discard,
    ExplainWait,
    Extend,
    GetMessage,
    GetRetryInfo,
    GetStats,
    ListGroups,
    Nack,
    Operation,
    Pause,
    Peek,
    Purge,
    Redrive,
    Release,
    Resume,
    Row,
    Seek,
    Sync,
)

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")


class ForThreads:
    """Marks a class whose methods return their answers."""


class ForTasks:
    """Marks a class whose methods return awaitables of their answers."""


class Blocking(ForThreads):
    """Runs operations for threads."""

    def run(self, operation: Operation[A]) -> A:
        """Run an operation and return its answer."""
        raise NotImplementedError


class Awaiting(ForTasks):
    """Runs operations for tasks."""

    async def run(self, operation: Operation[A]) -> A:
        """Run an operation and return its answer."""
        raise NotImplementedError


class Method(Generic[P, R]):
    """A method that makes an operation of its arguments and gives it to its object's `run`.

    Accessed on a queue it is an ordinary bound method, with the signature and docstring of `make`.
    """

    def __init__(self, make: Callable[..., Any], read: Callable[[Any], Any]) -> None:
        def blocking(queue: Any, *args: Any, **options: Any) -> Any:
            return read(queue.run(make(*args, **options)))

        async def awaiting(queue: Any, *args: Any, **options: Any) -> Any:
            return read(await queue.run(make(*args, **options)))

        self._make = make
        self._blocking, self._awaiting = blocking, awaiting

    def __set_name__(self, owner: type, name: str) -> None:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        taken = inspect.signature(self._make).parameters.values()
        function: Any
        for function in (self._blocking, self._awaiting):
            function.__name__ = name
            function.__qualname__ = f"{owner.__qualname__}.{name}"
            function.__module__ = owner.__module__
            function.__doc__ = self._make.__doc__
            function.__signature__ = inspect.Signature([own, *taken])

    @overload
    def __get__(self, queue: ForThreads, owner: type) -> Callable[P, R]: ...

    @overload
    def __get__(self, queue: ForTasks, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def __get__(self, queue: None, owner: type) -> Callable[..., Any]: ...

    def __get__(self, queue: Any, owner: type) -> Any:
        function = self._awaiting if issubclass(owner, ForTasks) else self._blocking
        return function.__get__(queue, owner)


def method(make: Callable[P, Operation[R]]) -> Method[P, R]:
    """Return a method that runs the operation that `make` makes of its arguments."""
    return Method(make, lambda answer: answer)


def method_of(make: Callable[P, Operation[A]], read: Callable[[A], R]) -> Method[P, R]:
    """The same, whose result is read from the operation's answer."""
    return Method(make, read)


def _get(id: str) -> GetMessage:
    """Return a message by its id, done or not, as long as its bytes are kept."""
    return GetMessage(id)


def _get_state(id: str, *, group: str = MAIN_GROUP_NAME) -> GetMessage:
    """Return a message's state: ready, scheduled, leased, parked, dead, expired or done."""
    return GetMessage(id, group=group)


def _messages(rows: list[Row]) -> list[Message]:
    return [row.message for row in rows]


def _message(row: Row) -> Message:
    return row.message


def _state(row: Row) -> str:
    return row.state


def _nothing(answer: object) -> None:
    return None


class QueueMethods:
    """The methods of every queue that run one operation each."""

    # settling
    nack = method(Nack)
    extend = method(Extend)
    release = method(Release)
    # looking
    peek = method_of(Peek, _messages)
    get = method_of(_get, _message)
    state = method_of(_get_state, _state)
    why = method(ExplainWait)
    retry_info = method(GetRetryInfo)
    stats = method(GetStats)
    # operating
    seek = method(Seek)
    cancel = method(Cancel)
    purge = method(Purge)
    pause = method(Pause)
    resume = method(Resume)
    redrive = method(Redrive)
    discard = method(Discard)
    sync = method(Sync)


class _GroupMethods:
    create = method_of(CreateGroup, _nothing)
    delete = method(DeleteGroup)


class Groups(_GroupMethods, Blocking):
    """The consumer groups of a queue: independent readers with their own position, leases and
    dead letters. Iterate over their names; `"audit" in queue.groups` asks for one."""

    def __init__(self, queue: Blocking) -> None:
        self._queue = queue

    def run(self, operation: Operation[A]) -> A:
        return self._queue.run(operation)

    def __iter__(self) -> Iterator[str]:
        return iter(self.run(ListGroups()))

    def __contains__(self, name: object) -> bool:
        return name in self.run(ListGroups())

    def __len__(self) -> int:
        return len(self.run(ListGroups()))


class AsyncGroups(_GroupMethods, Awaiting):
    """The consumer groups of a queue, for tasks."""

    names = method(ListGroups)

    def __init__(self, queue: Awaiting) -> None:
        self._queue = queue

    async def run(self, operation: Operation[A]) -> A:
        return await self._queue.run(operation)
