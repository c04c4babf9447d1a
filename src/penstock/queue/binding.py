"""Methods that are defined once and bound twice: for threads and for tasks.

A definition is a coroutine function (or one that returns an asynchronous iterator or context
manager). A class for tasks has it as it is. A class for threads runs the coroutine to its end in
the caller's thread: nothing that it awaits suspends, because that class's primitives block.

    class Methods:
        @method
        async def stats(self) -> Stats: ...

    class Queue(Methods, ForThreads): ...    # Queue.stats() -> Stats
    class AsyncQueue(Methods, ForTasks): ...     # AsyncQueue.stats() -> Coroutine[..., Stats]

Type checkers see the right signature of both. At run time a class has plain functions: they are
made when the class is. `_fast_<name>` in a class replaces what would be made for `<name>`: a
hand-written function with the same parameters, for what is called for every message.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial, wraps
from itertools import starmap
from operator import methodcaller
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_args, overload

from penstock.operations import Operation

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")
S = TypeVar("S")

Function = Callable[..., Any]


SUSPENDED = "a method for threads waited for an event loop"
_start = methodcaller("send", None)


def finish(
    function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **options: P.kwargs
) -> R:
    """Call a function, run the coroutine that it returns and never suspends, return its result.

    The coroutine is made and started inside one call of C code, where no interrupt is raised. An
    interrupt between the two would make Python warn that the coroutine was never awaited.
    """
    bound = partial(function, **options) if options else function
    try:
        next(map(_start, starmap(bound, (args,))))
    except StopIteration as end:
        result: R = end.value
        return result
    raise RuntimeError(SUSPENDED)


def iterate(rows: AsyncIterator[R]) -> Iterator[R]:
    """Return an asynchronous iterator that never suspends as a plain one."""
    following: Any = rows.__anext__
    try:
        while True:
            try:
                row = finish(following)
            except StopAsyncIteration:
                return
            yield row
    finally:
        finish(getattr(rows, "aclose"))  # noqa: B009 - iterators have none, generators do


class _Block(AbstractContextManager[R]):
    """An asynchronous context manager that never suspends, as a plain one."""

    def __init__(self, block: AbstractAsyncContextManager[R]) -> None:
        self._block: Any = block

    def __enter__(self) -> R:
        entered: R = finish(self._block.__aenter__)
        return entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        handled: bool | None = finish(self._block.__aexit__, kind, error, trace)
        return handled


# -- classes ---------------------------------------------------------------------------------------


class ForThreads:
    """A class whose methods return their results."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _bind(cls, lambda definition: definition.for_threads())


class ForTasks:
    """A class whose methods return awaitables of their results."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _bind(cls, lambda definition: definition.for_tasks())


def _bind(cls: type, bound: "Callable[[Definition], Function]") -> None:
    """Put a plain function into a class for each definition that it inherits."""
    for base in cls.__mro__:
        for name, definition in tuple(vars(base).items()):
            if isinstance(definition, Definition):
                fast = vars(cls).get(f"_fast_{name}")
                if fast is not None:
                    setattr(cls, name, definition.dress(fast, bound(definition)))
                elif getattr(cls, name) is definition:
                    setattr(cls, name, bound(definition))


# -- definitions -----------------------------------------------------------------------------------


class Definition:
    """A function that a class for threads and a class for tasks have in two forms."""

    result: type | None = None  # the type that `for_threads` puts around the result, if any

    def __init__(self, function: Function) -> None:
        self.function = function

    def __set_name__(self, owner: type, name: str) -> None:
        self.function.__name__ = name
        self.function.__qualname__ = f"{owner.__qualname__}.{name}"

    def for_tasks(self) -> Function:
        return self.function

    def for_threads(self) -> Function:
        function, blocking = self.function, self._blocking

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            return blocking(function, *args, **options)

        signature: Any = inspect.signature(function)
        if self.result is not None:
            kind: Any = self.result
            returned = kind[get_args(signature.return_annotation)]
            signature = signature.replace(return_annotation=returned)
        dressed: Any = call
        dressed.__signature__ = signature
        return call

    def _blocking(self, function: Function, /, *args: Any, **options: Any) -> Any:
        return finish(function, *args, **options)

    def dress(self, fast: Function, bound: Function) -> Function:
        """Return a hand-written function with the name and docstring of the bound one."""
        fast.__name__, fast.__qualname__ = bound.__name__, bound.__qualname__
        fast.__doc__ = bound.__doc__
        return fast


class Method(Definition, Generic[P, R]):
    """A coroutine function; for threads, a function."""

    @overload
    def __get__(self, queue: None, owner: type) -> Callable[..., Any]: ...

    @overload
    def __get__(self, queue: ForThreads, owner: type) -> Callable[P, R]: ...

    @overload
    def __get__(self, queue: ForTasks, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def __get__(self, queue: object, owner: type) -> Callable[P, R | Coroutine[Any, Any, R]]: ...

    def __get__(self, queue: Any, owner: type) -> Any:
        return self


class Listing(Definition, Generic[P, R]):
    """A function that returns an asynchronous iterator; for threads, an iterator."""

    result = Iterator

    @overload
    def __get__(self, queue: None, owner: type) -> Callable[..., Any]: ...

    @overload
    def __get__(self, queue: ForThreads, owner: type) -> Callable[P, Iterator[R]]: ...

    @overload
    def __get__(self, queue: ForTasks, owner: type) -> Callable[P, AsyncIterator[R]]: ...

    def __get__(self, queue: Any, owner: type) -> Any:
        return self

    def _blocking(self, function: Function, /, *args: Any, **options: Any) -> Any:
        return iterate(function(*args, **options))


class Block(Definition, Generic[P, R]):
    """A function that returns an asynchronous context manager; for threads, a plain one."""

    @overload
    def __get__(self, queue: None, owner: type) -> Callable[..., Any]: ...

    @overload
    def __get__(self, queue: ForThreads, owner: type) -> Callable[P, AbstractContextManager[R]]: ...

    @overload
    def __get__(
        self, queue: ForTasks, owner: type
    ) -> Callable[P, AbstractAsyncContextManager[R]]: ...

    def __get__(self, queue: Any, owner: type) -> Any:
        return self

    def _blocking(self, function: Function, /, *args: Any, **options: Any) -> Any:
        return _Block(function(*args, **options))


def method(function: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Method[P, R]:
    """Define a method by a coroutine function."""
    return Method(function)


def listing(function: Callable[Concatenate[S, P], AsyncIterator[R]]) -> Listing[P, R]:
    """Define a method that returns an iterator, by one that returns an asynchronous iterator."""
    return Listing(function)


def block(
    function: Callable[Concatenate[S, P], AbstractAsyncContextManager[R]],
) -> Block[P, R]:
    """Define a method for `with` by one for `async with`."""
    return Block(function)


def runs(make: Callable[P, Operation[R]]) -> Method[P, R]:
    """Return a method that runs the operation that `make` makes of its arguments."""
    return runs_for(make, lambda answer: answer)


def runs_for(make: Callable[P, Operation[A]], read: Callable[[A], R]) -> Method[P, R]:
    """Return the same, with the result that `read` makes of the operation's answer."""

    async def call(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
        operation: Operation[A] = make(*args, **options)
        return read(await self._run(operation))

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    dressed: Any = call
    dressed.__doc__ = make.__doc__
    dressed.__signature__ = inspect.Signature([own, *inspect.signature(make).parameters.values()])
    return method(call)


async def value_of(result: R | Coroutine[Any, Any, R]) -> R:
    """Return the result of a bound method, of either form."""
    return await result if isinstance(result, Coroutine) else result
