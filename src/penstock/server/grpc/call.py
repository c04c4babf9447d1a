"""One gRPC call: its caller, its requests, its answer or error, and its place in the metrics.

On the wire a unary call is a stream of one message. The server treats all calls as streams: so it
checks the key before it reads a request, and knows whether an answer was taken.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode
from grpc.aio import EOF

from penstock.broker import Broker, Caller, QueueName
from penstock.errors import InvalidInput, PenstockError
from penstock.names import DEFAULT_NAMESPACE
from penstock.protobuf.descriptors import Method, Proto
from penstock.server.grpc.metrics import GrpcMetrics
from penstock.server.grpc.statuses import refusal_of
from penstock.server.problems import RequestTooSlow
from penstock.server.service import Service

log = logging.getLogger("penstock.server")

Context = Any  # grpc.aio.ServicerContext
COPIES = 2  # of a message that waits for the client: these bytes, and gRPC's own
_MAY_WAIT_BYTES = 16 * 1024  # smaller messages fit into the window of a client that reads nothing
_OF_CALLER = frozenset({"x-api-key", "authorization", "x-forwarded-for"})


class Shared:
    """State that all calls of a server share."""

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self.service = service
        self.metrics = GrpcMetrics(service.broker.metrics.registry)
        self.is_stopping = asyncio.Event()
        # A request that arrives slowly holds memory of an unknown size, up to the limit.
        most = settings.max_buffered_bytes // settings.grpc_max_message_bytes
        self.readers = asyncio.Semaphore(max(most, 1))


class GrpcCall:
    """A call of one method."""

    __slots__ = (
        "_began_ns",
        "_has_begun",
        "_held_bytes",
        "_writing",
        "caller",
        "context",
        "headers",
        "method",
        "peer",
        "shared",
    )

    def __init__(self, shared: Shared, method: Method, context: Context) -> None:
        self.shared = shared
        self.method = method
        self.context = context
        self.headers: dict[bytes, bytes] = {}
        self.peer = peer_of(context.peer())
        self.caller: Caller
        self._has_begun = False  # to answer
        self._writing = asyncio.Lock()  # gRPC takes one message at a time
        self._held_bytes = 0  # until the call is over
        self._began_ns = shared.service.monotonic_ns()

    @property
    def broker(self) -> Broker:
        return self.shared.service.broker

    # -- the request -------------------------------------------------------------------------------

    async def admit(self) -> None:
        """Find the caller by the key in the metadata. Raise KeyRefused if it is not valid."""
        service = self.shared.service
        for name, value in self.context.invocation_metadata() or ():
            if name in _OF_CALLER:
                self.headers[name.encode()] = (
                    value.encode("latin-1", "replace") if isinstance(value, str) else value
                )
        caller = service.known_caller(self.headers, b"", self.peer)
        self.caller = (
            caller if caller is not None else await service.admit_now(self.headers, self.peer)
        )

    async def read(self, kind: type[Proto]) -> Proto:
        """Return the first request. It must arrive within `body_timeout_s`."""
        service = self.shared.service
        service.held.check_room()
        try:
            async with (
                asyncio.timeout(service.settings.body_timeout_s),
                self.shared.readers,
            ):
                raw = await self.context.read()
        except TimeoutError:
            raise RequestTooSlow("the request did not arrive in time") from None
        if raw is EOF:
            raise InvalidInput(f"{self.method.name} needs a request, and none was sent")
        self._held_bytes = len(raw)
        service.held.bytes += len(raw)
        service.held.check_room()
        return parse(kind, raw)

    # -- the answer --------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Send the initial metadata by themselves, before the first message.

        gRPC notes that it sent them when the first message is taken. If the call ends before that,
        it would send them again with the status, which fails, and the status would be lost.
        """
        if not self._has_begun:
            self._has_begun = True
            await self.context.send_initial_metadata(())

    async def send(self, raw: bytes) -> None:
        """Send a message, encoded, after those that are being sent.

        Raise RequestTooSlow if the client does not take it.
        """
        held, size = self.shared.service.held, COPIES * len(raw)
        held.bytes += size
        is_sent = False
        try:
            if len(raw) > _MAY_WAIT_BYTES:
                await self.begin()
            async with self._writing, asyncio.timeout(self.shared.service.settings.idle_timeout_s):
                self._has_begun = True
                await self.context.write(raw)
            is_sent = True
        except TimeoutError:
            raise RequestTooSlow("the client did not take the answer in time") from None
        finally:
            if not is_sent:  # gRPC keeps its copy until the call is over
                size -= len(raw)
                self._held_bytes += len(raw)
            held.bytes -= size

    def hold_until_taken(self, answer: bytes) -> None:
        """Count the one answer of a call until the client has taken it, or the call is over."""
        held, size = self.shared.service.held, COPIES * len(answer)
        held.bytes += size

        def taken(_: Context) -> None:
            held.bytes -= size

        self.context.add_done_callback(taken)

    async def run(self, work: "Callable[[GrpcCall], Awaitable[bytes | None]]") -> bytes | None:
        """Run a handler, and end the call with its answer or its error."""
        metrics, status = self.shared.metrics, StatusCode.CANCELLED
        metrics.calls += 1
        try:
            made = await work(self)
            status = StatusCode.OK
            return made
        except Exception as error:
            if isinstance(error, grpc.aio.BaseError):
                status = self.context.code() or status
                raise  # the client went away, or the handler ended the call itself
            if not isinstance(error, PenstockError):
                fields = {"method": self.method.path}
                log.error("call failed", exc_info=error, extra={"fields": fields})
            refusal = refusal_of(error)
            status = refusal.status
            await self.context.abort(*refusal)  # raises
            raise
        finally:
            metrics.calls -= 1
            self.shared.service.held.bytes -= self._held_bytes
            self._report(status)

    def _report(self, status: StatusCode) -> None:
        service = self.shared.service
        took_ns = service.monotonic_ns() - self._began_ns
        self.shared.metrics.answered(self.method.path, status, took_ns)
        if status is StatusCode.INTERNAL or service.settings.access_log:
            fields = {
                "method": self.method.path,
                "status": status.name,
                "took_s": round(took_ns / 1e9, 6),
                "client": service.address_of(self.headers, self.peer),
            }
            level = logging.ERROR if status is StatusCode.INTERNAL else logging.INFO
            log.log(level, "call", extra={"fields": fields})


