"""Calls to a broker over gRPC: one channel, for threads or for tasks, with retries.

The rules of retries are those of HTTP, see `request_retries`.
"""

import os
from typing import Any, cast
from urllib.parse import urlsplit

from penstock.client.callers import Callers, Tasks, Threads
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
    QueueFull,
    QuotaExceeded,
    RateLimited,
    TooLarge,
    TooManyRequests,
    Unavailable,
)
from penstock.extras import requires_extra
from penstock.locks import Lock

with requires_extra("grpc", "a queue at grpc://"):
    import grpc

    from penstock.client.rpc_calls import RpcRequest

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
        callers: Callers,
        clock: Clock,
        parent: "RpcExchange | None" = None,
    ) -> None:
        if options.verify is not True and base.startswith("grpcs:"):
            raise InvalidInput(
                "gRPC checks certificates by those of the system, or of the file that "
                "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names: verify must be True"
            )
        self.base = base
        self.options = options
        self.clock = clock
        self.counts = Counts()
        self._closed = False
        self._parent = parent
        self._callers = callers
        self.channel = _Channel(base, callers)
        self._limits = options.retry_limits()
        headers = options.headers()
        self._metadata = [(name, headers[name]) for name in ("authorization",) if name in headers]

    @classmethod
    def for_threads(cls, base: str, options: ClientOptions) -> "RpcExchange":
        clock = SystemClock()
        return cls(base, options, Threads(clock), clock)

    @classmethod
    def for_tasks(cls, base: str, options: ClientOptions) -> "RpcExchange":
        return cls(base, options, Tasks(), SystemClock())

    @property
    def is_closed(self) -> bool:
        return self._closed or (self._parent is not None and self._parent.is_closed)

    def view_for_tasks(self) -> "RpcExchange":
        return RpcExchange(self.base, self.options, Tasks(), self.clock, parent=self)

    async def do(self, request: Asked[T]) -> T:
        """Send a request, with retries if they are safe and allowed, and return its value."""
        asked = cast("RpcRequest[T]", request)  # as `RpcCalls` makes them
        attempts: Attempts[T] = Attempts(cast(Any, asked), self._limits, self.clock, base=self.base)
        while True:
            outcome = await self._attempt(asked, attempts)
            if isinstance(outcome, Done):
                return outcome.value
            self.counts.retried()
            await self._callers.pause(outcome.after_s)

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


class _Channel:
    """One channel, which is opened by the first call, and again by the first after a fork."""

    def __init__(self, base: str, callers: Callers) -> None:
        self._base = base
        self._callers = callers
        self._lock = Lock()
        self._channel: Any = None
        self._pid = 0
        self._methods: dict[str, Any] = {}

    async def send(self, request: "RpcRequest[Any]", timeout_s: float, metadata: Any) -> Any:
        """Call a method and return its response; raise grpc.RpcError."""
        self._callers.check()
        call = self._method(request)
        return await self._callers.call(call, request.message, timeout=timeout_s, metadata=metadata)

    async def close(self) -> None:
        with self._lock:
            channel = self._channel if self._pid == os.getpid() else None
        if self._callers.leave() and channel is not None:
            await self._callers.call(channel.close)

    def _method(self, request: "RpcRequest[Any]") -> Any:
        with self._lock:
            if self._pid != os.getpid():
                self._channel = self._open()
                self._methods = {}
                self._pid = os.getpid()
            call = self._methods.get(request.path)
            if call is None:
                call = self._methods[request.path] = _callable(self._channel, request)
            return call

    def _open(self) -> Any:
        module = grpc.aio if self._callers.suspend else grpc
        parts = urlsplit(self._base)
        if parts.scheme == "grpcs":
            credentials = grpc.ssl_channel_credentials()
            return module.secure_channel(parts.netloc, credentials, options=_OPTIONS)
        return module.insecure_channel(parts.netloc, options=_OPTIONS)


def _callable(channel: Any, request: "RpcRequest[Any]") -> Any:
    method = request.method
    return channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
