"""Extension points of a worker: hooks around the handler, and a serializer for its argument."""

import logging
from collections.abc import Awaitable, Sequence
from inspect import isawaitable
from typing import Any, Protocol, runtime_checkable

from penstock.errors import InvalidInput
from penstock.model import LeasedMessage
from penstock.queue.handlers import check_done, done, is_coroutine_function
from penstock.queue.serializing import Serializer, check_serializer
from penstock.worker.calling import Handler

log = logging.getLogger("penstock.worker")

_RAISED_BY_HOOKS = (Exception, SystemExit, KeyboardInterrupt)

_HOOKS = ("before", "after", "failed")


@runtime_checkable
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
        """Called when the handler, or `before`, raised. What it raises is logged."""
        return None


def wrapped(
    handler: Handler, middleware: Sequence[Middleware], serializer: Serializer[Any] | None
) -> Handler:
    """Return a handler with its middleware, which gets decoded payloads if there is a serializer.

    Raise InvalidInput if an argument is something else.
    """
    is_async = is_coroutine_function(handler)
    for one in middleware:
        if not isinstance(one, Middleware):
            raise InvalidInput(f"middleware {one!r} must have methods before, after and failed")
        if not is_async and any(is_coroutine_function(getattr(one, name)) for name in _HOOKS):
            raise InvalidInput(
                f"middleware {one!r} has a coroutine function, and the handler is a plain function"
            )
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
        middleware: Sequence[Middleware],
        serializer: Serializer[Any] | None,
    ) -> None:
        self._handler = handler
        self._middleware = tuple(middleware)
        self._reverse = self._middleware[::-1]
        self._serializer = serializer

    def _call(self, argument: Any) -> object:
        if self._serializer is None:
            return self._handler(argument)
        decode = self._serializer.decode
        if isinstance(argument, list):
            return self._handler([decode(message.payload) for message in argument])
        return self._handler(decode(argument.payload))

    def in_thread(self, argument: Any) -> object:
        messages = _messages(argument)
        try:
            for one in self._middleware:
                for message in messages:
                    check_done(one.before(message))
            result = self._call(argument)
            if isawaitable(result):
                return self._finish(result, messages)  # awaited by the worker
            check_done(result)
        except Exception as error:
            self._notify("failed", messages, error)
            raise
        self._notify("after", messages)
        return None

    async def in_task(self, argument: Any) -> None:
        messages = _messages(argument)
        try:
            for one in self._middleware:
                for message in messages:
                    await done(one.before(message))
            await done(self._call(argument))
        except Exception as error:
            await self._notify_async("failed", messages, error)
            raise
        await self._notify_async("after", messages)

    async def _finish(self, result: Awaitable[object], messages: Sequence[LeasedMessage]) -> None:
        try:
            await done(result)
        except Exception as error:
            self._notify("failed", messages, error)
            raise
        self._notify("after", messages)

    def _notify(self, hook: str, messages: Sequence[LeasedMessage], *error: Exception) -> None:
        for one in self._reverse:
            for message in messages:
                try:
                    check_done(getattr(one, hook)(message, *error))
                except _RAISED_BY_HOOKS:
                    log.exception("middleware %r: %s of %s failed", one, hook, message.id)

    async def _notify_async(
        self, hook: str, messages: Sequence[LeasedMessage], *error: Exception
    ) -> None:
        for one in self._reverse:
            for message in messages:
                try:
                    await done(getattr(one, hook)(message, *error))
                except _RAISED_BY_HOOKS:
                    log.exception("middleware %r: %s of %s failed", one, hook, message.id)


def _messages(argument: Any) -> Sequence[LeasedMessage]:
    return argument if isinstance(argument, list) else [argument]
