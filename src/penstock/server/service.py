"""What all transports of one server share."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence, Sized
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import parse_qsl

from starlette.requests import HTTPConnection

from penstock.broker import Broker, Caller, Keys
from penstock.broker.store import payload_bytes
from penstock.broker.webhooks import Webhooks
from penstock.errors import KeyRefused, PenstockError
from penstock.model import LeasedMessage
from penstock.server.cursors import Cursors
from penstock.server.dialects.metrics import DialectMetrics
from penstock.server.http_metrics import HttpMetrics
from penstock.server.off_loop import OffLoop, size_of_many
from penstock.server.refusals import Refused
from penstock.server.request_ids import RequestIds
from penstock.server.settings import ServerSettings

log = logging.getLogger("penstock.server")
_T = TypeVar("_T")

NOWHERE = "unknown"  # the address of a peer that has none
_KEY_PARAMETERS = frozenset({"api_key", "apikey", "api-key", "x-api-key", "access_token", "token"})
_MOST_PROXIES = 20
_MOST_LARGE_ANSWERS = 4  # pages and the like that are read and encoded at once; others wait


class Service:
    """The broker, its keys, and what the server knows itself."""

    def __init__(
        self, broker: Broker, keys: Keys, settings: ServerSettings, *, webhooks: Webhooks
    ) -> None:
        self.broker = broker
        self.keys = keys
        self.webhooks = webhooks
        self.cursors = Cursors(lambda: broker.secret)
        self.request_ids = RequestIds()
        self.connections: Sized = ()  # open ones
        self.held = broker.held  # of bodies that are received or worked on, and of answers
        self.off_loop = OffLoop(broker.held)
        self.large_answers = asyncio.Semaphore(_MOST_LARGE_ANSWERS)
        self.http_metrics = HttpMetrics(
            broker.metrics.registry,
            connections=lambda: len(self.connections),
            held_bytes=lambda: self.held.bytes,
        )
        DialectMetrics(
            broker.metrics,
            self.http_metrics,
            are_wanted=lambda: self.settings.dialect_metrics,
        )
        self.is_stopping = False
        self.use(settings)

    def use(self, settings: ServerSettings) -> None:
        """Use these settings from now on."""
        self.settings = settings
        self.held.max_bytes = settings.max_buffered_bytes
        self._proxies = settings.proxy_networks()

    # -- answering ---------------------------------------------------------------------------------

    async def answer_lease(
        self, request: HTTPConnection, leased: Sequence[LeasedMessage], make: Callable[[], _T]
    ) -> _T:
        """Make the answer to a lease. If it cannot be sent, give the messages back."""
        try:
            size = size_of_many(len(leased), payload_bytes(leased))
            made = await self.off_loop.answer(size, make)
        except BaseException:
            self.broker.give_back(leased)
            raise
        if request.state.is_gone():
            self.broker.give_back(leased)
        return made

    # -- who calls ---------------------------------------------------------------------------------

    async def caller_of(self, connection: HTTPConnection) -> Caller:
        """Who sent a request; for whatever speaks ASGI."""
        scope = connection.scope
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        peer = scope["client"][0] if scope.get("client") else None
        try:
            refuse_key_in_query(scope["query_string"])
            return await self.keys.admit(token_of(headers), self.address_of(headers, peer))
        except PenstockError as error:
            self.broker.metrics.refused(error)
            raise

    def address_of(self, headers: Mapping[bytes, bytes], peer: str | None) -> str:
        """The client's address: the peer's, or what trusted proxies say beyond themselves."""
        forwarded = headers.get(b"x-forwarded-for")
        if peer is None:
            return NOWHERE
        if forwarded is None or not self._is_trusted(peer):
            return peer
        hops = forwarded.decode("latin-1").split(",")[-_MOST_PROXIES:]
        for hop in reversed(hops):
            address = hop.strip()
            try:
                ip_address(address)
            except ValueError:
                return peer  # not an address: nothing before it can be believed either
            peer = address
            if not self._is_trusted(address):
                break
        return peer

    def _is_trusted(self, address: str) -> bool:
        if not self._proxies:
            return False
        try:
            ip = ip_address(address)
        except ValueError:
            return False
        return any(ip in network for network in self._proxies)


def service_of(connection: HTTPConnection) -> Service:
    """The service of the app that a request came to."""
    service = connection.app.state.service
    assert isinstance(service, Service)
    return service


def token_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The API key that was sent, if one was."""
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
    """URLs are logged, cached and shared: a key in one is not secret any more."""
    if not query:
        return
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name.lower() in _KEY_PARAMETERS:
            raise Refused(
                f"an API key does not belong in a URL ({name}=…): send it as X-Api-Key or "
                f"Authorization: Bearer, and replace it, since URLs are written to logs"
            )
