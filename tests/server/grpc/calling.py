"""Calls of the services over a real channel, as a client without generated code makes them."""

from typing import Any

import grpc

from penstock.protobuf.descriptors import METHODS, RIVETQ, Method, methods_of
from tests.server.running import RunningServer

PATIENCE_S = 30
RIVETQ_METHODS = methods_of(RIVETQ)


def address_of(server: RunningServer) -> str:
    """Return HOST:PORT of gRPC."""
    (found,) = [url for url in server.server.urls if url.startswith("grpc")]
    return found.partition("://")[2]


class Caller:
    """A channel. `call("Publish", queue="q", …)` returns the response."""

    def __init__(
        self, address: str, *, key: str = "", authorization: str = "", own: bool = False
    ) -> None:
        """With `own`, the connection is not shared with other channels of this process."""
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", int(own))]
        )
        given = {"x-api-key": key, "authorization": authorization}
        self._metadata = [(name, value) for name, value in given.items() if value]

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *error: object) -> None:
        self.channel.close()

    def call(self, name: str, /, timeout_s: float = PATIENCE_S, **fields: Any) -> Any:
        return self._call(METHODS[name], timeout_s, fields)

    def rivetq(self, name: str, /, **fields: Any) -> Any:
        return self._call(RIVETQ_METHODS[name], PATIENCE_S, fields)

    def future(self, name: str, /, timeout_s: float | None = PATIENCE_S, **fields: Any) -> Any:
        """Start a call that can be cancelled."""
        method = METHODS[name]
        call = _unary(self.channel, method)
        return call.future(method.request(**fields), timeout=timeout_s, metadata=self._metadata)

    def _call(self, method: Method, timeout_s: float, fields: dict[str, Any]) -> Any:
        call = _unary(self.channel, method)
        return call(method.request(**fields), timeout=timeout_s, metadata=self._metadata)

    def publish(self, queue: str, *payloads: bytes) -> list[str]:
        response = self.call("Publish", queue=queue, messages=[{"payload": p} for p in payloads])
        return [one.id for one in response.messages]

    def lease(self, queue: str, **fields: Any) -> list[Any]:
        return list(self.call("Lease", queue=queue, **fields).messages)

    def ready(self, queue: str) -> tuple[int, int]:
        """Return (ready, leased)."""
        stats = self.call("GetStats", queue=queue)
        return stats.ready, stats.leased


def _unary(channel: Any, method: Method) -> Any:
    return channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )


def consuming(channel: Any) -> Any:
    """Return the multi-callable of Consume."""
    method = METHODS["Consume"]
    return channel.stream_stream(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
