"""The Date header of every answer, made once a second."""

import asyncio
from email.utils import formatdate

from uvicorn.server import ServerState

from penstock.clock import Clock
from penstock.model import NS


class DateHeader:
    """Keeps it up to date while the server runs."""

    def __init__(self, state: ServerState, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        now_s = self._clock.now_ns() / NS
        self._state.default_headers = [(b"date", formatdate(now_s, usegmt=True).encode())]
        self._timer = asyncio.get_running_loop().call_later(1 - now_s % 1, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
