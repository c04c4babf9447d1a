"""The callers of a client: all threads of a process, or all tasks of one event loop.

They differ in how they wait. Transports are written once, as coroutines; for threads, nothing that
they await suspends (see `queue.binding`).
"""

import asyncio
from collections.abc import Callable
from threading import Condition
from typing import Any, Protocol

from penstock.clock import Clock
from penstock.errors import InvalidInput
from penstock.model import NS


class Callers(Protocol):
    """The threads or tasks that share the connections of a client."""

    suspend: bool  # do they await what a library does, or call it?

    def check(self) -> None:
        """Raise InvalidInput if the caller cannot use the connections."""

    async def call(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """Call a function of a library, and return its result when it is there."""

    async def pause(self, seconds: float) -> None:
        """Wait until the time is over. Threads do not wait longer than the client is open."""

    def leave(self) -> bool:
        """End the pauses. Return whether the caller may close the connections."""


class Threads:
    """All threads of a process."""

    suspend = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._closing = Condition()
        self._closed = False

    def check(self) -> None:
        pass

    async def call(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        return function(*args, **options)

    async def pause(self, seconds: float) -> None:
        clock = self._clock
        ends_ns = clock.monotonic_ns() + round(seconds * NS)
        with self._closing:
            while not self._closed and (left_ns := ends_ns - clock.monotonic_ns()) > 0:
                clock.wait(self._closing, left_ns / NS)

    def leave(self) -> bool:
        with self._closing:
            self._closed = True
            self._closing.notify_all()
        return True


class Tasks:
    """All tasks of one event loop: that of the first call."""

    suspend = True

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidInput(
                "a queue at a URL belongs to one event loop, and was used in another before: open "
                "it again in this one"
            )

    async def call(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        return await function(*args, **options)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def leave(self) -> bool:
        # Connections of another loop cannot be closed from this one; they end with it.
        return self._loop in (None, asyncio.get_running_loop())
