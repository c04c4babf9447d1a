"""URLs and addresses that a webhook may call, and connections to them.

A subscriber chooses a URL that the broker then calls from inside a private network, perhaps beside
services that trust it. So only public addresses are called. The check is on the address, never on
its spelling. A name is resolved once, and the checked address is the one that is connected to:
DNS rebinding cannot change it in between. The name is only used for `Host` and TLS.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from httpcore2 import (
    AnyIOBackend,
    AsyncNetworkBackend,
    AsyncNetworkStream,
    ConnectError,
    ConnectTimeout,
)

from penstock.errors import AddressRefused, InvalidInput

Address = IPv4Address | IPv6Address
SocketOption = (
    tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
)
Resolve = Callable[[str, int], Awaitable[list[str]]]

MAX_URL = 2048  # characters
_PORTS = {"http": 80, "https": 443}
_MAX_ADDRESSES_TRIED = 3
_CONNECT_S = 3.0  # to one address, so that the next ones are tried within the delivery's timeout
_MAX_LOOKUPS = 8  # at a time

# IPv6 ranges whose last 32 bits are an IPv4 address that a gateway forwards to.
_ENDING_IN_IPV4 = (
    IPv6Network("::ffff:0:0/96"),  # IPv4-mapped
    IPv6Network("::/96"),  # IPv4-compatible, deprecated
    IPv6Network("::ffff:0:0:0/96"),  # IPv4-translated
    IPv6Network("64:ff9b::/96"),  # NAT64
)
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")  # each site puts the IPv4 address elsewhere in it

_HOW_TO_ALLOW = (
    "only if the setting webhook_allow_private in [broker] "
    "(PENSTOCK_BROKER_WEBHOOK_ALLOW_PRIVATE) is true"
)

# -- addresses -------------------------------------------------------------------------------------


def check_address(text: str) -> Address:
    """Return the address. Raise AddressRefused if a webhook may not call it.

    >>> check_address("93.184.216.34")
    IPv4Address('93.184.216.34')
    >>> check_address("64:ff9b::7f00:1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    penstock.errors.AddressRefused: 64:ff9b::7f00:1 (that is 127.0.0.1) is not a public address: ...
    """
    address = ip_address(text.partition("%")[0])
    for inner in (address, *_embedded(address)):
        if not _is_public(inner):
            shown = str(address) if inner == address else f"{address} (that is {inner})"
            raise AddressRefused(
                f"{shown} is not a public address: the broker calls private, loopback and "
                f"link-local ones {_HOW_TO_ALLOW}"
            )
    return address


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and _ends_in_ipv4(address):
        return True  # the address inside decides
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address in _LOCAL_NAT64
    )


def _embedded(address: Address) -> list[Address]:
    """Return the IPv4 addresses that an IPv6 address forwards to."""
    if isinstance(address, IPv4Address):
        return []
    found: list[Address] = []
    if _ends_in_ipv4(address):
        found.append(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found.extend(address.teredo)
    return found


def _ends_in_ipv4(address: IPv6Address) -> bool:
    if address.is_loopback or address.is_unspecified:
        return False  # ::1 and :: are in a range, but forward nowhere
    return any(address in network for network in _ENDING_IN_IPV4)


# -- URLs ------------------------------------------------------------------------------------------


class Endpoint(NamedTuple):
    """The parts of a URL, as a request needs them."""

    scheme: str
    host: str  # for name lookup and TLS: ASCII, no brackets
    port: int
    target: str  # path and query
    host_header: str


def parse_url(url: str) -> Endpoint:
    """Return the parts of a URL. Raise InvalidInput if a webhook cannot have it.

    >>> parse_url("https://hooks.example.com/in?queue=orders")
    Endpoint(scheme='https', host='hooks.example.com', port=443, target='/in?queue=orders', \
host_header='hooks.example.com')
    """
    if not isinstance(url, str) or not url.isprintable() or " " in url or "\\" in url:
        raise InvalidInput("a webhook's url is text without spaces and control characters")
    if len(url) > MAX_URL:
        raise InvalidInput(f"the url has {len(url)} characters; at most {MAX_URL} are allowed")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"the url cannot be read: {error}") from None
    if parts.scheme not in _PORTS:
        raise InvalidInput(f"the url begins with {parts.scheme!r}; only http and https are called")
    if "@" in parts.netloc:
        raise InvalidInput("the url has a user name or password: use the signature instead")
    if port == 0:
        raise InvalidInput("the url has port 0, which no server listens on")
    host = _host(parts)
    shown = f"[{host}]" if ":" in host else host
    default_port = _PORTS[parts.scheme]
    return Endpoint(
        scheme=parts.scheme,
        host=host,
        port=port or default_port,
        target=_target(parts),
        host_header=shown if port in (None, default_port) else f"{shown}:{port}",
    )


def check_url(url: str, *, allow_private: bool) -> Endpoint:
    """Return the parts of a URL. Raise AddressRefused if it contains a forbidden address.

    A name is not looked up here: its addresses are checked at each connection.
    """
    endpoint = parse_url(url)
    if allow_private:
        return endpoint
    if endpoint.host == "localhost" or endpoint.host.endswith(".localhost"):
        raise AddressRefused(f"localhost is this machine: the broker calls it {_HOW_TO_ALLOW}")
    try:
        found = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        return endpoint  # a name
    for *_, address in found:
        check_address(str(address[0]))
    return endpoint


def _host(parts: SplitResult) -> str:
    host = (parts.hostname or "").rstrip(".")
    if not host:
        raise InvalidInput("the url has no host")
    if "%" in host:
        raise InvalidInput("the url's host has a % in it: an interface cannot be chosen")
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise InvalidInput(f"the url's host {host!r} is not a host name: {error}") from None


def _target(parts: SplitResult) -> str:
    # Existing escapes stay; only characters that are not allowed in a URL are escaped.
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    return f"{path}?{quote(parts.query, safe='/%:@!$&()*+,;=~-._?')}" if parts.query else path


# -- connections -----------------------------------------------------------------------------------


class Resolver:
    """Resolve names in separate threads, so that a slow name server delays nothing else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_LOOKUPS, thread_name_prefix="webhook-names")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, in the system's order."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _look_up, host, port)
        return [str(address[0]) for *_, address in found]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class GuardedNetwork(AsyncNetworkBackend):
    """Open connections, only to addresses that webhooks may call."""

    def __init__(self, allow_private: Callable[[], bool], *, resolve: Resolve) -> None:
        self._allow_private = allow_private
        self._resolve = resolve
        self._network = AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> AsyncNetworkStream:
        """Connect to one of the host's addresses. Raise AddressRefused if all are forbidden."""
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise ConnectError(f"{host} has no address: {error.strerror or error}") from None
        failure: Exception = ConnectError(f"{host} has no address")
        for address in self._allowed(addresses)[:_MAX_ADDRESSES_TRIED]:
            try:
                return await self._network.connect_tcp(
                    address,
                    port,
                    timeout=_CONNECT_S if timeout is None else min(timeout, _CONNECT_S),
                    local_address=local_address,
                    socket_options=socket_options,
                )
            except (ConnectError, ConnectTimeout) as error:
                failure = error
        raise failure

    def _allowed(self, addresses: list[str]) -> list[str]:
        if self._allow_private():
            return addresses
        allowed: list[str] = []
        refusal: AddressRefused | None = None
        for address in addresses:
            try:
                allowed.append(str(check_address(address)))
            except AddressRefused as error:
                refusal = refusal or error
        if not allowed and refusal is not None:
            raise refusal
        return allowed
