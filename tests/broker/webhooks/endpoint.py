"""The receiving end of webhooks: a small HTTP server on a real socket, that answers as scripted."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple


class Received(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def answer(status: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Receiver:
    """What came, and what is answered: the scripted answers in turn, then 200."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.silent = False  # read, and never answer
        self.connections = 0
        self.port = 0
        self._received: list[Received] = []
        self._came = asyncio.Condition()

    @property
    def received(self) -> list[Received]:
        return list(self._received)

    def url(self, path: str = "/hook", *, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def wait_for(self, count: int) -> list[Received]:
        """All that came, as soon as so many did."""
        async with asyncio.timeout(30), self._came:
            await self._came.wait_for(lambda: len(self._received) >= count)
            return self.received

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, target, _ = head[0].split(" ")
                pairs = [line.split(": ", 1) for line in head[1:] if line]
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                async with self._came:
                    self._received.append(Received(method, target, headers, body))
                    self._came.notify_all()
                if self.silent:
                    await reader.read()
                    return
                writer.write(self.answers.pop(0) if self.answers else OK)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiver(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver on a free port of the loopback."""
    one = Receiver()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0, ssl=tls)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
