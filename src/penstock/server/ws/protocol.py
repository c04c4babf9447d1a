"""uvicorn's WebSocket protocol, with an end for those who do not read.

By itself it closes such a connection in good order, which waits for ever: the bytes that are to be
sent before the end are the ones that nobody takes. Its messages would stay leased all that time.
"""

import asyncio
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket. Whoever takes nothing for as long as a pong may take is dropped."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._patience: asyncio.TimerHandle | None = None

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # it was refused; else the log would say it was not done

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._patience is None and self.ping_timeout is not None:
            self._patience = self.loop.call_later(self.ping_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._lose_patience_no_more()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()  # nobody is there to take a close frame

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose_patience_no_more()
        super().connection_lost(exc)

    def _lose_patience_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
