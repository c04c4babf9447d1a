"""A reply of unknown length, sent in chunks: event streams and exports.

It takes over the connection, which is closed at its end. Little is buffered: `send` writes in
pieces, each when the client has read enough of the earlier ones. A client that reads too slowly is
dropped. When the server stops, the reply ends at once.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from penstock.errors import Overloaded, PenstockError
from penstock.server.call import LATER, Call, Later
from penstock.server.problems import problem_of
from penstock.server.replies import Reply
from penstock.server.service import Service

log = logging.getLogger("penstock.server")

MOST_STREAMS = 200  # of a server, at the same time; above it 503
_PIECE_BYTES = 64 * 1024
_BYTES_PER_S = 64 * 1024  # minimum rate of a client that takes longer than `idle_timeout_s`
_LAST_CHUNK = b"0\r\n\r\n"


class StreamEnded(Exception):
    """The client disconnected, does not read, or the server stops."""


class StreamedReply(asyncio.Protocol):
    """The connection of a streamed reply."""

    transport: asyncio.Transport

    def __init__(self, service: Service) -> None:
        self._service = service
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent = 0  # bytes that this connection added to `held`
        self.ended = asyncio.Event()  # the connection is closed or closing

    # -- the connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._service.connections.add(self)
        self._service.streamed_replies += 1

    def connection_lost(self, exc: Exception | None) -> None:
        service = self._service
        service.connections.discard(self)
        service.streamed_replies -= 1
        service.held.bytes -= self._unsent
        self._unsent = 0
        self._end()
        service.exports.wake()

    def shutdown(self) -> None:
        """End the reply: the server stops."""
        self._end()
        self.transport.close()

    def _end(self) -> None:
        self.ended.set()
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Ignore what follows the request."""

    def pause_writing(self) -> None:
        self._writable.clear()
        self._unsent = self.transport.get_write_buffer_size()
        self._service.held.bytes += self._unsent

    def resume_writing(self) -> None:
        self._service.held.bytes -= self._unsent
        self._unsent = 0
        self._writable.set()

    # -- sending -----------------------------------------------------------------------------------

    async def send(self, data: bytes) -> None:
        """Send data, no faster than the client reads. Raise StreamEnded if that ends before."""
        view = memoryview(data)
        async with self._in_time(len(data)):
            for at in range(0, len(data), _PIECE_BYTES):
                await self.until_read()
                piece = view[at : at + _PIECE_BYTES]
                self.transport.write(b"".join((b"%x\r\n" % len(piece), piece, b"\r\n")))

    async def until_read(self) -> None:
        """Wait until the client has read nearly all. Raise StreamEnded if it reads nothing."""
        if not self._writable.is_set():
            async with self._in_time(0):
                await self._writable.wait()
        if self.ended.is_set() or self.transport.is_closing():
            raise StreamEnded

    @asynccontextmanager
    async def _in_time(self, size: int) -> AsyncGenerator[None, None]:
        """Drop a client that takes too long to read `size` bytes."""
        try:
            async with asyncio.timeout(self._service.settings.idle_timeout_s + size / _BYTES_PER_S):
                yield
        except TimeoutError:
            self.transport.abort()
            raise StreamEnded from None

    def finish(self) -> None:
        """Send the end of the reply. Without it, the client sees that something is missing."""
        if not self.transport.is_closing():
            self.transport.write(_LAST_CHUNK)


def stream(
    call: Call,
    head: Reply,
    produce: Callable[[StreamedReply], Awaitable[None]],
    ended: Callable[[], None] = lambda: None,
) -> Later:
    """Answer a call with what `produce` sends. `head` has the status and the headers.

    `ended` is called at the end, also if `produce` never began. Raise Overloaded if the server has
    too many such replies.
    """
    service = call.service
    if service.streamed_replies >= MOST_STREAMS:
        raise Overloaded(f"{MOST_STREAMS} event streams and exports are open: retry later")
    if call.connection.is_closed:  # `connection_lost` would not be called again
        ended()
        return LATER
    chunked = head._replace(headers=[*head.headers, ("transfer-encoding", "chunked")])
    lines = service.replies.head(chunked, call.request_id, (), close=True)
    reply = StreamedReply(service)
    call.connection.hand_over(reply)
    took_ns = service.monotonic_ns() - call.began_ns
    service.http_metrics.answered(call.target.route.path, call.method, head.status, took_ns)
    reply.transport.write(lines)
    task = call.connection.loop.create_task(_run(call, reply, produce))
    service.tasks.add(task)
    task.add_done_callback(service.tasks.discard)
    task.add_done_callback(lambda _: ended())
    return LATER


async def _run(
    call: Call, reply: StreamedReply, produce: Callable[[StreamedReply], Awaitable[None]]
) -> None:
    fields = {"request_id": call.request_id.decode()}
    try:
        if call.method != "HEAD":
            await produce(reply)
            reply.finish()
    except StreamEnded:
        pass
    except PenstockError as error:
        fields |= {"code": problem_of(error).code, "reason": str(error)}
        log.warning("streamed reply ended early", extra={"fields": fields})
    except Exception as error:
        log.error("streamed reply failed", exc_info=error, extra={"fields": fields})
    finally:
        reply.transport.close()
