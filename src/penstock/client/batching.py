"""Single publishes of many callers, sent as one batch: the first waits a little for company."""

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
    """How long a publish waits for others, and how many go together."""

    linger_s: float = 0.005
    max_messages: int = 500
    max_bytes: int = 1 << 20  # of payloads

    def __post_init__(self) -> None:
        check_number("linger_s", self.linger_s, 0, 60)
        check_whole("max_messages", self.max_messages, 1, 10_000)
        check_whole("max_bytes", self.max_bytes, 1, 1 << 30)


class Lot(Generic[_Answer, _Signal]):
    """Messages that go together, who waits for each, and a signal that it is full."""

    def __init__(self, full: _Signal) -> None:
        self.full = full
        self.messages: list[NewMessage] = []
        self.answers: list[_Answer] = []
        self.size_bytes = 0


class Gathering(Generic[_Answer, _Signal]):
    """The lot that is open. The caller sees to it that one thread at a time is in here."""

    def __init__(self, batching: Batching, signal: Callable[[], _Signal]) -> None:
        self._batching = batching
        self._signal = signal
        self._open: Lot[_Answer, _Signal] | None = None

    def add(self, message: NewMessage, answer: _Answer) -> tuple[Lot[_Answer, _Signal], bool, bool]:
        """The message's lot, whether it is the first in it, and whether that is full now."""
        size_bytes = _size(message)
        lot = self._open
        if lot is not None and lot.size_bytes + size_bytes > self._batching.max_bytes:
            lot = None  # it would not fit; the lot goes when its time is over
        first = lot is None
        if lot is None:
            lot = self._open = Lot(self._signal())
        lot.messages.append(message)
        lot.answers.append(answer)
        lot.size_bytes += size_bytes
        full = len(lot.messages) >= self._batching.max_messages
        if full:
            self._open = None
        return lot, first, full

    def close(self, lot: Lot[_Answer, _Signal]) -> None:
        """Nobody joins it any more."""
        if self._open is lot:
            self._open = None


def is_of_one(error: PenstockError, count: int) -> bool:
    """Was the batch refused because of some message in it? Then each is sent by itself: others must
    not suffer for it, and nothing of the batch was published."""
    return count > 1 and not isinstance(error, Unavailable)


class Batcher:
    """For threads: the first of a lot sends it for all."""

    def __init__(
        self, batching: Batching, publish: Callable[[Sequence[NewMessage]], list[Published]]
    ) -> None:
        self._linger_s = batching.linger_s
        self._publish = publish
        self._lock = Lock()
        self._gathering: Gathering[Future[Published], Event] = Gathering(batching, Event)

    def publish(self, message: NewMessage) -> Published:
        answer: Future[Published] = Future()
        with self._lock:
            lot, first, full = self._gathering.add(message, answer)
        if full:
            lot.full.set()
        if first:
            try:
                lot.full.wait(self._linger_s)
            finally:
                with self._lock:
                    self._gathering.close(lot)
                self._send(lot.messages, lot.answers)
        return answer.result()

    def _send(self, messages: list[NewMessage], answers: list[Future[Published]]) -> None:
        try:
            for answer, published in zip(answers, self._publish(messages), strict=True):
                answer.set_result(published)
        except PenstockError as error:
            if is_of_one(error, len(messages)):
                for message, answer in zip(messages, answers, strict=True):
                    self._send([message], [answer])
            else:
                _fail(answers, error)
        except BaseException as error:  # an interrupt: those who wait must not wait for ever
            _fail(answers, error)
            raise


class AsyncBatcher:
    """For tasks: a task of its own sends each lot, so that cancelling one caller stops no other."""

    def __init__(
        self,
        batching: Batching,
        publish: Callable[[Sequence[NewMessage]], Awaitable[list[Published]]],
    ) -> None:
        self._linger_s = batching.linger_s
        self._publish = publish
        self._gathering: Gathering[asyncio.Future[Published], asyncio.Event] = Gathering(
            batching, asyncio.Event
        )
        self._sending: set[asyncio.Task[None]] = set()

    async def publish(self, message: NewMessage) -> Published:
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        lot, first, full = self._gathering.add(message, answer)
        if full:
            lot.full.set()
        if first:
            task = asyncio.create_task(self._send_when_ready(lot))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return await answer

    async def _send_when_ready(self, lot: Lot[asyncio.Future[Published], asyncio.Event]) -> None:
        try:
            async with asyncio.timeout(self._linger_s):
                await lot.full.wait()
        except TimeoutError:
            pass
        self._gathering.close(lot)
        await self._send(lot.messages, lot.answers)

    async def _send(
        self, messages: list[NewMessage], answers: list[asyncio.Future[Published]]
    ) -> None:
        try:
            for answer, published in zip(answers, await self._publish(messages), strict=True):
                if not answer.done():
                    answer.set_result(published)
        except PenstockError as error:
            if is_of_one(error, len(messages)):
                for message, answer in zip(messages, answers, strict=True):
                    await self._send([message], [answer])
            else:
                _fail(answers, error)
        except BaseException as error:
            _fail(answers, error)
            raise

    async def finish(self) -> None:
        """Wait for what is under way."""
        while self._sending:
            await asyncio.wait(self._sending)


def _fail(
    answers: "Sequence[Future[Published] | asyncio.Future[Published]]", error: BaseException
) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)


def _size(message: NewMessage) -> int:
    """About what it adds to a request; what is no payload is refused when it is sent."""
    return len(message.payload) if hasattr(message.payload, "__len__") else 0
