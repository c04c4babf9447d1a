"""Connections to a broker over HTTP.

`Exchange` sends requests, retries them and counts what it did. Its transport moves the bytes:
`direct_transport` for plain HTTP, `library_transport` for TLS and proxies.
"""

from typing import Any, Protocol, cast

from penstock.client.callers import Callers, Tasks, Threads
from penstock.client.direct_transport import DirectTransport
from penstock.client.http_wire import NoAnswer, is_direct
from penstock.client.library_transport import LibraryTransport
from penstock.client.options import ClientOptions
from penstock.client.request import Asked, Request, T
from penstock.client.request_retries import Attempts, Done, Retry
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, LedgerClosed
from penstock.locks import Lock
from penstock.queue.binding import finish
from penstock.queue.metrics import Histogram


class Transport(Protocol):
    """Moves requests and answers, for threads or for tasks."""

    async def send(self, request: Request[Any]) -> Any:
        """Send a request and return the answer: status_code, headers and content.

        Raise NoAnswer if there is none.
        """

    async def close(self) -> None: ...


class Exchange:
    """Sends requests to one broker over connections that are kept open and shared."""

    def __init__(
        self,
        base: str,
        options: ClientOptions,
        callers: Callers,
        clock: Clock,
        parent: "Exchange | None" = None,
    ) -> None:
        _check(options)
        self.base = base
        self.options = options
        self.clock = clock
        self.counts = Counts()
        self._closed = False
        self._parent = parent  # closes this one as well, but for its connections
        self._callers = callers
        self._transport: Transport = (
            DirectTransport(base, options, callers, clock)
            if is_direct(base)
            else LibraryTransport(base, options, callers)
        )
        self._limits = options.retry_limits()

    @classmethod
    def for_threads(
        cls, base: str, options: ClientOptions, clock: Clock | None = None
    ) -> "Exchange":
        clock = clock or SystemClock()
        return cls(base, options, Threads(clock), clock)

    @classmethod
    def for_tasks(
        cls,
        base: str,
        options: ClientOptions,
        clock: Clock | None = None,
        parent: "Exchange | None" = None,
    ) -> "Exchange":
        return cls(base, options, Tasks(), clock or SystemClock(), parent)

    @property
    def is_closed(self) -> bool:
        return self._closed or (self._parent is not None and self._parent.is_closed)

    def view_for_tasks(self) -> "Exchange":
        """Return an exchange for tasks, which is closed with this one."""
        return Exchange.for_tasks(self.base, self.options, self.clock, parent=self)

    async def do(self, request: Asked[T]) -> T:
        """Send a request, with retries if they are safe and allowed, and return its value."""
        asked = cast(Request[T], request)  # as `HttpCalls` makes them
        attempts = Attempts(asked, self._limits, self.clock, base=self.base)
        while True:
            outcome = await self.attempt(asked, attempts)
            if isinstance(outcome, Done):
                return outcome.value
            self.counts.retried()
            await self._callers.pause(outcome.after_s)

    async def attempt(self, request: Request[T], attempts: Attempts[T]) -> Done[T] | Retry:
        """Send a request once. Return its value, or when to send it again; raise a final error."""
        if self.is_closed:
            raise LedgerClosed("this client was closed; open the queue again")
        started_ns = self.clock.monotonic_ns()
        try:
            answer = await self._transport.send(request)
        except NoAnswer as error:
            return attempts.failed(str(error), sent=error.sent, hopeless=error.hopeless)
        self.counts.answered(self.clock.monotonic_ns() - started_ns)
        return attempts.answered(answer.status_code, answer.headers, answer.content)

    async def close(self) -> None:
        """Close the connections. May be called again."""
        self._closed = True
        await self._transport.close()


class Connection:
    """An exchange for threads, for what uses requests and no queue."""

    def __init__(self, base: str, options: ClientOptions) -> None:
        self.exchange = Exchange.for_threads(base, options)

    def do(self, request: Request[T]) -> T:
        """Send a request, with retries if they are safe and allowed, and return its value."""
        return finish(self.exchange.do, request)

    def close(self) -> None:
        """Close the connections. May be called again."""
        finish(self.exchange.close)


class Counts:
    """Requests that were answered, retries, and how long answers took, since the client opened."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._answered = 0
        self._retried = 0
        self._took = Histogram()

    def answered(self, duration_ns: int) -> None:
        with self._lock:
            self._answered += 1
            self._took.add(duration_ns)

    def retried(self) -> None:
        with self._lock:
            self._retried += 1

    def snapshot(self) -> dict[str, object]:
        """Return the counts as plain values."""
        with self._lock:
            return {
                "answered": self._answered,
                "retried": self._retried,
                "answer_s": self._took.percentiles()._asdict(),
            }


def _check(options: ClientOptions) -> None:
    if not isinstance(options, ClientOptions):  # not shown: it may have the key
        raise InvalidInput(f"options is of type {type(options).__name__}, not ClientOptions")
