"""Connections to a broker over HTTP, for threads and for tasks.

Both send calls, retry them, and count what they did. Everything that is
about the HTTP library is below them.
"""

import asyncio
import os
import ssl
from threading import Condition, Lock
from types import ModuleType
from typing import Any, NamedTuple

from penstock.client.call import Call, CallSequence, T
from penstock.client.call_retries import Attempts, Done, Retry
from penstock.client.options import ClientOptions
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, LedgerClosed, PenstockError
from penstock.model import NS
from penstock.queue.metrics import Histogram

# Below what servers and proxies allow (60 s and more): the side that sends closes first, so that a
# request hardly ever meets a connection that is being closed.
_KEEP_ALIVE_S = 30.0
_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)  # of a TLS stream


class Connection:
    """Connections to one broker, kept open and shared by all threads."""

    def __init__(self, base: str, options: ClientOptions, *, clock: Clock | None = None) -> None:
        self.base = base
        self.options = options
        self.clock = clock or SystemClock()
        self.counts = Counts()
        self._library = httpx()
        self._closing = Condition()
        self._closed = False
        self._limits = options.retry_limits()
        self._connect()

    def _connect(self) -> None:
        self._http = self._library.Client(**client_settings(self.base, self.options))
        self._pid = os.getpid()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def do(self, call: Call[T]) -> T:
        """Send a call, with retries if they are safe and allowed, and return its value."""
        attempts = Attempts(call, self._limits, self.clock, base=self.base)
        while True:
            outcome = self._attempt(call, attempts)
            if isinstance(outcome, Done):
                return outcome.value
            self.counts.retried()
            self._wait(outcome.after_s)

    def _attempt(self, call: Call[T], attempts: Attempts[T]) -> Done[T] | Retry:
        self._check()
        started_ns = self.clock.monotonic_ns()
        try:
            answer = self._http.request(**request_settings(call, self.options))
        except self._library.TransportError as error:
            return attempts.failed(**failure_of(error, self.base)._asdict())
        self.counts.answered(self.clock.monotonic_ns() - started_ns)
        return attempts.answered(answer.status_code, answer.headers, answer.content)

    def run(self, calls: CallSequence[T]) -> T:
        """Send the calls of a sequence and return its result."""
        try:
            call = next(calls)
            while True:
                try:
                    value: Any = self.do(call)
                except PenstockError as error:
                    call = calls.throw(error)
                else:
                    call = calls.send(value)
        except StopIteration as end:
            result: T = end.value
            return result

    def _check(self) -> None:
        if self._closed:
            raise LedgerClosed("this client was closed; open the queue again")
        if self._pid != os.getpid():
            # After a fork the sockets are shared with the parent: open new ones.
            self._connect()

    def _wait(self, seconds: float) -> None:
        """Wait until the time is over or the client is closed."""
        ends_ns = self.clock.monotonic_ns() + round(seconds * NS)
        with self._closing:
            while not self._closed and (left_ns := ends_ns - self.clock.monotonic_ns()) > 0:
                self.clock.wait(self._closing, left_ns / NS)

    def close(self) -> None:
        """Close the connections. May be called again."""
        with self._closing:
            self._closed = True
            self._closing.notify_all()
        if self._pid == os.getpid():
            self._http.close()


