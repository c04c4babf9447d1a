"""The server: listen, recover the broker, stop gracefully."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import fields, replace

from penstock.broker import Broker, BrokerMetrics, Keys, Store
from penstock.broker.stores import open_store
from penstock.broker.webhooks import Webhooks
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, NotSupported
from penstock.extras import requires_extra
from penstock.server.all_routes import all_routes, all_streams
from penstock.server.beanstalk.listener import BeanstalkListener
from penstock.server.configuration import Configuration
from penstock.server.connection import new_connection
from penstock.server.listeners import Listener
from penstock.server.listening import (
    UnixSocket,
    listen,
    refuse_public_without_keys,
    tcp_url,
    unix_url,
)
from penstock.server.logs import set_level
from penstock.server.service import Service
from penstock.server.settings import RELOADABLE
from penstock.server.sqs.actions import Sqs
from penstock.server.sqs.listener import SqsListener
from penstock.server.tls import TlsListener, tls_context

log = logging.getLogger("penstock.server")

_LOOK_FOR_UNIX_S = 1.0
_FOR_REQUESTS = 0.6  # share of `shutdown_s`; the rest is for webhooks and snapshots


class NoDocuments:
    """A store without documents, so that there are no keys."""

    def load_document(self, name: str) -> "asyncio.Future[bytes | None]":
        found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        found.set_result(None)
        return found

    def replace_document(
        self, name: str, old: bytes | None, new: bytes | None
    ) -> "asyncio.Future[bool]":
        raise NotSupported("this broker uses no keys: the permissions of its socket decide")


class Server:
    """The broker behind its transports, in the running event loop."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        open_store: Callable[..., Store] = open_store,
        clock: Clock | None = None,
        url: str | None = None,
        uses_keys: bool = True,
        answers_early: bool = True,
    ) -> None:
        """`url`: where clients reach it, announced instead of its own. `uses_keys=False`: who can
        connect may do everything, whatever keys the store has. `answers_early=False`: calls on the
        Unix socket wait for the recovery instead of being answered with 503."""
        settings, clock = configuration.server, clock or SystemClock()
        metrics = BrokerMetrics()
        store = open_store(
            settings.data, configuration.broker, observe_commit=metrics.committed, clock=clock
        )
        self.broker = Broker(store, configuration.broker, metrics=metrics, clock=clock)
        self.webhooks = Webhooks(self.broker)
        keys = Keys(store if uses_keys else NoDocuments(), clock)
        self.broker.on_document_changed.append(keys.on_document)
        self.sqs = Sqs(self.broker)
        self.service = Service(
            self.broker,
            keys,
            settings,
            all_routes(self.sqs.route),
            all_streams(),
            webhooks=self.webhooks,
        )
        self.listeners: list[Listener] = []  # of other protocols than HTTP
        if settings.beanstalk:
            self.listeners.append(BeanstalkListener(self.service))
        if settings.sqs:
            self.listeners.append(SqsListener(self.service, self.sqs, lambda: self._tls))
        if settings.grpc:
            self.listeners.append(_grpc_listener(self.service))
        self._url = url
        self._answers_early = answers_early
        self._accepts_unix = False  # then the event loop closes the socket
        self.port = 0  # set when the server listens
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._recovery: asyncio.Task[None] | None = None
        self._unix: UnixSocket | None = None
        self._unix_watch: asyncio.Task[None] | None = None
        self._tls: ssl.SSLContext | None = None

    @property
    def urls(self) -> list[str]:
        """Return the URLs of the server, for programs on this machine."""
        settings = self.service.settings
        found = [tcp_url(settings, self.port)] if settings.tcp else []
        if settings.unix:
            found.append(unix_url(settings.unix))
        return [*found, *(listener.url for listener in self.listeners)]

    # -- starting ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Lock the data directory, listen, and start recovery.

        Calls are answered with 503 until recovery is done. Errors before it are raised.
        """
        settings = self.service.settings
        await self.service.keys.load()
        refuse_public_without_keys(settings, keys_required=self.service.keys.required)
        self._tls = tls_context(settings)
        sockets = listen(settings) if settings.tcp else []
        try:
            if settings.unix:
                self._unix = UnixSocket(settings)
            for other in self.listeners:
                other.bind()
            await self.broker.claim()
        except BaseException:
            for one in sockets:
                one.close()
            self._remove_unix()
            for other in self.listeners:
                other.close()
            self.service.off_loop.close()
            raise
        loop = asyncio.get_running_loop()
        service, tls = self.service, self._tls
        for one in sockets:
            self._listeners.append(
                await loop.create_server(lambda: new_connection(service, loop), sock=one)
                if tls is None
                else TlsListener(service, loop, one, tls)
            )
        fields_: dict[str, object] = {}
        if sockets:
            self.port = sockets[0].getsockname()[1]
            fields_ = {"host": settings.host, "port": self.port, "tls": self._tls is not None}
        if self._unix is not None:
            fields_["unix"] = settings.unix
            if self._answers_early:
                await self._accept_unix()
        if self.listeners:
            fields_["others"] = [listener.url for listener in self.listeners]
        log.info("listening", extra={"fields": fields_})
        self._recovery = asyncio.create_task(self._recover())

    async def _accept_unix(self) -> None:
        if self._unix is not None:
            listener = await self._listen_unix(self._unix)
            self._accepts_unix = True
            self._unix_watch = asyncio.create_task(self._keep_unix(self._unix, listener))

    async def _listen_unix(self, unix: UnixSocket) -> asyncio.Server:
        loop, service = asyncio.get_running_loop(), self.service
        # Without TLS: what is sent does not leave this machine.
        listener = await loop.create_unix_server(
            lambda: new_connection(service, loop), sock=unix.socket
        )
        self._listeners.append(listener)
        return listener

    async def _keep_unix(self, unix: UnixSocket, listener: asyncio.Server) -> None:
        """Make the socket file again if it is removed, for example by a clean-up of *.sock.

        The system does not tell a process that listens. So this looks once a second.
        """
        while True:
            await asyncio.sleep(_LOOK_FOR_UNIX_S)
            try:
                if not unix.restore():
                    continue
            except OSError:
                continue  # its directory was removed as well, or is full: it may come back
            self._listeners.remove(listener)
            listener.close()
            listener = await self._listen_unix(unix)
            log.warning(
                "unix socket made again",
                extra={"fields": {"unix": self.service.settings.unix, "reason": "it was removed"}},
            )

    async def ready(self) -> None:
        """Wait until calls are accepted. Raise the error of a failed recovery."""
        assert self._recovery is not None, "start it first"
        await asyncio.shield(self._recovery)

    async def _recover(self) -> None:
        await self.broker.start()
        await self.broker.announce(self._url or self.urls[0])
        await self.webhooks.start()
        self.broker.charts.start()
        for listener in self.listeners:
            await listener.start()
        if not self._answers_early:
            await self._accept_unix()
        _, queues = self.broker.progress
        log.info("ready", extra={"fields": {"queues": queues}})

    # -- changing ----------------------------------------------------------------------------------

    async def reload(self, configuration: Configuration) -> None:
        """Use new settings, keys and certificates, except settings that need a restart."""
        old, new = self.service.settings, configuration.server
        await self.service.keys.load()
        if self._tls is not None:
            self._tls.load_cert_chain(old.tls_cert, old.tls_key)
        differing = {f.name for f in fields(new) if getattr(old, f.name) != getattr(new, f.name)}
        changes = {name: getattr(new, name) for name in differing & RELOADABLE}
        self.broker.change_settings(configuration.broker)
        self.service.use(replace(old, **changes))
        set_level(self.service.settings)
        need_restart = sorted(differing - RELOADABLE)
        log.info(
            "reloaded",
            extra={"fields": {"changed": sorted(changes), "need_restart": need_restart}},
        )

    # -- stopping ----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Refuse new calls, answer pending ones, and write snapshots, within `shutdown_s`."""
        loop = asyncio.get_running_loop()
        allowed_s = self.service.settings.shutdown_s
        until = loop.time() + allowed_s
        self.service.is_stopping = True
        log.info("stopping", extra={"fields": {"within_s": allowed_s}})
        for listener in self._listeners:
            listener.close()
        for other in self.listeners:
            other.close()
        self._remove_unix()
        for connection in list(self.service.connections):
            connection.shutdown()
        self.broker.waiting.close()
        within_s = allowed_s * _FOR_REQUESTS
        finishing = [listener.finish(within_s) for listener in self.listeners]
        await asyncio.gather(self._finish_requests(within_s), *finishing)
        self.service.ticks.stop()
        self.service.stream_keys.stop()
        try:
            async with asyncio.timeout_at(until):
                await self._stop_broker(until - loop.time())
        except TimeoutError:
            log.error(
                "not stopped in time",
                extra={"fields": {"advice": "nothing answered is lost; the next start recovers"}},
            )
        log.info("stopped")

    def _remove_unix(self) -> None:
        if self._unix_watch is not None:
            self._unix_watch.cancel()
        if self._unix is not None:
            self._unix.remove()
            if not self._accepts_unix:
                self._unix.socket.close()  # who has connected is told by that
            self._unix = None

    async def _finish_requests(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        await self.service.ticks.wait_until_none(within_s)
        tasks = list(self.service.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=max(until - loop.time(), 0))
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)
        for connection in list(self.service.connections):
            connection.transport.abort()

    async def _stop_broker(self, within_s: float) -> None:
        recovery = self._recovery
        assert recovery is not None
        recovery.cancel()  # no effect if it is done
        await asyncio.wait([recovery])
        if not recovery.cancelled() and recovery.exception() is None:
            await self.webhooks.stop(grace_s=within_s / 2)
        await self.broker.stop()
        self.service.off_loop.close()


def _grpc_listener(service: Service) -> Listener:
    with requires_extra("grpc", "grpc", InvalidInput):
        from penstock.server.grpc.listener import GrpcListener
    return GrpcListener(service)
