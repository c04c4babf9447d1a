"""A connection without a socket, in the event loop of a server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from penstock.server.beanstalk.connection import Connection, new_connection
from tests.server.beanstalk.wire import listener_of
from tests.server.running import RunningServer


class FakeTransport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5) if name == "peername" else default

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


def in_loop(
    server: RunningServer, work: Callable[[Connection, FakeTransport], Awaitable[Any]]
) -> Any:
    """Run a test in the event loop of the server, with a connection that has no socket."""

    async def run() -> Any:
        connection = cast(Connection, new_connection(listener_of(server), asyncio.get_event_loop()))
        transport = FakeTransport()
        connection.connection_made(cast(asyncio.Transport, transport))
        try:
            return await work(connection, transport)
        finally:
            connection.connection_lost(None)

    return server.call(run())
