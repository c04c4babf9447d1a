"""Calls to a broker over gRPC: one channel, for threads or for tasks, with retries.

The rules of retries are those of HTTP, see `request_retries`.
"""

import asyncio
import os
from threading import Condition
from typing import Any, cast
from urllib.parse import urlsplit

from penstock.client.connection import Counts
from penstock.client.faults import ERRORS
from penstock.client.options import ClientOptions
from penstock.client.request import CONTEXT_HEADERS, Asked, T
from penstock.client.request_retries import Attempts, Done, Retry
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    BrokerError,
    InvalidInput,
    LedgerClosed,
    PenstockError,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    TooLarge,
    TooManyRequests,
    Unavailable,
)
from penstock.model import NS

try:
    import grpc

    from penstock.client.rpc_calls import RpcRequest
except ModuleNotFoundError as missing:
    raise PenstockError(
        f"a queue at grpc:// needs the package {missing.name!r}, which is not installed; "
        f"install Penstock with the extra grpc (pip install '.[grpc]' in its checkout)"
    ) from None

_OPTIONS = [
    ("grpc.max_receive_message_length", 128 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # they are ours
]
# Errors after which the same call may succeed, and that say that it was not carried out.
_AGAIN = frozenset(
    {
        "rate_limited",
        "too_many_requests",
        "unavailable",
        "overloaded",
        "request_too_slow",
        "storage_unavailable",
        "storage_stopped",
        "storage_damaged",
        "read_only",
    }
)
_FINAL = (QueueFull, QuotaExceeded)


class RpcExchange:
    """Sends requests to one broker over one channel."""

    def __init__(
        self,
        base: str,
        options: ClientOptions,
        *,
        for_tasks: bool = False,
        clock: Clock | None = None,
        parent: "RpcExchange | None" = None,
    ) -> None:
        if options.verify is not True and base.startswith("grpcs:"):
            raise InvalidInput(
                "gRPC checks certificates by those of the system, or of the file that "
                "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names: verify must be True"
            )
        self.base = base
        self.options = options
        self.clock = clock or SystemClock()
        self.counts = Counts()
        self._closed = False
        self._parent = parent
        self.channel = _TaskChannel(self) if for_tasks else _ThreadChannel(self)
        self._limits = options.retry_limits()
        headers = options.headers()
        self._metadata = [(name, headers[name]) for name in ("authorization",) if name in headers]

    @property
    def is_closed(self) -> bool:
        return self._closed or (self._parent is not None and self._parent.is_closed)

    def view_for_tasks(self) -> "RpcExchange":
        return RpcExchange(self.base, self.options, for_tasks=True, clock=self.clock, parent=self)

    async def do(self, request: Asked[T]) -> T:
        """Send a request, with retries if they are safe and allowed, and return its value."""
        asked = cast("RpcRequest[T]", request)  # as `RpcCalls` makes them
        attempts: Attempts[T] = Attempts(cast(Any, asked), self._limits, self.clock, base=self.base)
        while True:
            outcome = await self._attempt(asked, attempts)
            if isinstance(outcome, Done):
                return outcome.value
            self.counts.retried()
            await self.channel.pause(outcome.after_s)

    async def _attempt(self, request: "RpcRequest[T]", attempts: Attempts[T]) -> Done[T] | Retry:
        if self.is_closed:
            raise LedgerClosed("this client was closed; open the queue again")
        started_ns = self.clock.monotonic_ns()
        metadata = [*self._metadata, *CONTEXT_HEADERS.get().items()]
        timeout_s = self.options.timeout_s + request.wait_s
        try:
            response = await self.channel.send(request, timeout_s, metadata)
        except grpc.RpcError as error:
            return self._failed(error, attempts)
        self.counts.answered(self.clock.monotonic_ns() - started_ns)
        return Done(request.read(response, attempts.may_be_done))

    def _failed(self, error: Any, attempts: Attempts[Any]) -> Retry:
        trailers = dict(error.trailing_metadata() or ())
        code, text = trailers.get("penstock-code"), error.details() or ""
        if code is not None:
            after_s = float(trailers.get("grpc-retry-pushback-ms", 0)) / 1000
            kind = ERRORS.get(code, BrokerError)
            known = kind(text, after_s) if issubclass(kind, RateLimited | TooManyRequests) else None
            found = known or kind(text)
            again = code in _AGAIN and not isinstance(found, _FINAL)
            return attempts.refused(found, again=again, after_s=after_s)
        status = error.code()
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            return attempts.failed(f"{self.base} did not answer in time", sent=True)
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
            if "Concurrent" in text:
                return attempts.refused(Unavailable(text), again=True, after_s=0.0)
            raise TooLarge(f"gRPC refused the call: {text}")
        if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            if self.is_closed:
                raise LedgerClosed("this client was closed; open the queue again")
            is_unsent = "failed to connect" in text.lower()
            return attempts.failed(f"no answer from {self.base}: {text}", sent=not is_unsent)
        raise BrokerError(f"{self.base} answered {status.name}: {text}; check the URL")

    async def close(self) -> None:
        """Close the channel. May be called again."""
        self._closed = True
        await self.channel.close()

    def open_channel(self, module: Any) -> Any:
        """Return a new channel of `grpc` or `grpc.aio`."""
        parts = urlsplit(self.base)
        if parts.scheme == "grpcs":
            credentials = grpc.ssl_channel_credentials()
            return module.secure_channel(parts.netloc, credentials, options=_OPTIONS)
        return module.insecure_channel(parts.netloc, options=_OPTIONS)


class _ThreadChannel:
    """For all threads of a process. Nothing here suspends."""

    def __init__(self, exchange: RpcExchange) -> None:
        self._exchange = exchange
        self._closing = Condition()
        self._closed = False
        self._channel: Any = None
        self._pid = 0
        self._methods: dict[str, Any] = {}

    async def send(self, request: "RpcRequest[Any]", timeout_s: float, metadata: Any) -> Any:
        with self._closing:
            if self._pid != os.getpid():  # the first call, or the first after a fork
                self._channel = self._exchange.open_channel(grpc)
                self._methods = {}
                self._pid = os.getpid()
            call = self._methods.get(request.path)
            if call is None:
                call = self._methods[request.path] = _callable(self._channel, request)
        return call(request.message, timeout=timeout_s, metadata=metadata)

    async def pause(self, seconds: float) -> None:
        clock = self._exchange.clock
        ends_ns = clock.monotonic_ns() + round(seconds * NS)
        with self._closing:
            while not self._closed and (left_ns := ends_ns - clock.monotonic_ns()) > 0:
                clock.wait(self._closing, left_ns / NS)

    async def close(self) -> None:
        with self._closing:
            self._closed = True
            self._closing.notify_all()
            if self._channel is not None and self._pid == os.getpid():
                self._channel.close()


class _TaskChannel:
    """For all tasks of one event loop: that of the first call."""

    def __init__(self, exchange: RpcExchange) -> None:
        self._exchange = exchange
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: Any = None
        self._methods: dict[str, Any] = {}

    async def send(self, request: "RpcRequest[Any]", timeout_s: float, metadata: Any) -> Any:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._channel = self._exchange.open_channel(grpc.aio)
        elif self._loop is not loop:
            raise InvalidInput(
                "a queue at a URL belongs to one event loop, and was used in another before: open "
                "it again in this one"
            )
        call = self._methods.get(request.path)
        if call is None:
            call = self._methods[request.path] = _callable(self._channel, request)
        return await call(request.message, timeout=timeout_s, metadata=metadata)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        if self._channel is not None and self._loop is asyncio.get_running_loop():
            await self._channel.close()
        # A channel of another loop cannot be closed from this one; it ends with it.


def _callable(channel: Any, request: "RpcRequest[Any]") -> Any:
    method = request.method
    return channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
