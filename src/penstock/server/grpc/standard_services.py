"""The standard services of gRPC: health, and the reflection that tools such as grpcurl use."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from grpc import StatusCode
from grpc.aio import EOF
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from penstock.protobuf.descriptors import PENSTOCK, RIVETQ, Proto, methods_of
from penstock.server.grpc.call import GrpcCall, Shared, parse, streaming, unary

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
_WATCHED = ("", PENSTOCK, RIVETQ)
_Answer = health_pb2.HealthCheckResponse


class Health:
    """Serving until the server stops. It needs no key, like the probes over HTTP.

    Not the library's own: a client that watches and does not read would block it.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def _status(self, service: str) -> int:
        if service not in _WATCHED:
            return int(_Answer.SERVICE_UNKNOWN)
        return int(_Answer.NOT_SERVING if self._shared.is_stopping.is_set() else _Answer.SERVING)

    async def check(self, call: GrpcCall, request: Proto) -> Proto:
        status = self._status(request.service)
        if status == _Answer.SERVICE_UNKNOWN:
            await call.context.abort(StatusCode.NOT_FOUND, "there is no such service")
        return _Answer(status=status)

    def _answer(self, request: Proto) -> bytes:
        made: bytes = _Answer(status=self._status(request.service)).SerializeToString()
        return made

    async def watch(self, call: GrpcCall) -> None:
        request = await call.read(health_pb2.HealthCheckRequest)
        await call.send(self._answer(request))
        await self._shared.is_stopping.wait()
        await call.send(self._answer(request))


async def reflect(call: GrpcCall) -> None:
    """Describe the services and their messages."""

    async def requests() -> AsyncIterator[Proto]:
        while True:
            raw = await _until(call.shared.is_stopping, call.context.read())
            if raw is None or raw is EOF:
                return
            yield parse(reflection_pb2.ServerReflectionRequest, raw)

    servicer = reflection.aio.ReflectionServicer((PENSTOCK, RIVETQ, HEALTH, REFLECTION))
    async for response in servicer.ServerReflectionInfo(requests(), call.context):
        await call.send(response.SerializeToString())


async def _until(event: asyncio.Event, reading: Any) -> Any:
    """Return what is read; None if the event is set before."""
    read, ended = asyncio.ensure_future(reading), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([read, ended], return_when=asyncio.FIRST_COMPLETED)
        return read.result() if read.done() else None
    finally:
        read.cancel()
        ended.cancel()


def handlers(shared: Shared) -> dict[str, Any]:
    """Return the handlers of both services by their paths."""
    health, methods = Health(shared), methods_of(HEALTH)
    reflecting = methods_of(REFLECTION)["ServerReflectionInfo"]
    return {
        methods["Check"].path: unary(shared, methods["Check"], health.check, needs_key=False),
        methods["Watch"].path: streaming(shared, methods["Watch"], health.watch, needs_key=False),
        reflecting.path: streaming(shared, reflecting, reflect),
    }
