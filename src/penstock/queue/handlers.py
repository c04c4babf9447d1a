"""Handlers and other objects of the user's: what may be one, and whether a call did its work.

Calling a coroutine or generator function does not run its body. If it were used as a plain
function, its messages would be acked without having been handled.
"""

from collections.abc import Callable, Iterable
from functools import partial
from inspect import (
    isasyncgen,
    isasyncgenfunction,
    isawaitable,
    iscoroutinefunction,
    isgenerator,
    isgeneratorfunction,
)

from penstock.errors import InvalidInput


def check_handler(handler: object) -> None:
    """Refuse what cannot be called, and a generator function."""
    if not callable(handler):
        raise InvalidInput(
            f"handler is {handler!r}; it must be a function that takes a leased message"
        )
    if _is(isgeneratorfunction, handler) or _is(isasyncgenfunction, handler):
        raise InvalidInput(
            f"handler {handler!r} is a generator function: a call of it runs nothing. Give a "
            f"function that returns when the work is done, without yield"
        )


def check_plain_handler(handler: object) -> None:
    """Refuse a coroutine function as well: there is no event loop to run it."""
    check_handler(handler)
    if is_coroutine_function(handler):
        raise InvalidInput(
            f"handler {handler!r} is a coroutine function, and this queue is for threads: open it "
            f"with penstock.aio, use penstock.worker.Worker, or give a plain function"
        )


def is_coroutine_function(handler: object) -> bool:
    """Return whether a call gives a coroutine: of a function, a partial, or an object."""
    return _is(iscoroutinefunction, handler)


def _is(kind: Callable[[object], bool], handler: object) -> bool:
    while isinstance(handler, partial):
        handler = handler.func
    return kind(handler) or kind(getattr(handler, "__call__", None))  # noqa: B004 - its type


def check_extension(
    name: str, value: object, methods: Iterable[str], *, may_be_async: bool = False
) -> None:
    """Raise InvalidInput if an object lacks a method, or is a class instead of an object."""
    if isinstance(value, type):
        raise InvalidInput(
            f"{name} is the class {value.__name__}: give an object of it, {value.__name__}()"
        )
    for method in methods:
        function = getattr(value, method, None)
        if not callable(function):
            raise InvalidInput(f"{name} is {value!r}; it must have the method {method}")
        if not may_be_async and is_coroutine_function(function):
            raise InvalidInput(
                f"{name} is {value!r}; its method {method} is a coroutine function, which is not "
                f"awaited here: make it a plain function"
            )


def check_done(result: object) -> None:
    """Refuse a returned awaitable or generator: the work in it has not run. Close it."""
    if result is None:
        return
    if isawaitable(result):
        what = "which was not awaited: open the queue with penstock.aio, or use Worker"
    elif isgenerator(result) or isasyncgen(result):
        what = "which was not run: return when the work is done, without yield"
    else:
        return
    end(result)
    raise InvalidInput(f"the handler returned a {type(result).__name__}, {what}")


async def done(result: object) -> object:
    """Await a returned awaitable, and what that returns. Refuse a generator."""
    while isawaitable(result):
        result = await result
    check_done(result)
    return result


def end(result: object) -> None:
    """Close a coroutine or generator, or cancel a future, that will not be run."""
    close = getattr(result, "close", None) or getattr(result, "cancel", None)
    if callable(close):
        close()
