"""Extension points of a worker: hooks around the handler, and a serializer for its argument."""

import logging
from collections.abc import Awaitable, Iterable, Iterator
from inspect import isawaitable
from typing import Any, Protocol

from penstock.errors import InvalidInput
from penstock.model import LeasedMessage
from penstock.queue.handlers import (
    check_done,
    check_extension,
    done,
    is_coroutine_function,
)
from penstock.queue.serializing import Serializer, check_serializer
from penstock.worker.calling import Handler

log = logging.getLogger("penstock.worker")

_RAISED_BY_HOOKS = (Exception, SystemExit, KeyboardInterrupt)

_HOOKS = ("before", "after", "failed")
_Begun = list[tuple["Middleware", list[LeasedMessage]]]  # those whose `before` was called


class Middleware(Protocol):
    """Hooks around the handling of each message. Derive from it to override only some of them.

    They are called in the thread or task of the handler. If the handler is a coroutine function,
    they may be coroutine functions. None is called for a message that is handed back at a stop.
    """

    def before(self, message: LeasedMessage) -> object:
        """Called before the handler. If it raises, the message fails without the handler."""
        return None

    def after(self, message: LeasedMessage) -> object:
        """Called when the handler returned, before the ack. What it raises is logged."""
        return None

    def failed(self, message: LeasedMessage, error: Exception) -> object:
        """Called if the handler, this `before` or a later one raised. What it raises is logged.

        Not called if an earlier `before` raised: this one did not run then.
        """
        return None


def wrapped(
    handler: Handler, middleware: Iterable[Middleware], serializer: Serializer[Any] | None
) -> Handler:
    """Return a handler with its middleware, which gets decoded payloads if there is a serializer.

    Raise InvalidInput if an argument is something else.
    """
    is_async = is_coroutine_function(handler)
    if not isinstance(middleware, Iterable):
        raise InvalidInput(f"middleware is {middleware!r}; it must be a list of objects with hooks")
    middleware = tuple(middleware)
    for one in middleware:
        check_extension("middleware", one, _HOOKS, may_be_async=is_async)
    if serializer is not None:
        check_serializer(serializer)
    if not middleware and serializer is None:
        return handler
    wrapper = _WrappedHandler(handler, middleware, serializer)
    return wrapper.in_task if is_async else wrapper.in_thread


class _WrappedHandler:
    """A handler with its middleware: hooks run in order before it, in reverse order after."""

    def __init__(
        self,
        handler: Handler,
        middleware: tuple[Middleware, ...],
        serializer: Serializer[Any] | None,
    ) -> None:
        self._handler = handler
        self._middleware = middleware
        self._serializer = serializer

    def _call(self, argument: Any) -> object:
        if self._serializer is None:
            return self._handler(argument)
        decode = self._serializer.decode
        if isinstance(argument, list):
            return self._handler([decode(message.payload) for message in argument])
        return self._handler(decode(argument.payload))

    def in_thread(self, argument: Any) -> object:
        begun: _Begun = []
        try:
            for one, message in self._each(argument, begun):
                check_done(one.before(message))
            result = self._call(argument)
            if isawaitable(result):
                return self._finish(result, begun)  # awaited by the worker
            check_done(result)
        except Exception as error:
            self._notify("failed", begun, error)
            raise
        self._notify("after", begun)
        return result

    async def in_task(self, argument: Any) -> object:
        begun: _Begun = []
        try:
            for one, message in self._each(argument, begun):
                await done(one.before(message))
            result = await done(self._call(argument))
        except Exception as error:
            await self._notify_async("failed", begun, error)
            raise
        await self._notify_async("after", begun)
        return result

    async def _finish(self, running: Awaitable[object], begun: "_Begun") -> object:
        try:
            result = await done(running)
        except Exception as error:
            self._notify("failed", begun, error)
            raise
        self._notify("after", begun)
        return result

    def _each(self, argument: Any, begun: "_Begun") -> Iterator[tuple[Middleware, LeasedMessage]]:
        """Yield each middleware with each message, and add it to `begun` first."""
        for one in self._middleware:
            messages: list[LeasedMessage] = []
            begun.append((one, messages))
            for message in argument if isinstance(argument, list) else [argument]:
                messages.append(message)
                yield one, message

    def _notify(self, hook: str, begun: "_Begun", *error: Exception) -> None:
        for one, messages in reversed(begun):
            for message in messages:
                try:
                    check_done(getattr(one, hook)(message, *error))
                except _RAISED_BY_HOOKS:
                    log.exception("middleware %r: %s of %s failed", one, hook, message.id)

    async def _notify_async(self, hook: str, begun: "_Begun", *error: Exception) -> None:
        for one, messages in reversed(begun):
            for message in messages:
                try:
                    await done(getattr(one, hook)(message, *error))
                except _RAISED_BY_HOOKS:
                    log.exception("middleware %r: %s of %s failed", one, hook, message.id)
