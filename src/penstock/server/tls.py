"""TLS: the server's certificate, and the handshakes of new connections."""

import asyncio
import logging
import socket
import ssl

from penstock.errors import InvalidInput
from penstock.server.connection import new_connection
from penstock.server.routes import RouteTable
from penstock.server.service import Service
from penstock.server.settings import ServerSettings

log = logging.getLogger("penstock.server")

_ACCEPTED_PER_TURN = 100
_PAUSE_S = 1.0  # after an error of `accept`


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """Return the configured certificate and key; None if TLS is not configured."""
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInput(f"tls_cert and tls_key cannot be used: {error}") from None
    return context


class TlsListener:
    """Accepts connections and encrypts them.

    A handshake counts as a connection, and has a time limit. The listeners of asyncio show a
    connection only after its handshake.
    """

    def __init__(
        self,
        service: Service,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        context: ssl.SSLContext,
        routes: RouteTable | None = None,
    ) -> None:
        """`routes`: instead of those of the service."""
        self._service = service
        self._routes = routes
        self._loop = loop
        self._listening = listening
        self._context = context
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def close(self) -> None:
        """Accept no more connections, and close those without a finished handshake."""
        if self._pause is None:
            self._loop.remove_reader(self._listening)
        else:
            self._pause.cancel()
        self._listening.close()
        for handshake in self._handshakes:
            handshake.cancel()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # too many open files, or no memory
                log.error("cannot accept a connection: %s", error)
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(_PAUSE_S, self._resume)
                return
            service = self._service
            if service.connection_count >= service.settings.max_connections:
                accepted.close()  # an answer would need a handshake
                continue
            accepted.setblocking(False)
            service.handshakes += 1
            handshake = self._loop.create_task(self._encrypt(accepted))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _encrypt(self, accepted: socket.socket) -> None:
        service = self._service
        timeout_s = service.settings.header_timeout_s
        handshake = _Handshake(service, self._loop, self._routes)
        try:
            await self._loop.connect_accepted_socket(
                lambda: handshake,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=timeout_s,
            )
        except OSError:  # no handshake, a wrong one, or not in time
            accepted.close()
        finally:
            handshake.end()


class _Handshake(asyncio.Protocol):
    """The protocol of a connection until its handshake is complete."""

    def __init__(
        self, service: Service, loop: asyncio.AbstractEventLoop, routes: RouteTable | None
    ) -> None:
        self._service = service
        self._loop = loop
        self._routes = routes
        self._is_over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.end()
        connection = new_connection(self._service, self._loop, self._routes)
        transport.set_protocol(connection)
        connection.connection_made(transport)

    def end(self) -> None:
        """Do not count it any more. May be called again."""
        if not self._is_over:
            self._is_over = True
            self._service.handshakes -= 1
