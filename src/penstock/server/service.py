# cython: annotation_typing=False
"""State that all connections of a server share: the broker, keys, limits and corked replies."""

import asyncio
import logging
import re
import secrets
from collections.abc import Mapping
from email.utils import formatdate
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import parse_qsl

from penstock.broker import Broker, Caller, Keys
from penstock.broker.webhooks import Webhooks
from penstock.errors import InvalidInput, KeyRefused, PenstockError
from penstock.model import NS
from penstock.server.cursors import Cursors
from penstock.server.dialects.metrics import DialectMetrics
from penstock.server.export_limits import ExportLimits
from penstock.server.http_metrics import HttpMetrics
from penstock.server.listening import UNIX_PEER
from penstock.server.off_loop import OffLoop
from penstock.server.problems import Refused
from penstock.server.replies import Replies
from penstock.server.routes import RouteTable
from penstock.server.settings import UNIX_PROXIES, ServerSettings
from penstock.server.stream_keys import StreamKeys
from penstock.server.ticks import Ticks

log = logging.getLogger("penstock.server")

UNKNOWN_ADDRESS = "unknown"  # the address of a peer that has none
_KEY_PARAMETERS = frozenset({"api_key", "apikey", "api-key", "x-api-key", "access_token", "token"})
_MAY_NAME_A_KEY = re.compile(rb"key|token", re.IGNORECASE)  # as all of these do
_MOST_PROXIES = 20
_MOST_CALLERS = 10_000
_MOST_LARGE_ANSWERS = 4  # read and encoded at the same time; others wait
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")

Headers = Mapping[bytes, bytes]


class Connected(Protocol):
    """A connection: HTTP, or a WebSocket."""

    transport: asyncio.Transport

    def shutdown(self) -> None:
        """Answer pending requests, then close. Accept no new ones."""


class Corked(Protocol):
    """A connection with replies to send."""

    def end_turn(self) -> None: ...


