"""Listeners of other protocols, each on a port of its own beside HTTP.

A server starts, drains and stops all of them alike; see `Server`. They use the broker, the limits
and the ticks of its `Service`.
"""

import re
import socket
from typing import NamedTuple, Protocol

from penstock.errors import InvalidInput
from penstock.server.listening import is_loopback, listen_on
from penstock.server.settings import ServerSettings

_USUAL_PORTS = {"beanstalk": 11300, "grpc": 9090, "sqs": 9324}
_ADDRESS = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]*)):([0-9]{1,5})")


class Listener(Protocol):
    """A protocol that a server speaks beside HTTP."""

    @property
    def url(self) -> str:
        """Return its URL for programs on this machine, such as `beanstalk://127.0.0.1:11300`."""

    def bind(self) -> None:
        """Take the port. Raise InvalidInput if that is not possible, or not safe."""

    async def start(self) -> None:
        """Accept connections: the broker has recovered."""

    def close(self) -> None:
        """Accept no more connections. Also called if `start` was not."""

    async def finish(self, within_s: float) -> None:
        """Answer what was received, after `close`. End the rest when the time is over."""


class Address(NamedTuple):
    """A host and a port to listen on."""

    host: str
    port: int

    def url(self, scheme: str, port: int) -> str:
        """Return the URL for programs on this machine, with the port that the system chose."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def parse_address(setting: str, text: str) -> Address:
    """Return the address that a setting names. Raise InvalidInput if it is not HOST:PORT.

    >>> parse_address("beanstalk", "127.0.0.1:11300")
    Address(host='127.0.0.1', port=11300)
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[3]) > 65535:
        port = _USUAL_PORTS.get(setting, 11300)
        raise InvalidInput(
            f"{setting} is {text!r}; it must be HOST:PORT, such as 127.0.0.1:{port} or [::1]:{port}"
        )
    return Address(found[1] or found[2], int(found[3]))


def listen_at(setting: str, address: Address) -> list[socket.socket]:
    """Return sockets that listen on every address of the host."""
    return listen_on(address.host, address.port, what=f"{setting}: ")


def refuse_unless_local(
    setting: str, address: Address, settings: ServerSettings, *, keys_required: bool
) -> None:
    """Raise InvalidInput if callers of a protocol without keys could do what they should not.

    That is if other machines can reach it, or if this broker requires keys. `insecure` allows both.
    """
    if settings.insecure:
        return
    if keys_required:
        raise InvalidInput(
            f"{setting}: its clients send no API key, and this broker requires one: leave it out, "
            f"or use --insecure to let every client that reaches {address.host}:{address.port} in"
        )
    if not is_loopback(address.host, address.port):
        raise InvalidInput(
            f"{setting}: {address.host} can be reached from other machines, and the protocol has "
            f"no keys: listen on 127.0.0.1, or use --insecure"
        )
