"""uvicorn's WebSocket protocol, with limits for those who do not read, or send too much.

By itself it closes such a connection in good order, which waits for ever: the bytes that are to be
sent before the end are the ones that nobody takes. Its messages would stay leased all that time.
"""

import asyncio
import logging
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from penstock.broker.held import Held

# uvicorn and websockets log paths at INFO, headers and frames at DEBUG. None of that may be logged.
_quiet = logging.getLogger("penstock.server.websocket")
_quiet.setLevel(logging.WARNING)

NOT_UTF8, TOO_LARGE, TRY_LATER = 1007, 1009, 1013  # close codes
_PIECE_BYTES = 4096  # parsed at a time: about 700 of the smallest frames
_MOST_FRAGMENTS = 10_000  # of one message; empty ones have no bytes to be limited by


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket. Whoever takes nothing for as long as a pong may take is dropped."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = self.conn.logger = _quiet
        self.conn.debug = False  # it asked its former logger
        self._patience: asyncio.TimerHandle | None = None
        self._held: Held = self.app_state["held"]
        self._unsent = self._unread = 0  # our part of it
        self._arrived = bytearray()  # not parsed yet
        self._parsing: asyncio.Handle | None = None

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # it was refused; else the log would say it was not done

    # -- what arrives ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        if self._parsing is None:
            self._parse_piece()

    def _parse_piece(self) -> None:
        """Parse one piece and leave the rest to the next round, so that others have a turn."""
        self._parsing = None
        piece = bytes(self._arrived[:_PIECE_BYTES])
        del self._arrived[:_PIECE_BYTES]
        super().data_received(piece)
        self._count_unread()
        if self.transport.is_closing():
            self._arrived.clear()
        elif self._arrived:
            self.transport.pause_reading()
            self._parsing = self.loop.call_soon(self._parse_piece)
        elif not self.read_paused:
            self.transport.resume_reading()

    def _count_unread(self) -> None:
        in_frames = sum(map(len, self.frames))
        unread = len(self._arrived) + len(self.conn.reader.buffer) + in_frames
        self._held.bytes += unread - self._unread
        self._unread = unread
        if not (self.close_sent or self._held.has_room_for_body(unread)):
            self._fail(TRY_LATER, "the server holds as much as it may")

    async def receive(self) -> ASGIReceiveEvent:
        event = await super().receive()
        if self._arrived and not self.transport.is_closing():
            self.transport.pause_reading()  # the parent class has just resumed it
        return event

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < _MOST_FRAGMENTS:
            super().handle_cont(event)
        elif not self.close_sent:
            self._fail(TOO_LARGE, f"a message of more than {_MOST_FRAGMENTS} fragments")

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text":
            self.frames = [b"".join(self.frames)]
            try:
                self.frames[0].decode()
            except UnicodeDecodeError:
                self.frames = []
                if not self.close_sent:
                    self._fail(NOT_UTF8, "the text is not UTF-8")
                return
        super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # no pong for those who do not read: it would only pile up

    def _fail(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    # -- what is sent ------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._held.bytes += self._unsent
        if self._patience is None and self.ping_timeout is not None:
            self._patience = self.loop.call_later(self.ping_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._held.bytes -= self._unsent
        self._unsent = 0
        self._lose_patience_no_more()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()  # perhaps nobody is there to take the close frame

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose_patience_no_more()
        if self._parsing is not None:
            self._parsing.cancel()
        self._held.bytes -= self._unsent + self._unread
        self._unsent = self._unread = 0
        super().connection_lost(exc)

    def _lose_patience_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