class Service:
    """The broker, its keys, and the server's own state."""

    def __init__(
        self,
        broker: Broker,
        keys: Keys,
        settings: ServerSettings,
        routes: RouteTable,
        streams: RouteTable,
        *,
        webhooks: Webhooks,
    ) -> None:
        self.broker = broker
        self.keys = keys
        self.stream_keys = StreamKeys(keys)
        self.webhooks = webhooks
        self.routes = routes
        self.streams = streams  # routes of WebSockets
        self.monotonic_ns = broker.clock.monotonic_ns
        self.cursors = Cursors(lambda: broker.secret)
        self.replies = Replies()
        self.connections: set[Connected] = set()  # open ones
        self.handshakes = 0  # connections whose TLS handshake is in progress
        self.streamed_replies = 0  # event streams and exports under way
        self.tasks: set[asyncio.Task[Any]] = set()  # of handlers that wait
        self.held = broker.held  # bytes of bodies and answers in memory
        self.off_loop = OffLoop(broker.held)
        self.large_answers = asyncio.Semaphore(_MOST_LARGE_ANSWERS)
        self.exports = ExportLimits(broker.held)
        self.http_metrics = HttpMetrics(
            broker.metrics.registry,
            connections=lambda: self.connection_count,
            held_bytes=lambda: self.held.bytes,
        )
        DialectMetrics(
            broker.metrics,
            self.http_metrics,
            are_wanted=lambda: self.settings.dialect_metrics,
        )
        self.is_stopping = False
        self.ticks = Ticks(self._tick)
        self._second = 0
        self._run_id = secrets.token_hex(4).encode()  # makes request ids unique across restarts
        self._request_number = 0
        self._callers: dict[tuple[bytes | None, bytes | None, str], Caller] = {}
        self._callers_of = 0  # the load time of the keys that `_callers` is based on
        self._corked: list[Corked] = []
        self.tracing = _tracing(broker) if settings.tracing else None
        self.use(settings)

    @property
    def connection_count(self) -> int:
        """Return the number of connections, including those in a TLS handshake."""
        return len(self.connections) + self.handshakes

    def use(self, settings: ServerSettings) -> None:
        """Use these settings from now on."""
        self.settings = settings
        self.reports_answers = settings.access_log or self.tracing is not None
        self.held.max_bytes = settings.max_buffered_bytes
        self._proxies = settings.proxy_networks()
        self._trusts_unix = UNIX_PROXIES in settings.trusted_proxies
        self.ticks.use(settings)

    def _tick(self) -> None:
        self._callers.clear()
        second = self.broker.clock.now_ns() // NS
        if second != self._second:
            self._second = second
            self.replies.set_date(formatdate(second, usegmt=True))

    # -- replies -----------------------------------------------------------------------------------

    def cork(self, connection: Corked) -> None:
        """Flush a connection after the event loop has handled its current events.

        Replies sent one by one, in between, would halve the throughput.
        """
        if not self._corked:
            asyncio.get_running_loop().call_soon(self._uncork)
        self._corked.append(connection)

    def _uncork(self) -> None:
        corked, self._corked = self._corked, []
        for connection in corked:
            connection.end_turn()

    def request_id(self, given: bytes | None = None) -> bytes:
        """Return the caller's id if it is valid, else a new one."""
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given
        self._request_number += 1
        return b"%s-%x" % (self._run_id, self._request_number)

    # -- callers -----------------------------------------------------------------------------------

    def known_caller(self, headers: Headers, query: bytes, peer: str | None) -> Caller | None:
        """Return the caller of a request; None if `admit` has to check its key.

        A caller is cached until the next tick, or until keys are loaded.
        """
        try:
            if query:
                refuse_key_in_query(query)
            address = self._address(headers, peer)
            if self.keys.loaded_ns != self._callers_of:
                self._callers.clear()
                self._callers_of = self.keys.loaded_ns
            key = headers.get(b"x-api-key"), headers.get(b"authorization"), address
            caller = self._callers.get(key)
            if caller is None:
                caller = self.keys.known(token_of(headers), address)
                if caller is not None and len(self._callers) < _MOST_CALLERS:
                    self._callers[key] = caller
            return caller
        except PenstockError as error:
            self.broker.metrics.refused(error)
            raise

    async def admit(self, headers: Headers, query: bytes, peer: str | None) -> Caller:
        """Return the caller of a request. Read the keys again before refusing one."""
        caller = self.known_caller(headers, query, peer)
        return caller if caller is not None else await self.admit_now(headers, peer)

    async def admit_now(self, headers: Headers, peer: str | None) -> Caller:
        """Return the caller, by keys that were read within the last second."""
        try:
            return await self.keys.admit(token_of(headers), self._address(headers, peer))
        except PenstockError as error:
            self.broker.metrics.refused(error)
            raise

    def _address(self, headers: Headers, peer: str | None) -> str:
        if peer is not None and b"x-forwarded-for" not in headers:
            return peer
        return self.address_of(headers, peer)

    def address_of(self, headers: Headers, peer: str | None) -> str:
        """Return the client's address: the peer's, or the one that trusted proxies report."""
        forwarded = headers.get(b"x-forwarded-for")
        if peer is None:
            return UNKNOWN_ADDRESS
        if forwarded is None or not self._is_trusted(peer):
            return peer
        hops = forwarded.decode("latin-1").split(",")[-_MOST_PROXIES:]
        for hop in reversed(hops):
            address = hop.strip()
            try:
                ip_address(address)
            except ValueError:
                return peer  # not an address: earlier entries cannot be trusted either
            peer = address
            if not self._is_trusted(address):
                break
        return peer

    def forwarded(self, name: bytes, headers: Headers, peer: str | None) -> str | None:
        """Return a header of the last proxy, such as `x-forwarded-prefix`, if it is trusted."""
        value = headers.get(name)
        if value is None or peer is None or not self._is_trusted(peer):
            return None
        return value.decode("latin-1").rpartition(",")[2].strip()

    def _is_trusted(self, address: str) -> bool:
        if address.startswith(UNIX_PEER):
            return self._trusts_unix
        if not self._proxies:
            return False
        try:
            ip = ip_address(address)
        except ValueError:
            return False
        return any(ip in network for network in self._proxies)


def token_of(headers: Headers) -> str | None:
    """Return the API key of a request; None if there is none."""
    key = headers.get(b"x-api-key")
    if key is not None:
        return key.decode("latin-1")
    authorization = headers.get(b"authorization")
    if authorization is None:
        return None
    scheme, _, token = authorization.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer":
        raise KeyRefused("an API key is sent as X-Api-Key or as Authorization: Bearer")
    return token.strip()


def refuse_key_in_query(query: bytes) -> None:
    """Raise Refused if a URL has a key in it: URLs are logged, cached and shared."""
    if b"%" not in query and not _MAY_NAME_A_KEY.search(query):
        return
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name.lower() in _KEY_PARAMETERS:
            raise Refused(
                f"an API key does not belong in a URL ({name}=…): send it as X-Api-Key or "
                f"Authorization: Bearer, and replace it, since URLs are written to logs"
            )


def _tracing(broker: Broker) -> Any:
    try:
        from penstock.server.tracing import BrokerTracing
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"tracing = true needs the package {error.name!r}, which is not installed; "
            f"install Penstock with the extra otel (pip install '.[otel]' in its checkout)"
        ) from None
    return BrokerTracing(broker)
