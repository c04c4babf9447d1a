"""One coarse timer for a server: the Date header, deadlines of connections, short-lived caches.

A timer for each connection would have to be set and cancelled several times for each request. Here
a request only sets a number, and a deadline is noticed up to one tick late.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock.server.settings import ServerSettings

NEVER = float("inf")
_PART_OF_SHORTEST = 0.25  # of the shortest time limit
_LONGEST_S = 0.25


class Timed(Protocol):
    """A connection with a deadline, in the event loop's time."""

    deadline: float

    def deadline_passed(self) -> None: ...


class Ticks:
    """Calls `on_tick` and checks deadlines, while there are connections."""

    def __init__(self, on_tick: Callable[[], None]) -> None:
        self._on_tick = on_tick
        self._watched: set[Timed] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._every_s = _LONGEST_S
        self._none_left = asyncio.Event()

    def use(self, settings: ServerSettings) -> None:
        """Set the interval of the ticks from the shortest time limit."""
        shortest = min(settings.header_timeout_s, settings.body_timeout_s, settings.idle_timeout_s)
        self._every_s = min(shortest * _PART_OF_SHORTEST, _LONGEST_S)
        if self._timer is not None:
            self.stop()
            self._plan(asyncio.get_running_loop())

    def watch(self, connection: Timed) -> None:
        self._watched.add(connection)
        if self._timer is None:
            self._on_tick()
            self._plan(asyncio.get_running_loop())

    def forget(self, connection: Timed) -> None:
        self._watched.discard(connection)
        if not self._watched:
            self._none_left.set()

    async def wait_until_none(self, timeout_s: float) -> None:
        """Wait until no connection is left, or for `timeout_s`."""
        if self._watched:
            self._none_left.clear()
            try:
                await asyncio.wait_for(self._none_left.wait(), timeout_s)
            except TimeoutError:
                pass

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._every_s, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._on_tick()
        now = loop.time()
        for connection in [one for one in self._watched if one.deadline <= now]:
            connection.deadline_passed()
        if self._watched:
            self._plan(loop)
        else:
            self._timer = None
