"""Batching: single publishes of many callers are sent together, after a short linger time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Generic, Protocol, TypeVar

from penstock.checking import check_number, check_whole
from penstock.errors import PenstockError, Unavailable
from penstock.locks import Lock
from penstock.model import NewMessage, Published

_Future = Future[Published] | asyncio.Future[Published]
_Answer = TypeVar("_Answer", bound=_Future)
_Signal = TypeVar("_Signal")
Publish = Callable[[list[NewMessage]], Awaitable[list[Published]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How long a publish waits for others, and how many are sent together."""

    linger_s: float = 0.005
    max_messages: int = 500
    max_bytes: int = 1 << 20  # of payloads

    def __post_init__(self) -> None:
        check_number("linger_s", self.linger_s, 0, 60)
        check_whole("max_messages", self.max_messages, 1, 10_000)
        check_whole("max_bytes", self.max_bytes, 1, 1 << 30)


class _Batch(Generic[_Answer, _Signal]):
    """Messages that are sent together, a future for each, and a signal that the batch is full."""

    def __init__(self, full: _Signal) -> None:
        self.full = full
        self.messages: list[NewMessage] = []
        self.answers: list[_Answer] = []
        self.size_bytes = 0


class _Batches(Generic[_Answer, _Signal]):
    """The batch that takes messages now, and how one is sent."""

    def __init__(self, batching: Batching, publish: Publish, signal: Callable[[], _Signal]) -> None:
        self._batching = batching
        self._publish = publish
        self._signal = signal
        self._open: _Batch[_Answer, _Signal] | None = None

    def add(
        self, message: NewMessage, answer: _Answer
    ) -> tuple[_Batch[_Answer, _Signal], bool, bool]:
        """Return the message's batch, whether it is the first in it, and whether it is full now.

        Not thread-safe: the caller holds a lock.
        """
        size_bytes = _size(message)
        batch = self._open
        if batch is not None and batch.size_bytes + size_bytes > self._batching.max_bytes:
            batch = None  # it would not fit; the batch is sent when its linger time is over
        first = batch is None
        if batch is None:
            batch = self._open = _Batch(self._signal())
        batch.messages.append(message)
        batch.answers.append(answer)
        batch.size_bytes += size_bytes
        full = len(batch.messages) >= self._batching.max_messages
        if full:
            self._open = None
        return batch, first, full

    def close(self, batch: _Batch[_Answer, _Signal]) -> None:
        """Add no more messages to a batch."""
        if self._open is batch:
            self._open = None

    async def send(self, messages: list[NewMessage], answers: list[_Answer]) -> None:
        """Publish messages and answer their callers.

        A batch that is refused because of one of its messages is not published at all. Each
        message is then sent by itself.
        """
        try:
            for answer, published in zip(answers, await self._publish(messages), strict=True):
                if not answer.done():
                    answer.set_result(published)
        except PenstockError as error:
            if len(messages) > 1 and not isinstance(error, Unavailable):
                for message, answer in zip(messages, answers, strict=True):
                    await self.send([message], [answer])
            else:
                _fail(answers, error)
        except BaseException as error:  # an interrupt: the other callers must not wait forever
            _fail(answers, error)
            raise


class AnyBatcher(Protocol):
    """Publishes single messages in batches."""

    async def publish(self, message: NewMessage) -> Published: ...

    async def finish(self) -> None:
        """Wait until all batches are sent."""


class Batcher:
    """Batches for threads: the first caller of a batch sends it for all. It never suspends."""

    def __init__(self, batching: Batching, publish: Publish) -> None:
        self._linger_s = batching.linger_s
        self._lock = Lock()
        self._batches: _Batches[Future[Published], Event] = _Batches(batching, publish, Event)

    async def publish(self, message: NewMessage) -> Published:
        answer: Future[Published] = Future()
        with self._lock:
            batch, first, full = self._batches.add(message, answer)
        if full:
            batch.full.set()
        if first:
            try:
                batch.full.wait(self._linger_s)
            finally:
                with self._lock:
                    self._batches.close(batch)
                await self._batches.send(batch.messages, batch.answers)
        return answer.result()

    async def finish(self) -> None:
        """Return: callers wait for their own batches."""


class AsyncBatcher:
    """Batches for tasks: a separate task sends each, so cancelling one caller stops no other."""

    def __init__(self, batching: Batching, publish: Publish) -> None:
        self._linger_s = batching.linger_s
        self._batches: _Batches[asyncio.Future[Published], asyncio.Event] = _Batches(
            batching, publish, asyncio.Event
        )
        self._sending: set[asyncio.Task[None]] = set()

    async def publish(self, message: NewMessage) -> Published:
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        batch, first, full = self._batches.add(message, answer)
        if full:
            batch.full.set()
        if first:
            task = asyncio.create_task(self._send_when_ready(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return await answer

    async def _send_when_ready(
        self, batch: _Batch[asyncio.Future[Published], asyncio.Event]
    ) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._linger_s):
                await batch.full.wait()
        self._batches.close(batch)
        await self._batches.send(batch.messages, batch.answers)

    async def finish(self) -> None:
        """Wait until all batches are sent."""
        while self._sending:
            await asyncio.wait(self._sending)


def _fail(answers: Sequence[_Future], error: BaseException) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)


def _size(message: NewMessage) -> int:
    """Return about what a message adds to a request; bad payloads are refused when it is sent."""
    return len(message.payload) if hasattr(message.payload, "__len__") else 0
