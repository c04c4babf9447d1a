"""A WebSocket on one connection, based on the sans-I/O protocol of the `websockets` package.

A client that does not read, or sends too much, is dropped without the closing handshake. The close
frame would have to wait for bytes that the client does not read, with its messages still leased.
"""

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from penstock.errors import KeyRefused, PenstockError, Unavailable
from penstock.server import cors
from penstock.server.listening import peer_address
from penstock.server.problems import Refused, in_format_of, problem_of
from penstock.server.routes import Target
from penstock.server.service import Service, token_of

if TYPE_CHECKING:
    from penstock.broker import Caller

log = logging.getLogger("penstock.server")
# `websockets` logs headers and frames at DEBUG. None of that may be logged.
_quiet = logging.getLogger("penstock.server.websocket")
_quiet.setLevel(logging.WARNING)

NOT_UTF8, TOO_LARGE, NO_PONG, RESTARTING, TRY_LATER = 1007, 1009, 1011, 1012, 1013  # close codes
METHOD = "WEBSOCKET"  # of the routes of streams
_PIECE_BYTES = 4096  # parsed at a time: about 700 of the smallest frames
_MOST_FRAGMENTS = 10_000  # of one message; the limit in bytes does not limit empty fragments
_CLOSE_S = 10.0  # for the client's half of the closing handshake
REVOKED = "this API key was revoked or changed, or one is needed now"


class Disconnected(Exception):
    """The client disconnected, or the WebSocket was closed."""


