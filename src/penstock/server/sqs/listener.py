"""SQS on an address of its own: HTTP, with no other interface than SQS."""

import asyncio
import socket
import ssl
from collections.abc import Callable

from penstock.errors import InvalidInput
from penstock.server.connection import new_connection
from penstock.server.listeners import listen_at, parse_address
from penstock.server.listening import is_loopback
from penstock.server.routes import RouteTable
from penstock.server.service import Service
from penstock.server.sqs.actions import Sqs
from penstock.server.tls import TlsListener

SETTING = "sqs"


class SqsListener:
    """Serves the calls of SQS, at `/` and at the URLs of queues."""

    def __init__(
        self, service: Service, sqs: Sqs, tls: Callable[[], ssl.SSLContext | None]
    ) -> None:
        """`tls` returns the context of the server, which reloads its certificate."""
        self._service = service
        self._tls = tls
        self._address = parse_address(SETTING, service.settings.sqs)
        self._routes = RouteTable(sqs.own_routes())
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server | TlsListener] = []
        self._port = self._address.port

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        """Return its URL for programs on this machine: the endpoint URL of a client."""
        scheme = "https" if self._service.settings.tls_cert else "http"
        return self._address.url(scheme, self._port)

    def bind(self) -> None:
        service, (host, port) = self._service, self._address
        if not (service.keys.required or service.settings.insecure or is_loopback(host, port)):
            raise InvalidInput(
                f"{SETTING}: {host} can be reached from other machines, and there are no API keys: "
                f"make one with `penstock keys create --sqs`, listen on 127.0.0.1, or use "
                f"--insecure"
            )
        self._sockets = listen_at(SETTING, self._address)
        self._port = self._sockets[0].getsockname()[1]

    async def start(self) -> None:
        loop, service, routes, tls = (
            asyncio.get_running_loop(),
            self._service,
            self._routes,
            self._tls(),
        )
        while self._sockets:
            one = self._sockets.pop()
            self._servers.append(
                await loop.create_server(lambda: new_connection(service, loop, routes), sock=one)
                if tls is None
                else TlsListener(service, loop, one, tls, routes)
            )

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for one in self._sockets:
            one.close()
        self._sockets = []

    async def finish(self, within_s: float) -> None:
        """Do nothing: the server waits for all connections, see `Service.connections`."""
