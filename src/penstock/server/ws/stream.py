"""One WebSocket that messages are pushed through: from its handshake to the return of what it held.

What the frames look like is a dialect's matter: native.py, epochqueue.py.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.broker import Outcome
from penstock.broker.consumers import Consumer
from penstock.errors import NoSuchGroup, NoSuchQueue, PenstockError, Unavailable
from penstock.model import LeasedMessage
from penstock.server.ws.protocol import RESTARTING, Disconnected, WebSocketProtocol

log = logging.getLogger("penstock.server")

_MOST_UNANSWERED = 256  # settlements on their way to disk; then nothing more is read
_LONGEST_REASON = 120  # bytes: a close frame has room for 123

# Close codes. Those from 4000 are ours: 4000 and the HTTP status that says the same.
INTERNAL = 1011
NOT_FOUND = 4404


class Frames(Protocol):
    """How one dialect says things."""

    def message(self, leased: LeasedMessage) -> str:
        """A message. Perhaps in a thread."""

    def handle(self, consumer: Consumer, text: str) -> "Settling | None":
        """Do what a frame of the client asks for. PenstockError if it is not one."""

    def error(self, error: PenstockError) -> str: ...


class Settling:
    """A settlement on its way, and what the client is told when it is done."""

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
    """A WebSocket that was accepted."""

    def __init__(self, websocket: WebSocketProtocol, consumer: Consumer, frames: Frames) -> None:
        self._held = websocket.service.held
        self._off_loop = websocket.service.off_loop
        self._websocket = websocket
        self._consumer = consumer
        self._frames = frames
        self._settling: asyncio.Queue[Settling] = asyncio.Queue(_MOST_UNANSWERED)

    async def run(self) -> None:
        """Until one side ends it. What was not settled by then is ready again at once."""
        works = [
            asyncio.create_task(work) for work in (self._push(), self._receive(), self._answer())
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
        """What became of settlements, in the order they came. Many are on their way at once, so
        that they share a sync."""
        while True:
            settling = await self._settling.get()
            try:
                said = await settling.answer()
            except PenstockError as error:
                said = self._frames.error(error)
            if said is not None:
                await self._websocket.send(said)


def _why(works: "list[asyncio.Task[None]]") -> BaseException | None:
    """What ended it; None if that was the client, or a stop: then it is closed already."""
    for work in works:
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, Disconnected):
            return error
    return None


def _close_code(error: BaseException) -> tuple[int, str]:
    if isinstance(error, NoSuchQueue | NoSuchGroup):
        return NOT_FOUND, _shortened(str(error))
    if isinstance(error, Unavailable):
        return RESTARTING, _shortened(str(error))
    if isinstance(error, PenstockError):
        return INTERNAL, _shortened(str(error))
    return INTERNAL, "something went wrong inside the server: its log says what"


def _shortened(text: str) -> str:
    return text.encode()[:_LONGEST_REASON].decode(errors="ignore")