# -- handlers --------------------------------------------------------------------------------------

Unary = Callable[[GrpcCall, Proto], Awaitable[Proto]]
Streaming = Callable[[GrpcCall], Awaitable[None]]


def unary(shared: Shared, method: Method, work: Unary, *, needs_key: bool = True) -> Any:
    """Return the handler of a method with one request and one response."""

    async def run(call: GrpcCall) -> bytes:
        if needs_key:
            await call.admit()
        response = await work(call, await call.read(method.request))
        made: bytes = response.SerializeToString()
        if len(made) > _MAY_WAIT_BYTES:
            call.hold_until_taken(made)
        return made

    async def handle(_: Any, context: Context) -> bytes | None:
        return await GrpcCall(shared, method, context).run(run)

    return grpc.stream_unary_rpc_method_handler(handle)


def streaming(shared: Shared, method: Method, work: Streaming, *, needs_key: bool = True) -> Any:
    """Return the handler of a method that sends its responses itself."""

    async def run(call: GrpcCall) -> None:
        if needs_key:
            await call.admit()
        await work(call)

    async def handle(_: Any, context: Context) -> None:
        await GrpcCall(shared, method, context).run(run)

    return grpc.stream_stream_rpc_method_handler(handle)


# -- parts of requests -----------------------------------------------------------------------------


def parse(kind: type[Proto], raw: bytes) -> Proto:
    """Return a request. Raise InvalidInput if the bytes are not one."""
    try:
        return kind.FromString(raw)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"this is not a {kind.DESCRIPTOR.name}: {error}") from None


def queue_of(request: Proto) -> QueueName:
    """Return the queue that a request names. Raise InvalidInput if that is not a name."""
    return QueueName.checked(request.namespace or DEFAULT_NAMESPACE, request.queue)


def peer_of(text: str) -> str | None:
    """Return the address of a client; None if it has none.

    >>> peer_of("ipv4:127.0.0.1:41234"), peer_of("ipv6:%5B::1%5D:41234"), peer_of("unix:")
    ('127.0.0.1', '::1', None)
    """
    family, _, address = text.partition(":")
    if family not in ("ipv4", "ipv6"):
        return None
    host = unquote(address).rpartition(":")[0]
    return host.removeprefix("[").removesuffix("]")
