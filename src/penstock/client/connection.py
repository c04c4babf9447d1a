"""Connections to a broker over HTTP.

`Exchange` sends requests, retries them and counts what it did. Its transport moves the bytes and
pauses: one blocks a thread, the other suspends a task. Those of this file use the HTTP library, for
TLS and for proxies; for plain HTTP there are the quicker ones of `direct_transport`.
"""

import asyncio
import os
import ssl
from threading import Condition
from types import ModuleType
from typing import Any, Protocol, cast

from penstock.client.direct_transport import DirectTaskTransport, DirectTransport, check_loop
from penstock.client.http_wire import KEEP_ALIVE_S, NoAnswer, is_direct
from penstock.client.options import ClientOptions
from penstock.client.request import CONTEXT_HEADERS, Asked, Request, T
from penstock.client.request_retries import Attempts, Done, Retry
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, LedgerClosed, PenstockError
from penstock.locks import Lock
from penstock.model import NS
from penstock.queue.binding import finish
from penstock.queue.metrics import Histogram

_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)  # of a TLS stream


class Transport(Protocol):
    """Moves requests and answers, for threads or for tasks."""

    async def send(self, request: Request[Any]) -> Any:
        """Send a request and return the answer: status_code, headers and content."""

    async def pause(self, seconds: float) -> None:
        """Wait until the time is over or the transport is closed."""

    async def close(self) -> None: ...


class Exchange:
    """Sends requests to one broker over connections that are kept open and shared."""

    def __init__(
        self,
        base: str,
        options: ClientOptions,
        transport: Transport,
        clock: Clock,
        parent: "Exchange | None" = None,
    ) -> None:
        self.base = base
        self.options = options
        self.clock = clock
        self.counts = Counts()
        self._closed = False
        self._parent = parent  # closes this one as well, but for its connections
        self._transport = transport
        self._limits = options.retry_limits()

    @classmethod
    def for_threads(
        cls, base: str, options: ClientOptions, clock: Clock | None = None
    ) -> "Exchange":
        clock = clock or SystemClock()
        _check(options)
        make = DirectTransport if is_direct(base) else _Blocking
        return cls(base, options, make(base, options, clock), clock)

    @classmethod
    def for_tasks(
        cls,
        base: str,
        options: ClientOptions,
        clock: Clock | None = None,
        parent: "Exchange | None" = None,
    ) -> "Exchange":
        clock = clock or SystemClock()
        _check(options)
        make = DirectTaskTransport if is_direct(base) else _Suspending
        return cls(base, options, make(base, options, clock), clock, parent)

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
            await self._transport.pause(outcome.after_s)

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


# -- transports ------------------------------------------------------------------------------------


class _Blocking:
    """For all threads of a process. Nothing here suspends."""

    def __init__(self, base: str, options: ClientOptions, clock: Clock) -> None:
        self._base = base
        self._options = options
        self._clock = clock
        self._closing = Condition()
        self._closed = False
        self._connect()

    def _connect(self) -> None:
        self._http = httpx().Client(**_client_settings(self._base, self._options))
        self._pid = os.getpid()

    async def send(self, request: Request[Any]) -> Any:
        if self._pid != os.getpid():
            self._connect()  # after a fork the sockets are shared with the parent
        try:
            return self._http.request(**_request_settings(request, self._options))
        except httpx().TransportError as error:
            raise _failure_of(error, self._base) from error

    async def pause(self, seconds: float) -> None:
        clock = self._clock
        ends_ns = clock.monotonic_ns() + round(seconds * NS)
        with self._closing:
            while not self._closed and (left_ns := ends_ns - clock.monotonic_ns()) > 0:
                clock.wait(self._closing, left_ns / NS)

    async def close(self) -> None:
        with self._closing:
            self._closed = True
            self._closing.notify_all()
        if self._pid == os.getpid():
            self._http.close()


class _Suspending:
    """For all tasks of one event loop: that of the first call."""

    def __init__(self, base: str, options: ClientOptions, clock: Clock) -> None:
        self._base = base
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http = httpx().AsyncClient(**_client_settings(base, options))

    async def send(self, request: Request[Any]) -> Any:
        self._loop = check_loop(self._loop)
        try:
            return await self._http.request(**_request_settings(request, self._options))
        except httpx().TransportError as error:
            raise _failure_of(error, self._base) from error

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        if self._loop in (None, asyncio.get_running_loop()):
            await self._http.aclose()
        # Connections of another loop cannot be closed from this one; they end with it.


# -- the HTTP library ------------------------------------------------------------------------------


def httpx() -> ModuleType:
    """Return the HTTP library; raise PenstockError if it is not installed."""
    try:
        import httpx2
    except ModuleNotFoundError as error:
        if error.name != "httpx2":
            raise
        raise PenstockError(
            "a queue at a URL needs the package 'httpx2', which is not installed; "
            "install Penstock with the extra client (pip install '.[client]' in its checkout)"
        ) from None
    return httpx2


def _check(options: ClientOptions) -> None:
    if not isinstance(options, ClientOptions):  # not shown: it may have the key
        raise InvalidInput(f"options is of type {type(options).__name__}, not ClientOptions")


def _client_settings(base: str, options: ClientOptions) -> dict[str, Any]:
    """Return the arguments of an httpx2 client."""
    limits = httpx().Limits(
        max_connections=options.max_connections,
        max_keepalive_connections=options.max_connections,
        keepalive_expiry=KEEP_ALIVE_S,
    )
    settings = {"base_url": base, "headers": options.headers(), "follow_redirects": False}
    # Reading certificates takes most of the time to connect; plain HTTP needs none.
    verify = options.verify if base.startswith("https:") else False
    return {**settings, "verify": verify, "limits": limits}


def _request_settings(request: Request[Any], options: ClientOptions) -> dict[str, Any]:
    """Return the arguments of a request."""
    timeout_s = options.timeout_s
    return {
        "method": request.method,
        "url": request.path,
        "params": request.query or None,
        "headers": {**request.headers, **CONTEXT_HEADERS.get()} or None,
        "content": request.body or None,
        "timeout": httpx().Timeout(timeout_s, read=timeout_s + request.wait_s),
    }


def _failure_of(error: Exception, base: str) -> NoAnswer:
    """Return what an error of httpx2 means for the request."""
    library = httpx()
    text = str(error) or type(error).__name__
    if isinstance(error, library.ConnectError) and (refusal := _tls_refusal(error)) is not None:
        hint = ": it speaks no TLS, write http://" if "WRONG_VERSION" in str(refusal.reason) else ""
        return NoAnswer(f"no TLS connection to {base}: {text}{hint}", sent=False, hopeless=True)
    if isinstance(error, library.ConnectError | library.ConnectTimeout):
        return NoAnswer(f"no connection to {base}: {text}", sent=False)
    if isinstance(error, library.PoolTimeout):
        return NoAnswer(
            "all connections of this client are in use: raise max_connections", sent=False
        )
    if isinstance(error, library.UnsupportedProtocol | library.LocalProtocolError):
        return NoAnswer(f"the request cannot be sent: {text}", sent=False, hopeless=True)
    if isinstance(error, library.TimeoutException):
        return NoAnswer(f"{base} did not answer in time", sent=True)
    return NoAnswer(f"the connection to {base} broke: {text}", sent=True)


def _tls_refusal(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error below an error, if the next handshake fails in the same way.

    An end of the stream is no such error: a broker that restarts behind a proxy causes it.
    """
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, _ENDS):
            return error
        error = error.__cause__ or error.__context__
    return None
