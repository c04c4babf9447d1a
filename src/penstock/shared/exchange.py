"""Requests to the process that holds a directory at the moment, with the retries of a client.

The holder may change between two attempts of one request. A request that may have been carried out
is sent again only if it is idempotent; a publish is, by the dedup ids of its messages.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Protocol, cast
from weakref import WeakKeyDictionary

from penstock.client.connection import Counts, Exchange
from penstock.client.options import ClientOptions
from penstock.client.request import Asked, Request, T
from penstock.client.request_retries import Attempts, Done, Retry, RetryLimits
from penstock.clock import Clock, SystemClock
from penstock.errors import LedgerClosed
from penstock.shared.member import MEMBERS, Member

# A holder is replaced within a second: a longer backoff would add to that.
_BACKOFF_S, _BACKOFF_S_MAX = 0.01, 0.25
_LOGGED_RETRY = 20  # after some four seconds
_MAX_URLS = 8  # of the socket, and of brokers that held the directory


class SharedExchange:
    """Sends requests for one handle of a shared directory. Thread-safe."""

    def __init__(
        self,
        member: Member,
        options: ClientOptions,
        *,
        for_tasks: bool = False,
        clock: Clock | None = None,
        parent: "SharedExchange | None" = None,
    ) -> None:
        """`parent`: this is its view for tasks, and is closed with it."""
        self.member = member
        self.base = member.place.url
        self.options = options
        self.clock = clock or SystemClock()
        self.counts = Counts()
        self._pid = os.getpid()
        self._parent = parent
        self._closed = False
        self._limits = RetryLimits(
            retry_s=options.retry_s,
            backoff_s=_BACKOFF_S,
            backoff_s_max=_BACKOFF_S_MAX,
            logged_retry=_LOGGED_RETRY,
        )
        self._for_tasks = for_tasks
        self._connections: _Connections = (_OfLoops if for_tasks else _OfProcess)(self._connect)

    @property
    def is_closed(self) -> bool:
        return self._closed or (self._parent is not None and self._parent.is_closed)

    def view_for_tasks(self) -> "SharedExchange":
        return SharedExchange(
            self.member, self.options, for_tasks=True, clock=self.clock, parent=self
        )

    async def do(self, request: Asked[T]) -> T:
        """Send a request, with retries if they are safe and allowed, and return its value."""
        asked = cast(Request[T], request)
        attempts = Attempts(asked, self._limits, self.clock, base=self.base)
        while True:
            outcome = await self._attempt(asked, attempts)
            if isinstance(outcome, Done):
                return outcome.value
            self.counts.retried()
            if self._for_tasks:
                await asyncio.sleep(outcome.after_s)
            else:
                self.member.wait_for_change(outcome.after_s)

    def _connect(self, url: str) -> Exchange:
        make = Exchange.for_tasks if self._for_tasks else Exchange.for_threads
        exchange = make(url, self.options, self.clock)
        exchange.counts = self.counts
        return exchange

    async def _attempt(self, request: Request[T], attempts: Attempts[T]) -> Done[T] | Retry:
        if self.is_closed:
            raise LedgerClosed("this queue was closed; open it again")
        if self._pid != os.getpid():
            self._pid, self.counts = os.getpid(), Counts()  # a thread of the parent may be in it
        self.member.start()
        standing = self.member.standing
        if standing.url is not None:
            return await self._connections.to(standing.url).attempt(request, attempts)
        if standing.error is not None:
            return attempts.refused(standing.error, again=True, after_s=0.0)
        return attempts.failed(f"no process answers for {self.member.place.path} yet", sent=False)

    async def close(self) -> None:
        """Close the connections, and leave the directory. May be called again."""
        if self._closed:
            return
        self._closed = True
        await self._connections.close()
        if self._parent is not None:
            return
        if self._for_tasks:
            await asyncio.to_thread(MEMBERS.leave, self.member)
        else:
            MEMBERS.leave(self.member)


class _Connections(Protocol):
    """Connections to a broker whose URL may change."""

    def to(self, url: str) -> Exchange:
        """Return the connections to a URL, for the caller."""

    async def close(self) -> None: ...


class _OfProcess:
    """For all threads of a process; those of the parent are left alone after a fork."""

    def __init__(self, connect: Callable[[str], Exchange]) -> None:
        self._connect = connect
        self._by_url: dict[str, Exchange] = {}
        self._pid = 0

    def to(self, url: str) -> Exchange:
        if self._pid != os.getpid():
            self._by_url, self._pid = {}, os.getpid()
        found = self._by_url.get(url)
        if found is None:
            if len(self._by_url) >= _MAX_URLS:
                self._by_url = {}
            found = self._by_url[url] = self._connect(url)
        return found

    async def close(self) -> None:
        if self._pid == os.getpid():
            for one in tuple(self._by_url.values()):
                await one.close()


class _OfLoops:
    """For the tasks of each event loop."""

    def __init__(self, connect: Callable[[str], Exchange]) -> None:
        self._connect = connect
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfProcess]
        self._by_loop = WeakKeyDictionary()

    def to(self, url: str) -> Exchange:
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            found = self._by_loop[loop] = _OfProcess(self._connect)
        return found.to(url)

    async def close(self) -> None:
        # Connections of another loop cannot be closed from this one; they end with it.
        found = self._by_loop.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()