class WebSocketProtocol(asyncio.Protocol):
    """One WebSocket, from its handshake to its end."""

    transport: asyncio.Transport
    caller: "Caller"
    target: Target
    query_string: bytes
    is_refused: asyncio.Event  # set when the key is revoked

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        settings = service.settings
        self.service = service
        self._loop = loop
        self._held = service.held
        self._conn = ServerProtocol(max_size=settings.ws_max_frame_bytes, logger=_quiet)
        self._ping_s, self._pong_s = settings.ws_ping_s, settings.ws_pong_s
        self._timer: asyncio.TimerHandle | None = None  # of the next ping, or of its pong
        self._ping = b""  # the unanswered ping
        self._patience: asyncio.TimerHandle | None = None  # drops a client that does not read
        self._closing: asyncio.TimerHandle | None = None
        self._is_open = False  # the handshake is complete
        self._is_over = False  # a close frame was sent, or the connection was lost
        self._messages: asyncio.Queue[str | bytes | None] = asyncio.Queue()  # None: the end
        self._is_read_paused = False  # a message waits to be received
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent = self._unread = 0  # bytes that this connection added to `_held`
        self._arrived = bytearray()  # received, not parsed yet
        self._parsing: asyncio.Handle | None = None
        self._fragments: list[bytes] = []
        self._is_text = False
        self._url = b""

    # -- the connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.service.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._patience, self._closing, self._parsing):
            if timer is not None:
                timer.cancel()
        self._held.bytes -= self._unsent + self._unread
        self._unsent = self._unread = 0
        self._is_over = True
        self._messages.put_nowait(None)
        self._writable.set()
        self.service.connections.discard(self)

    def shutdown(self) -> None:
        """Close with the code that the server restarts."""
        if not self._is_open:
            self._refuse(Unavailable("the server is stopping: retry in a moment"))
        elif not self._is_over:
            self._is_over = True
            self._messages.put_nowait(None)
            self._conn.send_close(RESTARTING)
            self._write_out()
        self.transport.close()

    # -- the handshake -----------------------------------------------------------------------------

    def handshake(self, method: str, url: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """Start with a request whose head was read by the HTTP connection."""
        self._url = url
        lines = [b"%s: %s\r\n" % header for header in headers]
        self._conn.receive_data(
            b"".join([method.encode(), b" ", url, b" HTTP/1.1\r\n", *lines, b"\r\n"])
        )
        (request, *_) = [*self._conn.events_received(), None]
        if not isinstance(request, Request):
            self._refuse(Refused("this is not the handshake of a WebSocket"))
            return
        response = self._conn.accept(request)
        if response.status_code != 101:
            self._is_over = True
            self._conn.send_response(response)
            self._write_out()
            self.transport.close()
            return
        task = self._loop.create_task(self._run(dict(headers), response))
        self.service.tasks.add(task)
        task.add_done_callback(self.service.tasks.discard)

    async def _run(self, headers: dict[bytes, bytes], response: Response) -> None:
        service = self.service
        try:
            self.target, self.query_string = service.streams.find(METHOD, self._url)
            # A browser lets any page open a WebSocket.
            if b"origin" in headers and not (
                cors.is_same_origin(headers, needs_key=service.keys.required)
                or cors.grant(service.settings, headers)
            ):
                raise cors.refusal("connect", headers)
            address = peer_address(self.transport)
            self.caller = await service.admit(headers, self.query_string, address)
            self.is_refused = service.stream_keys.watch(
                token_of(headers), service.address_of(headers, address), self.caller
            )
        except Exception as error:
            self._refuse(error)
            return
        try:
            await self._stream(response)
        finally:
            service.stream_keys.forget(self.is_refused)

    async def _stream(self, response: Response) -> None:
        try:
            stream = await self.target.route.handler(self)
            if self.is_refused.is_set():
                raise KeyRefused(REVOKED)
        except Exception as error:
            self._refuse(error)
            return
        if not self.transport.is_closing():
            self._is_open = True
            self._conn.send_response(response)
            self._write_out()
            self._plan_ping()
            if self._arrived:
                self._parse_piece()
            await stream.run()
            if self._closing is None:
                self.transport.close()

    def _refuse(self, error: Exception) -> None:
        """Answer the handshake with an error."""
        if not isinstance(error, PenstockError):
            log.error("stream failed", exc_info=error)
        if self._is_over or self.transport.is_closing():
            return
        self._is_over = True
        service = self.service
        problem = in_format_of(self._url, problem_of(error))
        self.transport.write(service.replies.refusal(problem, service.request_id()))
        self.transport.close()

    # -- receiving ---------------------------------------------------------------------------------

    async def receive(self) -> str | bytes | None:
        """Return the next message; None when the WebSocket is closed."""
        message = await self._messages.get()
        if self._is_read_paused and self._messages.empty():
            self._is_read_paused = False
            if not self._arrived and not self.transport.is_closing():
                self.transport.resume_reading()
        return message

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        if not self._is_open:
            self._count_unread()
            self.transport.pause_reading()  # until the handshake is answered
        elif self._parsing is None:
            self._parse_piece()

    def _parse_piece(self) -> None:
        """Parse one piece. The rest waits for the next turn of the loop, after other calls."""
        self._parsing = None
        piece = bytes(self._arrived[:_PIECE_BYTES])
        del self._arrived[:_PIECE_BYTES]
        self._conn.receive_data(piece)
        if self._conn.parser_exc is not None:
            self._end()
        else:
            for event in self._conn.events_received():
                assert isinstance(event, Frame)
                self._handle(event)
        self._count_unread()
        if self.transport.is_closing():
            self._arrived.clear()
        elif self._arrived:
            self.transport.pause_reading()
            self._parsing = self._loop.call_soon(self._parse_piece)
        elif self._is_read_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _count_unread(self) -> None:
        in_fragments = sum(map(len, self._fragments))
        unread = len(self._arrived) + len(self._conn.reader.buffer) + in_fragments
        self._held.bytes += unread - self._unread
        self._unread = unread
        if not self._held.has_room_for_body(unread):
            self._fail(TRY_LATER, "the server's buffers are full (max_buffered_bytes)")

    def _handle(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY:
                self._is_text = frame.opcode is Opcode.TEXT
                self._fragments = [bytes(frame.data)]
            case Opcode.CONT:
                if len(self._fragments) >= _MOST_FRAGMENTS:
                    self._fail(TOO_LARGE, f"a message of more than {_MOST_FRAGMENTS} fragments")
                    return
                self._fragments.append(bytes(frame.data))
            case Opcode.PING:
                self.handle_ping()
                return
            case Opcode.PONG:
                if self._ping and bytes(frame.data) == self._ping:
                    self._plan_ping()
                return
            case _:
                self._handle_close()
                return
        if frame.fin:
            self._handle_message()

    def _handle_message(self) -> None:
        data = b"".join(self._fragments)
        self._fragments = []
        if self._is_over:
            return  # discard it, and read on until the client's close frame
        message: str | bytes = data
        if self._is_text:
            try:
                message = data.decode()
            except UnicodeDecodeError:
                self._fail(NOT_UTF8, "the text is not UTF-8")
                return
        self._messages.put_nowait(message)
        self._is_read_paused = True

    def handle_ping(self) -> None:
        """Send the pong, unless the client does not read: pongs would pile up in memory."""
        if self._writable.is_set():
            self._write_out()
        else:
            self._conn.data_to_send()

    def _handle_close(self) -> None:
        if self._is_over and self._closing is None:
            return
        if not self._is_over:
            self._is_over = True
            self._messages.put_nowait(None)
        self._write_out()
        self.transport.close()

    def _fail(self, code: int, reason: str) -> None:
        if not self._is_over:
            self._conn.fail(code, reason)
            self._end()

    def _end(self) -> None:
        """Close after an error. The close frame says which."""
        self._is_over = True
        self._messages.put_nowait(None)
        self._write_out()
        self.transport.close()

    # -- sending -----------------------------------------------------------------------------------

    async def send(self, text: str) -> None:
        """Send a message. Raise Disconnected if the WebSocket is closed."""
        await self._writable.wait()
        if self._is_over:
            raise Disconnected
        try:
            self._conn.send_text(text.encode())
        except InvalidState:
            raise Disconnected from None
        self._write_out()

    def close(self, code: int, reason: str) -> None:
        """Start the closing handshake."""
        if self._is_over or self.transport.is_closing():
            return
        self._is_over = True
        self._conn.send_close(code, reason)
        self._write_out()
        self._closing = self._loop.call_later(_CLOSE_S, self.transport.close)
        if self._is_read_paused:
            self._is_read_paused = False
            self.transport.resume_reading()

    def _write_out(self) -> None:
        output = b"".join(self._conn.data_to_send())
        if output and not self.transport.is_closing():
            self.transport.write(output)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._unsent = self.transport.get_write_buffer_size()
        self._held.bytes += self._unsent
        if self._patience is None:
            self._patience = self._loop.call_later(self._pong_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._writable.set()
        self._held.bytes -= self._unsent
        self._unsent = 0
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    # -- pings -------------------------------------------------------------------------------------

    def _plan_ping(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ping = b""
        self._timer = self._loop.call_later(self._ping_s, self._send_ping)

    def _send_ping(self) -> None:
        if self._is_over or self.transport.is_closing():
            return
        self._ping = random.getrandbits(32).to_bytes(4, "big")  # identifies its pong
        self._conn.send_ping(self._ping)
        self._write_out()
        self._timer = self._loop.call_later(self._pong_s, self._no_pong)

    def _no_pong(self) -> None:
        if not (self._is_over or self.transport.is_closing()):
            self._fail(NO_PONG, "keepalive ping timeout")
        self.transport.abort()  # the close frame may never be read
