"""Settle messages by the outcome of their handler: concurrent settlements share a request."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.errors import PenstockError, ReceiptInvalid
from penstock.model import LeasedMessage
from penstock.queue.facade import AnyAsyncQueue
from penstock.worker.outcomes import Done

log = logging.getLogger("penstock.worker")

_BATCH = 100  # calls whose settlements are sent without waiting for more
_LINGER_S = 0.005


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


class _Outcome(NamedTuple):
    """What happens to messages. Those of equal outcomes are settled together."""

    kind: str  # a field of `Counts`
    reason: str = ""
    delay_s: float | None = None
    dead: bool = False
    done: Done | None = None  # with messages to publish; equal to no other


_DONE, _HANDED_BACK = _Outcome("done"), _Outcome("handed_back")


class HasMessages(Protocol):
    """A call of the handler, or what else is settled as one."""

    messages: Sequence[LeasedMessage]


class Settling:
    """Settles for a worker, and counts. What comes while a request is sent goes with the next.

    If `more_follow`, a settlement waits a little for others.
    """

    def __init__(
        self,
        queue: AnyAsyncQueue,
        counts: Counts,
        on_settled: Callable[[Sequence[HasMessages]], None],
        more_follow: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._counts = counts
        self._on_settled = on_settled
        self._more_follow = more_follow
        self._size = 0  # calls that are pending
        self._timer: asyncio.TimerHandle | None = None
        self._pending: dict[_Outcome, list[HasMessages]] = {}
        self._task: asyncio.Task[None] | None = None

    def ack(self, call: HasMessages, done: Done | None = None) -> None:
        """Ack a call. If it emits messages, that is a write of its own."""
        self._add(_DONE if done is None else _Outcome("done", done=done), call)

    def nack(
        self, call: HasMessages, reason: str, delay_s: float | None = None, *, dead: bool = False
    ) -> None:
        self._add(_Outcome("failed", reason, delay_s, dead), call)

    def release(self, call: HasMessages) -> None:
        self._add(_HANDED_BACK, call)

    def _add(self, outcome: "_Outcome", call: HasMessages) -> None:
        self._pending.setdefault(outcome, []).append(call)
        self._size += 1
        self._flush_if_ready()

    def _flush_if_ready(self) -> None:
        if self._size >= _BATCH or not self._more_follow():
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINGER_S, self.flush)

    def flush(self) -> None:
        """Send what is pending."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending and self._task is None:
            self._task = asyncio.ensure_future(self._settle_pending())

    async def _settle_pending(self) -> None:
        pending, self._pending, self._size = self._pending, {}, 0
        await asyncio.gather(*(self._settle(*item) for item in pending.items()))
        self._task = None
        if self._pending:
            self._flush_if_ready()

    async def _settle(self, outcome: "_Outcome", calls: list[HasMessages]) -> None:
        messages = [message for call in calls for message in call.messages]
        try:
            try:
                await self._send(outcome, messages)
            except ReceiptInvalid:
                if len(messages) == 1:
                    raise
                for message in messages:  # the others are still leased
                    await self._settle(outcome, [_One([message])])
            else:
                self._count(outcome.kind, len(messages))
        except PenstockError as error:
            self._count("lost", len(messages))
            ids = ", ".join(message.id for message in messages)
            log.warning("not settled, will be delivered again: %s: %s", ids, error)
        except Exception as error:
            log.error("settling failed", exc_info=error)
        finally:
            self._on_settled(calls)

    async def _send(self, outcome: "_Outcome", messages: Sequence[LeasedMessage]) -> None:
        if outcome.kind == "done":
            await self._queue.ack(messages, emit=() if outcome.done is None else outcome.done.emit)
        elif outcome.kind == "failed":
            delay_s, dead = outcome.delay_s, outcome.dead
            await self._queue.nack(messages, outcome.reason, delay=delay_s, dead=dead)
        else:
            await self._queue.release(messages)

    def _count(self, outcome: str, number: int) -> None:
        setattr(self._counts, outcome, getattr(self._counts, outcome) + number)


class _One:
    """One message of several that cannot be settled together."""

    def __init__(self, messages: Sequence[LeasedMessage]) -> None:
        self.messages = messages
