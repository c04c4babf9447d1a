"""Settle messages by the outcome of their handler. Concurrent acks are sent together."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import PenstockError, ReceiptInvalid
from penstock.model import LeasedMessage

log = logging.getLogger("penstock.worker")


class Settles(Protocol):
    async def ack(self, leased: Sequence[LeasedMessage]) -> object: ...

    async def nack(self, leased: Sequence[LeasedMessage], reason: str) -> object: ...

    async def release(self, leased: Sequence[LeasedMessage]) -> object: ...


class _Lot:
    """Messages that are acked together."""

    def __init__(self) -> None:
        self.messages: list[LeasedMessage] = []
        self.settled = asyncio.Event()


class TimeLimitExceeded(Exception):
    """Raised inside a handler that takes longer than the time limit."""


class HandedBack(BaseException):
    """Raised inside a handler that still runs when a stop ends its wait.

    Not an Exception, so that a handler that catches those does not delay the stop.
    """


class LeaseLost(BaseException):
    """Raised inside a handler whose lease is lost: another consumer may have the message."""


@dataclass(slots=True)
class Counts:
    """Number of messages of a worker by outcome."""

    done: int = 0
    failed: int = 0  # nacked: the handler raised, or took too long
    handed_back: int = 0  # released at a stop, no attempt spent
    lost: int = 0  # the lease expired, or settling failed: delivered again


class Settling:
    """Settles for a worker, and counts."""

    def __init__(self, queue: Settles, counts: Counts) -> None:
        self._queue = queue
        self._counts = counts
        self._open = _Lot()  # goes when the one before it is through
        self._acking: asyncio.Task[None] | None = None

    async def ack(self, messages: Sequence[LeasedMessage]) -> None:
        """Returns when they are acked, or were found not to be ours any more."""
        lot = self._open
        lot.messages += messages
        if self._acking is None:
            self._acking = asyncio.ensure_future(self._ack_all())
        await lot.settled.wait()

    async def _ack_all(self) -> None:
        while self._open.messages:
            lot, self._open = self._open, _Lot()
            try:
                await self._queue.ack(lot.messages)
                self._counts.done += len(lot.messages)
            except ReceiptInvalid:
                for message in lot.messages:
                    await self._one(self._queue.ack([message]), message, "done")
            except PenstockError as error:
                self._lost(lot.messages, error)
            finally:
                lot.settled.set()
        self._acking = None

    async def nack(self, messages: Sequence[LeasedMessage], reason: str) -> None:
        for message in messages:
            await self._one(self._queue.nack([message], reason), message, "failed")

    async def release(self, messages: Sequence[LeasedMessage]) -> None:
        for message in messages:
            await self._one(self._queue.release([message]), message, "handed_back")

    async def _one(self, settled: Awaitable[object], message: LeasedMessage, count: str) -> None:
        try:
            await settled
            setattr(self._counts, count, getattr(self._counts, count) + 1)
        except PenstockError as error:
            self._lost([message], error)

    def _lost(self, messages: Sequence[LeasedMessage], error: PenstockError) -> None:
        self._counts.lost += len(messages)
        for message in messages:
            log.warning("message %s could not be settled, and comes again: %s", message.id, error)
