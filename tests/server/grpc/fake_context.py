"""The context of a call whose client behaves as a test says."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from grpc import StatusCode
from grpc.aio import EOF, BaseError
from prometheus_client import CollectorRegistry

from penstock.protobuf.descriptors import METHODS
from penstock.server.grpc.call import GrpcCall, Shared
from penstock.server.grpc.metrics import GrpcMetrics
from tests.server.running import RunningServer


class Aborted(BaseError):  # type: ignore[misc]
    """The call ended with a status."""


class FakeContext:
    """Has what a call uses of `grpc.aio.ServicerContext`."""

    def __init__(
        self,
        requests: Iterable[bytes],
        *,
        on_write: Callable[[], Awaitable[None]] | None = None,
        left_s: float | None = None,
    ) -> None:
        self._requests = iter(requests)
        self._on_write = on_write
        self.left_s = left_s  # until the deadline of the client
        self.reads = 0
        self.sent: list[bytes] = []

    async def read(self) -> Any:
        self.reads += 1
        await asyncio.sleep(0)
        return next(self._requests, EOF)

    async def write(self, raw: bytes) -> None:
        if self._on_write is not None:
            await self._on_write()
        self.sent.append(raw)

    async def send_initial_metadata(self, metadata: tuple[()]) -> None:
        pass

    async def abort(self, code: StatusCode, details: str, trailers: Any) -> None:
        raise Aborted(f"{code.name}: {details}")

    def code(self) -> None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> float | None:
        return self.left_s

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)  # the answer is taken at once

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"


def fake_shared(server: RunningServer) -> Shared:
    shared = Shared.__new__(Shared)  # the metrics of the server are registered once
    shared.service = server.server.service
    shared.metrics = GrpcMetrics(CollectorRegistry())
    shared.readers = asyncio.Semaphore(1)
    shared.is_stopping = asyncio.Event()
    return shared


async def run_with(
    server: RunningServer, method: Callable[[GrpcCall], Awaitable[None]], context: FakeContext
) -> None:
    """Run a streaming method, such as `lease`, in the event loop of a server."""
    call = GrpcCall(fake_shared(server), METHODS[method.__name__.capitalize()], context)

    async def run(call: GrpcCall) -> None:
        await call.admit()
        await method(call)

    await call.run(run)
