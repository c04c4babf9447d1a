"""Threads that decode and encode large bodies and answers outside the event loop.

The loop itself handles only bodies and answers of at most `SMALL_BYTES`, so that it never pauses
for long. A thread still holds the interpreter lock during each call of a C function, so base64 is
done in pieces: one call for 16 MiB takes about 100 ms, during which no other thread runs.
"""

import asyncio
from asyncio import Future
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Callable
from typing import TypeVar

from penstock.broker.limits import SMALL_BYTES, Held, encoded_bytes
from penstock.server.exit_threads import ExitThreads

_T = TypeVar("_T")
_THREADS = 2  # large bodies and answers handled at the same time
_PIECE_BYTES = 3 << 18  # a multiple of 3, so that only the last piece is padded
_PIECE_CHARACTERS = 4 << 18
_MESSAGE_BYTES = 320  # maximum size of a message in an answer, without its payload


class OffLoop:
    """The threads of one server."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self._threads = ExitThreads(_THREADS, "penstock-large")

    def run(self, work: Callable[[], _T]) -> "Future[_T]":
        """Run work in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def run_if_large(self, size: int, work: Callable[[], _T]) -> _T:
        """Run work in a thread if `size` is large, else at once."""
        return work() if size <= SMALL_BYTES else await self.run(work)

    async def answer(self, size: int, make: Callable[[], _T]) -> _T:
        """Make an answer of `size` bytes, which count as held until it is made."""
        if size <= SMALL_BYTES:
            return make()
        self.held.bytes += size
        try:
            return await self.run(make)
        finally:
            self.held.bytes -= size

    async def page(self, size: int, make: Callable[[], bytes]) -> bytes:
        """Make an answer like `answer`. Raise Overloaded if there is no room for it.

        Only for reads: refusing an answer after a change would hide that the change was made.
        """
        if size > SMALL_BYTES:
            self.held.check_room_for(size)
        return await self.answer(size, make)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def size_of_many(count: int, payload_bytes: int = 0) -> int:
    """Return the maximum size of an answer with `count` messages and these payloads."""
    return count * _MESSAGE_BYTES + encoded_bytes(payload_bytes)


def payload_bytes_in(size: int, count: int) -> int:
    """Return the most bytes of the payloads of `count` messages in an answer of this size."""
    return (size - count * _MESSAGE_BYTES) * 3 // 4


def to_base64(payload: bytes, *, quote: bytes = b"") -> bytes:
    """Return the payload as base64, without a line end, between two quotes."""
    if len(payload) <= _PIECE_BYTES:
        return quote + b2a_base64(payload, newline=False) + quote
    view = memoryview(payload)
    starts = range(0, len(payload), _PIECE_BYTES)
    pieces = [b2a_base64(view[at : at + _PIECE_BYTES], newline=False) for at in starts]
    return b"".join([quote, *pieces, quote])


def from_base64(text: str) -> bytes:
    """Return the decoded bytes. Raise ValueError unless the text is padded base64."""
    if len(text) <= _PIECE_CHARACTERS:
        return a2b_base64(text, strict_mode=True)
    if text.find("=", 0, len(text) - 2) >= 0:
        raise Error("Discontinuous padding not allowed")
    starts = range(0, len(text), _PIECE_CHARACTERS)
    return b"".join(
        [a2b_base64(text[at : at + _PIECE_CHARACTERS], strict_mode=True) for at in starts]
    )
