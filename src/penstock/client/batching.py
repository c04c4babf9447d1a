"""Batching: single publishes of many callers are sent together, after a short linger time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event, Lock
from typing import Generic, TypeVar

from penstock.checking import check_number, check_whole
from penstock.errors import PenstockError, Unavailable
from penstock.model import NewMessage, Published

_Answer = TypeVar("_Answer")
_Signal = TypeVar("_Signal")


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


class Batch(Generic[_Answer, _Signal]):
    """Messages that are sent together, a future for each, and a signal that the batch is full."""

    def __init__(self, full: _Signal) -> None:
        self.full = full
        self.messages: list[NewMessage] = []
        self.answers: list[_Answer] = []
        self.size_bytes = 0


class BatchBuilder(Generic[_Answer, _Signal]):
    """The batch that takes messages now. Not thread-safe: the caller holds a lock."""

    def __init__(self, batching: Batching, signal: Callable[[], _Signal]) -> None:
        self._batching = batching
        self._signal = signal
        self._open: Batch[_Answer, _Signal] | None = None

    def add(
        self, message: NewMessage, answer: _Answer
    ) -> tuple[Batch[_Answer, _Signal], bool, bool]:
        """Return the message's batch, whether it is the first in it, and whether it is full now."""
        size_bytes = _size(message)
        batch = self._open
        if batch is not None and batch.size_bytes + size_bytes > self._batching.max_bytes:
            batch = None  # it would not fit; the batch is sent when its linger time is over
        first = batch is None
        if batch is None:
            batch = self._open = Batch(self._signal())
        batch.messages.append(message)
        batch.answers.append(answer)
        batch.size_bytes += size_bytes
        full = len(batch.messages) >= self._batching.max_messages
        if full:
            self._open = None
        return batch, first, full

    def close(self, batch: Batch[_Answer, _Signal]) -> None:
        """Add no more messages to a batch."""
        if self._open is batch:
            self._open = None


def is_of_one_message(error: PenstockError, count: int) -> bool:
    """Was the batch refused because of one of its messages?

    Nothing of it was published then, and each message is sent by itself.
    """
    return count > 1 and not isinstance(error, Unavailable)


class Batcher:
    """Batches for threads: the first caller of a batch sends it for all."""

    def __init__(
        self, batching: Batching, publish: Callable[[Sequence[NewMessage]], list[Published]]
    ) -> None:
        self._linger_s = batching.linger_s
        self._publish = publish
        self._lock = Lock()
        self._builder: BatchBuilder[Future[Published], Event] = BatchBuilder(batching, Event)

    def publish(self, message: NewMessage) -> Published:
        answer: Future[Published] = Future()
        with self._lock:
            batch, first, full = self._builder.add(message, answer)
        if full:
            batch.full.set()
        if first:
            try:
                batch.full.wait(self._linger_s)
            finally:
                with self._lock:
                    self._builder.close(batch)
                self._send(batch.messages, batch.answers)
        return answer.result()

    def _send(self, messages: list[NewMessage], answers: list[Future[Published]]) -> None:
        try:
            for answer, published in zip(answers, self._publish(messages), strict=True):
                answer.set_result(published)
        except PenstockError as error:
            if is_of_one_message(error, len(messages)):
                for message, answer in zip(messages, answers, strict=True):
                    self._send([message], [answer])
            else:
                _fail(answers, error)
        except BaseException as error:  # an interrupt: the other callers must not wait for ever
            _fail(answers, error)
            raise


class AsyncBatcher:
    """Batches for tasks: a separate task sends each, so cancelling one caller stops no other."""

    def __init__(
        self,
        batching: Batching,
        publish: Callable[[Sequence[NewMessage]], Awaitable[list[Published]]],
    ) -> None:
        self._linger_s = batching.linger_s
        self._publish = publish
        self._builder: BatchBuilder[asyncio.Future[Published], asyncio.Event] = BatchBuilder(
            batching, asyncio.Event
        )
        self._sending: set[asyncio.Task[None]] = set()

    async def publish(self, message: NewMessage) -> Published:
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        batch, first, full = self._builder.add(message, answer)
        if full:
            batch.full.set()
        if first:
            task = asyncio.create_task(self._send_when_ready(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return await answer

    async def _send_when_ready(
        self, batch: Batch[asyncio.Future[Published], asyncio.Event]
    ) -> None:
        try:
            async with asyncio.timeout(self._linger_s):
                await batch.full.wait()
        except TimeoutError:
            pass
        self._builder.close(batch)
        await self._send(batch.messages, batch.answers)

    async def _send(
        self, messages: list[NewMessage], answers: list[asyncio.Future[Published]]
    ) -> None:
        try:
            for answer, published in zip(answers, await self._publish(messages), strict=True):
                if not answer.done():
                    answer.set_result(published)
        except PenstockError as error:
            if is_of_one_message(error, len(messages)):
                for message, answer in zip(messages, answers, strict=True):
                    await self._send([message], [answer])
            else:
                _fail(answers, error)
        except BaseException as error:
            _fail(answers, error)
            raise

    async def finish(self) -> None:
        """Wait until all batches are sent."""
        while self._sending:
            await asyncio.wait(self._sending)


def _fail(
    answers: "Sequence[Future[Published] | asyncio.Future[Published]]", error: BaseException
) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)


def _size(message: NewMessage) -> int:
    """Return about what a message adds to a request; bad payloads are refused when it is sent."""
    return len(message.payload) if hasattr(message.payload, "__len__") else 0
