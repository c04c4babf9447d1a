"""Where a server listens, and whether it may."""

import socket
from ipaddress import ip_address

from penstock.errors import InvalidInput
from penstock.server.settings import ServerSettings

_BACKLOG = 2048


def listen(settings: ServerSettings) -> list[socket.socket]:
    """Sockets for every address of the host, on one port."""
    sockets: list[socket.socket] = []
    port = settings.port
    try:
        for family, address in _addresses(settings.host, port):
            if not port and sockets:
                port = sockets[0].getsockname()[1]
            one = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address, port))
            one.listen(_BACKLOG)
            one.setblocking(False)
    except OSError as error:
        for one in sockets:
            one.close()
        raise InvalidInput(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}; "
            f"another server may be there, or the address is not this machine's"
        ) from None
    return sockets


def own_url(settings: ServerSettings, port: int) -> str:
    """Where programs on this machine reach the server."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host)
    if host is None:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def refuse_open_door(settings: ServerSettings, *, keys_required: bool) -> None:
    """InvalidInput if strangers could call without a key."""
    if keys_required or settings.insecure:
        return
    try:
        addresses = [address for _, address in _addresses(settings.host, settings.port)]
    except OSError as error:
        raise InvalidInput(f"{settings.host!r} is no address: {error.strerror}") from None
    if not all(ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        raise InvalidInput(
            f"{settings.host} can be reached from other machines, and there are no API keys: make "
            f"one with `penstock keys create`, listen on 127.0.0.1, or say --insecure"
        )


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(where[0])) for family, _, _, _, where in found))
