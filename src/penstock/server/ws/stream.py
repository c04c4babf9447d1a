"""Push messages through one WebSocket, until it closes and its messages are released.

The dialects define the frames: native.py, epochqueue.py.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.broker import Outcome
from penstock.broker.consumers import Consumer
from penstock.errors import KeyRefused, NoSuchGroup, NoSuchQueue, PenstockError, Unavailable
from penstock.model import LeasedMessage
from penstock.server.ws.protocol import RESTARTING, REVOKED, Disconnected, WebSocketProtocol

log = logging.getLogger("penstock.server")

MAX_UNANSWERED = 256  # settlements that are not durable yet; then reading stops
_LONGEST_REASON = 120  # bytes: a close frame has room for 123

# Close codes. Those from 4000 are our own: 4000 plus the equivalent HTTP status.
POLICY_VIOLATION = 1008
INTERNAL = 1011
NOT_FOUND = 4404


class Frames(Protocol):
    """The frames of one dialect."""

    def message(self, leased: LeasedMessage) -> str:
        """Return the frame of a message. Called in the loop or in a thread."""

    def handle(self, consumer: Consumer, text: str) -> "Settling | None":
        """Handle a frame of the client. Raise PenstockError if it is not valid."""

    def error(self, error: PenstockError) -> str: ...


class Settling:
    """A settlement that is not durable yet, and the frame to send when it is."""

    __slots__ = ("_outcomes", "_say")

    def __init__(
        self, outcomes: Future[list[Outcome]], say: Callable[[Outcome], str | None]
    ) -> None:
        self._outcomes = outcomes
        self._say = say

    async def answer(self) -> str | None:
        (outcome,) = await self._outcomes
        return self._say(outcome)


class Stream:
    """An accepted WebSocket."""

    def __init__(self, websocket: WebSocketProtocol, consumer: Consumer, frames: Frames) -> None:
        self._held = websocket.service.held
        self._off_loop = websocket.service.off_loop
        self._websocket = websocket
        self._consumer = consumer
        self._frames = frames
        self._settling: asyncio.Queue[Settling] = asyncio.Queue(MAX_UNANSWERED)

    async def run(self) -> None:
        """Run until one side closes the WebSocket, then release all unsettled messages."""
        works = [
            asyncio.create_task(work)
            for work in (self._check_key(), self._push(), self._receive(), self._answer())
        ]
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._consumer.close()
            for work in works:
                work.cancel()
            await asyncio.wait(works)
        error = _why(works)
        if error is not None:
            code, reason = _close_code(error)
            if code == INTERNAL:
                log.error("stream failed", exc_info=error)
            self._websocket.close(code, reason)

    async def _check_key(self) -> None:
        await self._websocket.is_refused.wait()
        raise KeyRefused(REVOKED)

    async def _push(self) -> None:
        while messages := await self._consumer.next():
            unsent = sum(len(leased.payload) for leased in messages)
            self._held.bytes += unsent
            try:
                for leased in messages:
                    make = partial(self._frames.message, leased)
                    size = len(leased.payload)
                    text = await self._off_loop.run_if_large(size, make)
                    await self._websocket.send(text)
                    self._held.bytes -= size
                    unsent -= size
            finally:
                self._held.bytes -= unsent

    async def _receive(self) -> None:
        while True:
            text = await self._websocket.receive()
            if text is None:
                return
            try:
                if isinstance(text, bytes):
                    text = text.decode("utf-8", "backslashreplace")
                settling = self._frames.handle(self._consumer, text)
            except PenstockError as error:
                await self._websocket.send(self._frames.error(error))
                continue
            if settling is not None:
                await self._settling.put(settling)

    async def _answer(self) -> None:
        """Send the results of settlements in their order. Many run at once, to share a sync."""
        while True:
            settling = await self._settling.get()
            try:
                said = await settling.answer()
            except PenstockError as error:
                said = self._frames.error(error)
            if said is not None:
                await self._websocket.send(said)


def _why(works: "list[asyncio.Task[None]]") -> BaseException | None:
    """Return the error that ended the stream; None if the client or a shutdown closed it."""
    for work in works:
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, Disconnected):
            return error
    return None


def _close_code(error: BaseException) -> tuple[int, str]:
    if isinstance(error, KeyRefused):
        return POLICY_VIOLATION, str(error)
    if isinstance(error, NoSuchQueue | NoSuchGroup):
        return NOT_FOUND, _shortened(str(error))
    if isinstance(error, Unavailable):
        return RESTARTING, _shortened(str(error))
    if isinstance(error, PenstockError):
        return INTERNAL, _shortened(str(error))
    return INTERNAL, "something went wrong inside the server: its log says what"


def _shortened(text: str) -> str:
    return text.encode()[:_LONGEST_REASON].decode(errors="ignore")
