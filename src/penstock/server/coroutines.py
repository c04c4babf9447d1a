"""Handlers that are coroutine functions: run to the first wait, and only then in a task."""

from asyncio import Future
from collections.abc import Coroutine, Generator
from typing import Any

from penstock.errors import Unavailable


class _Resumed:
    """Awaits the rest of a coroutine that was run to its first wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, None, Any]:
        coroutine, awaited = self._coroutine, self._awaited
        while True:
            error: BaseException | None = None
            try:
                yield awaited
            except BaseException as thrown:
                error = thrown
            try:
                awaited = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as done:
                return done.value


async def rest_of(coroutine: Coroutine[Any, Any, Any], awaited: Any) -> Any:
    """Await the rest of a coroutine that was run to its first wait, for `awaited`."""
    return await _Resumed(coroutine, awaited)


def error_of(future: "Future[Any]") -> BaseException | None:
    """Return the error of a future that is done, if any. A cancelled one means a stop."""
    if future.cancelled():
        return Unavailable("the server is stopping: retry in a moment")
    return future.exception()
