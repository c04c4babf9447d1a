"""The gRPC server: its port, TLS and limits, and how it stops."""

import asyncio
import os
from pathlib import Path
from typing import Any

# gRPC's C core writes to stderr by itself; the log has what matters.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from penstock.errors import InvalidInput
from penstock.protobuf.descriptors import Method
from penstock.server.grpc import queue_service, rivetq_service, standard_services
from penstock.server.grpc.call import GrpcCall, Shared, streaming
from penstock.server.listeners import parse_address
from penstock.server.listening import is_loopback
from penstock.server.problems import NoSuchRoute
from penstock.server.service import Service
from penstock.server.settings import ServerSettings

_CLIENT_PING_S = 10  # clients that ping more often, without calls, are disconnected
_MIN_PENDING = 3000  # gRPC's default; beyond `grpc_max_calls`, the server itself refuses calls


class GrpcListener:
    """gRPC on a port of its own."""

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self._service = service
        self._address = parse_address("grpc", settings.grpc)
        self._shared = Shared(service)
        self._server: Any = None
        self._port = self._address.port

    @property
    def url(self) -> str:
        """Return the URL for programs on this machine."""
        return self._address.url("grpcs" if self._service.settings.tls_cert else "grpc", self._port)

    # -- starting ----------------------------------------------------------------------------------

    def bind(self) -> None:
        """Take the port. Raise InvalidInput if that is not possible, or not safe."""
        service, (host, port) = self._service, self._address
        settings = service.settings
        if not (service.keys.required or settings.insecure or is_loopback(host, port)):
            raise InvalidInput(
                f"grpc: {host} can be reached from other machines, and there are no API keys: make "
                f"one with `penstock keys create`, listen on 127.0.0.1, or use --insecure"
            )
        server = grpc.aio.server(
            options=_options(settings), maximum_concurrent_rpcs=settings.grpc_max_calls
        )
        server.add_generic_rpc_handlers((_Handlers(self._shared),))
        text = f"[{host}]:{port}" if ":" in host else f"{host or '0.0.0.0'}:{port}"
        try:
            if settings.tls_cert:
                bound = server.add_secure_port(text, _Certificates(service).credentials())
            else:
                bound = server.add_insecure_port(text)
        except (RuntimeError, ValueError) as error:
            raise InvalidInput(
                f"grpc: cannot listen on {host} port {port}: another server may be there, or the "
                f"address is not this machine's ({error})"
            ) from None
        self._server, self._port = server, bound

    async def start(self) -> None:
        """Accept connections: the broker has recovered."""
        await self._server.start()

    # -- stopping ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Take note that the server stops. Waiting calls are answered, streams end."""
        self._shared.is_stopping.set()

    async def finish(self, within_s: float) -> None:
        """Refuse new calls, answer pending ones, then close all connections."""
        if self._server is None:
            return
        try:
            async with asyncio.timeout(within_s + 1):
                await self._server.stop(within_s)
        except TimeoutError:
            pass  # what was answered is not lost


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    # Calls that the event loop has not taken yet. gRPC answers those above its hard limit with
    # CANCELLED, and by chance some above its other limit: so both are the same.
    pending = max(settings.grpc_max_calls, _MIN_PENDING)
    return [
        ("grpc.so_reuseport", 0),  # a second server on the port is an error
        ("grpc.max_receive_message_length", settings.grpc_max_message_bytes),
        ("grpc.max_send_message_length", -1),  # the broker limits answers
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a request may be a bomb
        ("grpc.max_metadata_size", settings.max_header_bytes),
        ("grpc.absolute_max_metadata_size", settings.max_header_bytes),
        ("grpc.max_concurrent_streams", settings.grpc_max_calls),
        ("grpc.server.max_pending_requests", pending),
        ("grpc.server.max_pending_requests_hard_limit", pending),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.server_handshake_timeout_ms", round(settings.header_timeout_s * 1000)),
        ("grpc.max_connection_idle_ms", max(round(settings.idle_timeout_s * 1000), 1000)),
        ("grpc.keepalive_time_ms", round(settings.grpc_ping_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(settings.grpc_pong_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _CLIENT_PING_S * 1000),
    ]


class _Certificates:
    """The certificate and its key. They are read again after SIGHUP, for new connections."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._read_for = service.settings  # replaced by each reload

    def credentials(self) -> Any:
        return grpc.dynamic_ssl_server_credentials(self._read(), self._fetch)

    def _fetch(self) -> Any:
        """Return new certificates; None if they are not to be read again. Called by a thread of
        gRPC for each handshake."""
        if self._service.settings is self._read_for:
            return None
        self._read_for = self._service.settings
        try:
            return self._read()
        except (InvalidInput, RuntimeError):
            return None  # the reload itself reported that they cannot be read

    def _read(self) -> Any:
        settings = self._service.settings
        try:
            pair = Path(settings.tls_key).read_bytes(), Path(settings.tls_cert).read_bytes()
        except OSError as error:
            raise InvalidInput(f"tls_cert and tls_key cannot be used: {error}") from None
        return grpc.ssl_server_certificate_configuration([pair])


# -- methods ---------------------------------------------------------------------------------------


_UNKNOWN = Method("unknown", "unknown", object, object)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The handlers of all methods. Others are answered with an error, and counted as one."""

    def __init__(self, shared: Shared) -> None:
        self._by_path = {
            **queue_service.handlers(shared),
            **rivetq_service.handlers(shared),
            **standard_services.handlers(shared),
        }
        self._unknown = streaming(shared, _UNKNOWN, _refuse)

    def service(self, details: Any) -> Any:
        return self._by_path.get(details.method, self._unknown)


async def _refuse(call: GrpcCall) -> None:
    raise NoSuchRoute("there is no such method: server reflection lists those that exist")
