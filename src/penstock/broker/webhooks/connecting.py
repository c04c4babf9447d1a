"""Connections of webhooks: a name is looked up once, and what was judged is what is connected to.

Between a check of a name and a connection by name the answer may change (DNS rebinding). So the
address that was judged is the address that is called; the name goes on only in `Host` and in TLS.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from httpcore2 import (
    AnyIOBackend,
    AsyncNetworkBackend,
    AsyncNetworkStream,
    ConnectError,
    ConnectTimeout,
)

from penstock.broker.webhooks.addresses import check_address
from penstock.errors import AddressRefused

SocketOption = (
    tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
)
Resolve = Callable[[str, int], Awaitable[list[str]]]

_MOST_ADDRESSES_TRIED = 3
_CONNECT_S = 3.0  # to one address: the next ones get their turn within the time of a delivery
_LOOKUPS_AT_A_TIME = 8


class Resolver:
    """Looks names up, in threads of its own: a slow name server holds up nothing else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS_AT_A_TIME, thread_name_prefix="webhook-names")

    async def __call__(self, host: str, port: int) -> list[str]:
        """The addresses of a name, or of a spelling of an address, in the system's order."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _look_up, host, port)
        return [str(address[0]) for *_, address in found]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class GuardedNetwork(AsyncNetworkBackend):
    """Opens connections, to addresses only that webhooks may call."""

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
        """Connect to one of the host's addresses; AddressRefused if none may be called."""
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise ConnectError(f"{host} has no address: {error.strerror or error}") from None
        failure: Exception = ConnectError(f"{host} has no address")
        for address in self._callable(addresses)[:_MOST_ADDRESSES_TRIED]:
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

    def _callable(self, addresses: list[str]) -> list[str]:
        if self._allow_private():
            return addresses
        good: list[str] = []
        refusal: AddressRefused | None = None
        for address in addresses:
            try:
                good.append(str(check_address(address)))
            except AddressRefused as error:
                refusal = refusal or error
        if not good and refusal is not None:
            raise refusal
        return good
