"""A reply of unknown length, sent in chunks: event streams and exports.

It takes over the connection, which is closed at its end. Only one chunk is buffered: `send` waits
until the client has read enough of the earlier ones. A client that reads nothing for
`idle_timeout_s` is dropped. When the server stops, the reply ends at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.errors import Overloaded
from penstock.server.call import LATER, Call, Later
from penstock.server.replies import Reply
from penstock.server.service import Service

log = logging.getLogger("penstock.server")

MOST_STREAMS = 200  # of a server, at the same time; above it 503
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
        """Send a chunk when the client has read the earlier ones. Raise StreamEnded at the end."""
        try:
            async with asyncio.timeout(self._service.settings.idle_timeout_s):
                await self._writable.wait()
        except TimeoutError:
            self.transport.abort()  # it does not read
        if self.ended.is_set() or self.transport.is_closing():
            raise StreamEnded
        if data:
            self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))

    def finish(self) -> None:
        """Send the end of the reply. Without it, the client sees that something is missing."""
        if not self.transport.is_closing():
            self.transport.write(_LAST_CHUNK)


def stream(call: Call, head: Reply, produce: Callable[[StreamedReply], Awaitable[None]]) -> Later:
    """Answer a call with what `produce` sends. `head` has the status and the headers.

    Raise Overloaded if the server has too many such replies.
    """
    service = call.service
    if service.streamed_replies >= MOST_STREAMS:
        raise Overloaded(f"{MOST_STREAMS} event streams and exports are open: retry later")
    chunked = head._replace(headers=[*head.headers, ("transfer-encoding", "chunked")])
    lines = service.replies.head(chunked, call.request_id, (), close=True)
    reply = StreamedReply(service)
    call.connection.hand_over(reply)
    took_ns = service.monotonic_ns() - call.began_ns
    service.http_metrics.answered(call.target.route.path, call.method, head.status, took_ns)
    reply.transport.write(lines)
    task = call.connection.loop.create_task(_run(reply, produce, call.method == "HEAD"))
    service.tasks.add(task)
    task.add_done_callback(service.tasks.discard)
    return LATER


async def _run(
    reply: StreamedReply, produce: Callable[[StreamedReply], Awaitable[None]], is_head: bool
) -> None:
    try:
        if not is_head:
            await produce(reply)
            reply.finish()
    except StreamEnded:
        pass
    except Exception as error:
        log.error("streamed reply failed", exc_info=error)
    finally:
        reply.transport.close()
