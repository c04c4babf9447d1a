"""A server: it listens, lets the broker recover, and stops in good order."""

import asyncio
import functools
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from uvicorn.config import Config
from uvicorn.server import ServerState

from penstock.broker import Broker, BrokerMetrics, Keys, Store
from penstock.broker.stores import open_store
from penstock.broker.webhooks import Webhooks
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput
from penstock.server.app import build_app
from penstock.server.configuration import Configuration
from penstock.server.date_header import DateHeader
from penstock.server.deadlines import Deadlines
from penstock.server.hot_routes import HotRoutes
from penstock.server.known_heads import KnownHeads
from penstock.server.listening import listen, own_url, refuse_open_door
from penstock.server.logs import set_level
from penstock.server.protocol import PenstockProtocol
from penstock.server.replies import Replies
from penstock.server.service import Service
from penstock.server.settings import RELOADABLE, ServerSettings
from penstock.server.ws.protocol import WebSocketProtocol

log = logging.getLogger("penstock.server")

_FOR_REQUESTS = 0.6  # of the time there is to stop; the rest is for webhooks and snapshots


class Server:
    """The broker behind its transports, in the running event loop."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        open_store: Callable[..., Store] = open_store,
        clock: Clock | None = None,
    ) -> None:
        settings, clock = configuration.server, clock or SystemClock()
        metrics = BrokerMetrics()
        store = open_store(
            settings.data, configuration.broker, observe_commit=metrics.committed, clock=clock
        )
        self.broker = Broker(store, configuration.broker, metrics=metrics, clock=clock)
        self.webhooks = Webhooks(self.broker)
        self.service = Service(self.broker, Keys(store, clock), settings, webhooks=self.webhooks)
        self.port = 0  # where it listens, once it does
        self._state = ServerState()
        self.service.connections = self._state.connections
        self._deadlines = Deadlines()
        self._date = DateHeader(self._state, clock)
        self._listeners: list[asyncio.Server] = []
        self._recovery: asyncio.Task[None] | None = None
        self._tls: ssl.SSLContext | None = None

    # -- starting ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the data directory, listen, and begin to recover. Until that is done, calls are
        answered with 503. What is in the way of the first two is raised before anything is said."""
        settings = self.service.settings
        await self.service.keys.load()
        refuse_open_door(settings, keys_required=self.service.keys.required)
        config = self._uvicorn_config(settings)
        self._tls = config.ssl
        sockets = listen(settings)
        try:
            await self.broker.claim()
        except BaseException:
            for one in sockets:
                one.close()
            raise
        make_protocol = functools.partial(
            PenstockProtocol,
            config,
            self._state,
            {"held": self.service.held},
            service=self.service,
            hot=HotRoutes(self.service),
            deadlines=self._deadlines,
            replies=Replies(self._state),
            heads=KnownHeads(self.service),
        )
        self._date.start()
        self._deadlines.use(settings)
        loop = asyncio.get_running_loop()
        for one in sockets:
            self._listeners.append(
                await loop.create_server(make_protocol, sock=one, ssl=config.ssl)
            )
        self.port = sockets[0].getsockname()[1]
        fields_ = {"host": settings.host, "port": self.port, "tls": config.ssl is not None}
        log.info("listening", extra={"fields": fields_})
        self._recovery = asyncio.create_task(self._recover())

    async def ready(self) -> None:
        """Wait until calls are taken; raises why they never will be."""
        assert self._recovery is not None, "start it first"
        await asyncio.shield(self._recovery)

    async def _recover(self) -> None:
        await self.broker.start()
        await self.broker.announce(own_url(self.service.settings, self.port))
        await self.webhooks.start()
        _, queues = self.broker.progress
        log.info("ready", extra={"fields": {"queues": queues}})

    def _uvicorn_config(self, settings: ServerSettings) -> Config:
        config = Config(
            build_app(self.service),
            ws=WebSocketProtocol,
            ws_max_size=settings.ws_max_frame_bytes,
            ws_ping_interval=settings.ws_ping_s,
            ws_ping_timeout=settings.ws_pong_s,
            ws_per_message_deflate=False,  # a small frame could unpack to a large one
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # whom to believe is our own setting
            server_header=False,
            ssl_certfile=settings.tls_cert or None,
            ssl_keyfile=settings.tls_key or None,
        )
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            raise InvalidInput(f"tls_cert and tls_key cannot be used: {error}") from None
        return config

    # -- changing ----------------------------------------------------------------------------------

    async def reload(self, configuration: Configuration) -> None:
        """Use new settings, keys and certificates, as far as a running server can."""
        old, new = self.service.settings, configuration.server
        await self.service.keys.load()
        if self._tls is not None:
            self._tls.load_cert_chain(old.tls_cert, old.tls_key)
        differing = {f.name for f in fields(new) if getattr(old, f.name) != getattr(new, f.name)}
        changes = {name: getattr(new, name) for name in differing & RELOADABLE}
        self.service.use(replace(old, **changes))
        self.broker.change_settings(configuration.broker)
        self._deadlines.use(self.service.settings)
        set_level(self.service.settings)
        need_restart = sorted(differing - RELOADABLE)
        log.info(
            "reloaded",
            extra={"fields": {"changed": sorted(changes), "need_restart": need_restart}},
        )

    # -- stopping ----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Take nothing new, answer what was asked, write snapshots; within `shutdown_s`."""
        loop = asyncio.get_running_loop()
        allowed_s = self.service.settings.shutdown_s
        until = loop.time() + allowed_s
        self.service.is_stopping = True
        log.info("stopping", extra={"fields": {"within_s": allowed_s}})
        for listener in self._listeners:
            listener.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        self.broker.waiting.close()
        await self._finish_requests(allowed_s * _FOR_REQUESTS)
        self._deadlines.stop()
        self._date.stop()
        try:
            async with asyncio.timeout_at(until):
                await self._stop_broker(until - loop.time())
        except TimeoutError:
            log.error(
                "not stopped in time",
                extra={"fields": {"advice": "nothing answered is lost; the next start recovers"}},
            )
        log.info("stopped")

    async def _finish_requests(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        await self._deadlines.wait_until_none(within_s)
        tasks: Sequence[asyncio.Task[None]] = list(self._state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=max(until - loop.time(), 0))
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)
        for connection in list(self._state.connections):
            connection.transport.abort()

    async def _stop_broker(self, within_s: float) -> None:
        recovery = self._recovery
        assert recovery is not None
        recovery.cancel()  # which does nothing to one that is done
        await asyncio.wait([recovery])
        if not recovery.cancelled() and recovery.exception() is None:
            await self.webhooks.stop(grace_s=within_s / 2)
        await self.broker.stop()
        self.service.off_loop.close()
