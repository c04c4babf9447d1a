"""The URL of a webhook: what it may be, and its parts as a request needs them."""

import socket
from typing import NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from penstock.broker.webhooks.addresses import check_address
from penstock.errors import AddressRefused, InvalidInput

LONGEST_URL = 2048
_PORTS = {"http": 80, "https": 443}


class Endpoint(NamedTuple):
    """A URL, taken apart."""

    scheme: str
    host: str  # as for a name lookup and TLS: ASCII, no brackets
    port: int
    target: str  # path and query
    host_header: str


def parse_url(url: str) -> Endpoint:
    """Take a URL apart; InvalidInput says what is wrong with it.

    >>> parse_url("https://hooks.example.com/in?queue=orders")
    Endpoint(scheme='https', host='hooks.example.com', port=443, target='/in?queue=orders', \
host_header='hooks.example.com')
    """
    if not isinstance(url, str) or not url.isprintable() or " " in url or "\\" in url:
        raise InvalidInput("a webhook's url is text without spaces and control characters")
    if len(url) > LONGEST_URL:
        raise InvalidInput(f"the url has {len(url)} characters; at most {LONGEST_URL} are allowed")
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
        raise InvalidInput("the url has port 0, where nobody listens")
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
    """As `parse_url`; moreover an address in it, however it is spelled, must be one to call.

    A name is not looked up: what it leads to is judged each time it is called.
    """
    endpoint = parse_url(url)
    if allow_private:
        return endpoint
    if endpoint.host == "localhost" or endpoint.host.endswith(".localhost"):
        raise AddressRefused(
            "localhost is this machine: the broker calls it only if the setting "
            "webhook_allow_private in [broker] (PENSTOCK_BROKER_WEBHOOK_ALLOW_PRIVATE) is true"
        )
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
    # What is escaped already stays as it is; only what may not travel bare is escaped.
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    return f"{path}?{quote(parts.query, safe='/%:@!$&()*+,;=~-._?')}" if parts.query else path
