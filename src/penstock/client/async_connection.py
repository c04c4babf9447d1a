"""Calls over HTTP, for tasks."""

import asyncio
from typing import Any

from penstock.client.call import Call, Story, T
from penstock.client.counts import Counts
from penstock.client.http import client_settings, failure_of, httpx, request_settings
from penstock.client.options import ClientOptions
from penstock.client.tries import Done, Pause, Tries
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, LedgerClosed, PenstockError


class AsyncConnection:
    """To one broker, with connections that are kept and shared by all tasks of a loop."""

    def __init__(self, base: str, options: ClientOptions, *, clock: Clock | None = None) -> None:
        self.base = base
        self.options = options
        self.clock = clock or SystemClock()
        self.counts = Counts()
        self._library = httpx()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first call
        self._retrying = options.retrying()
        self._http = self._library.AsyncClient(**client_settings(base, options))

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def do(self, call: Call[T]) -> T:
        """The call's value, tried again as long as that is safe and allowed."""
        tries = Tries(call, self._retrying, self.clock, base=self.base)
        while True:
            outcome = await self._try(call, tries)
            if isinstance(outcome, Done):
                return outcome.value
            self.counts.retried()
            await asyncio.sleep(outcome.seconds)

    async def _try(self, call: Call[T], tries: Tries[T]) -> Done[T] | Pause:
        if self._closed:
            raise LedgerClosed("this client was closed; open the queue again")
        self._check_loop()
        started_ns = self.clock.monotonic_ns()
        try:
            answer = await self._http.request(**request_settings(call, self.options))
        except self._library.TransportError as error:
            return tries.failed(**failure_of(error, self.base)._asdict())
        self.counts.answered(self.clock.monotonic_ns() - started_ns)
        return tries.answered(answer.status_code, answer.headers, answer.content)

    def _check_loop(self) -> None:
        """Refuse a second event loop: connections that are kept belong to the first."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidInput(
                "a queue at a URL belongs to one event loop, and was used in another before: open "
                "it again in this one"
            )

    async def run(self, story: Story[T]) -> T:
        """The value of a story, call by call."""
        try:
            call = next(story)
            while True:
                try:
                    value: Any = await self.do(call)
                except PenstockError as error:
                    call = story.throw(error)
                else:
                    call = story.send(value)
        except StopIteration as end:
            result: T = end.value
            return result

    async def close(self) -> None:
        """May be called again."""
        self._closed = True
        if self._loop in (None, asyncio.get_running_loop()):
            await self._http.aclose()
        # In another loop they cannot be closed; they end with what is left of theirs.