class AsyncConnection:
    """Connections to one broker, kept open and shared by all tasks of a loop."""

    def __init__(self, base: str, options: ClientOptions, *, clock: Clock | None = None) -> None:
        self.base = base
        self.options = options
        self.clock = clock or SystemClock()
        self.counts = Counts()
        self._library = httpx()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first call
        self._limits = options.retry_limits()
        self._http = self._library.AsyncClient(**client_settings(base, options))

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def do(self, call: Call[T]) -> T:
        """Send a call, with retries if they are safe and allowed, and return its value."""
        attempts = Attempts(call, self._limits, self.clock, base=self.base)
        while True:
            outcome = await self._attempt(call, attempts)
            if isinstance(outcome, Done):
                return outcome.value
            self.counts.retried()
            await asyncio.sleep(outcome.after_s)

    async def _attempt(self, call: Call[T], attempts: Attempts[T]) -> Done[T] | Retry:
        if self._closed:
            raise LedgerClosed("this client was closed; open the queue again")
        self._check_loop()
        started_ns = self.clock.monotonic_ns()
        try:
            answer = await self._http.request(**request_settings(call, self.options))
        except self._library.TransportError as error:
            return attempts.failed(**failure_of(error, self.base)._asdict())
        self.counts.answered(self.clock.monotonic_ns() - started_ns)
        return attempts.answered(answer.status_code, answer.headers, answer.content)

    def _check_loop(self) -> None:
        """Raise InvalidInput in a second event loop: open connections belong to the first."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidInput(
                "a queue at a URL belongs to one event loop, and was used in another before: open "
                "it again in this one"
            )

    async def run(self, calls: CallSequence[T]) -> T:
        """Send the calls of a sequence and return its result."""
        try:
            call = next(calls)
            while True:
                try:
                    value: Any = await self.do(call)
                except PenstockError as error:
                    call = calls.throw(error)
                else:
                    call = calls.send(value)
        except StopIteration as end:
            result: T = end.value
            return result

    async def close(self) -> None:
        """Close the connections. May be called again."""
        self._closed = True
        if self._loop in (None, asyncio.get_running_loop()):
            await self._http.aclose()
        # Connections of another loop cannot be closed from this one; they end with it.


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
            "run: pip install 'penstock[client]'"
        ) from None
    return httpx2


def client_settings(base: str, options: ClientOptions) -> dict[str, Any]:
    """Return the arguments of an httpx2 client."""
    return {
        "base_url": base,
        "headers": options.headers(),
        # Reading certificates takes most of the time to connect; plain HTTP needs none.
        "verify": options.verify if base.startswith("https:") else False,
        "limits": httpx().Limits(
            max_connections=options.max_connections,
            max_keepalive_connections=options.max_connections,
            keepalive_expiry=_KEEP_ALIVE_S,
        ),
        "follow_redirects": False,
    }


def request_settings(call: Call[Any], options: ClientOptions) -> dict[str, Any]:
    """Return the arguments of a request."""
    timeout_s = options.timeout_s
    return {
        "method": call.method,
        "url": call.path,
        "params": call.query or None,
        "headers": call.headers or None,
        "content": call.body or None,
        "timeout": httpx().Timeout(timeout_s, read=timeout_s + call.wait_s),
    }


class Failure(NamedTuple):
    """Why there was no answer."""

    sentence: str
    sent: bool  # the request may have arrived
    hopeless: bool = False  # it fails again


def failure_of(error: Exception, base: str) -> Failure:
    """Return what an error of httpx2 means for the call."""
    library = httpx()
    text = str(error) or type(error).__name__
    if isinstance(error, library.ConnectError) and (refusal := _tls_refusal(error)) is not None:
        hint = ": it speaks no TLS, write http://" if "WRONG_VERSION" in str(refusal.reason) else ""
        return Failure(f"no TLS connection to {base}: {text}{hint}", sent=False, hopeless=True)
    if isinstance(error, library.ConnectError | library.ConnectTimeout):
        return Failure(f"no connection to {base}: {text}", sent=False)
    if isinstance(error, library.PoolTimeout):
        return Failure("all connections of this client are in use: raise max_connections", False)
    if isinstance(error, library.UnsupportedProtocol | library.LocalProtocolError):
        return Failure(f"the request cannot be sent: {text}", sent=False, hopeless=True)
    if isinstance(error, library.TimeoutException):
        return Failure(f"{base} did not answer in time", sent=True)
    return Failure(f"the connection to {base} broke: {text}", sent=True)


def _tls_refusal(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error below an error, if the next handshake fails in the same way.

    An end of the stream is no such error: a broker that restarts behind a proxy causes it.
    """
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, _ENDS):
            return error
        error = error.__cause__ or error.__context__
    return None
