"""Those who wait for messages: in line, served in turn, woken by what arrives. Nothing polls.

A message that gets ready wakes one waiter. Where several messages are ready and several wait, each
waiter gets a fair part before anyone gets more.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from penstock.broker.held import Held, encoded_bytes
from penstock.broker.store import Store, payload_bytes
from penstock.errors import NoSuchQueue, TooManyRequests
from penstock.model import LeasedMessage
from penstock.names import QueueName

_TRY_AGAIN_S = 1.0


class _Waiter:
    """One call that waits. It keeps its place in the line until it is answered."""

    __slots__ = (
        "again",
        "answer",
        "attempt",
        "holder",
        "lease_s",
        "max_bytes",
        "n",
        "size",
        "timer",
    )

    def __init__(
        self,
        answer: Future[list[LeasedMessage]],
        n: int,
        lease_s: float | None,
        holder: str,
        max_bytes: int | None,
    ) -> None:
        self.answer = answer
        self.n = n
        self.lease_s = lease_s
        self.holder = holder
        self.max_bytes = max_bytes
        self.attempt: Future[list[LeasedMessage]] | None = None
        self.again = False  # something got ready while it was trying
        self.size = 0  # bytes of its answer, which count until it is handed over
        self.timer: asyncio.TimerHandle | None = None


class Later:
    """A wait that begins when its queue was made. It may be ended before."""

    __slots__ = ("is_over", "waiter")

    def __init__(self) -> None:
        self.is_over = False
        self.waiter: _Waiter | None = None  # once it has begun


class _Line(NamedTuple):
    """The waiters of one group of one queue, in the order they came."""

    queue: QueueName
    group: str
    waiters: "deque[_Waiter]"


class WaitingLines:
    """All who wait for messages, of all queues."""

    def __init__(
        self,
        store: Store,
        give_back: Callable[[list[LeasedMessage]], None],
        answer_room: Callable[[int | None], int],
        held: Held,
        *,
        most: int,
    ) -> None:
        """`answer_room` says how many bytes an answer may have now, or raises."""
        self._store = store
        self._give_back = give_back
        self._answer_room = answer_room
        self._held = held
        self._most = most
        self._lines: dict[QueueName, dict[str, _Line]] = {}
        self._by_answer: dict[Future[list[LeasedMessage]], _Waiter] = {}
        self._later: dict[Future[list[LeasedMessage]], Later] = {}  # by the answer to the call
        self._closed = False
        self._planned: set[QueueName] = set()  # queues whose lines are served in a moment

    def __len__(self) -> int:
        return len(self._by_answer)

    def lease(
        self,
        queue: QueueName,
        n: int,
        *,
        lease_s: float | None,
        group: str,
        holder: str,
        wait_s: float,
        max_bytes: int | None = None,
        later: Later | None = None,
    ) -> Future[list[LeasedMessage]]:
        """Messages as soon as there are some; none when the time is over."""
        if len(self._by_answer) >= self._most:
            raise TooManyRequests(
                f"{self._most} calls are waiting for messages already (max_waiters): try again "
                f"later, or ask without waiting",
                _TRY_AGAIN_S,
            )
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), n, lease_s, holder, max_bytes)
        line = self._lines.setdefault(queue, {}).setdefault(group, _Line(queue, group, deque()))
        self._store.watch(queue)  # before the first try, so that nothing comes in between unseen
        self._by_answer[waiter.answer] = waiter
        line.waiters.append(waiter)
        # Whoever comes after the close gets what is ready, and does not wait for more.
        is_over = self._closed
        if later is not None:
            later.waiter = waiter
            is_over = is_over or later.is_over
        waiter.timer = loop.call_later(0 if is_over else wait_s, self._time_is_over, waiter)
        waiter.answer.add_done_callback(lambda _: self._leave(line, waiter))
        if line.waiters[0] is waiter:
            self._serve(line)
        return waiter.answer

    def expect(self, answer: "asyncio.Task[list[LeasedMessage]]", later: Later) -> None:
        """Let the wait of a call be ended by its answer, though it has not begun."""
        self._later[answer] = later
        answer.add_done_callback(self._later.pop)

    def end_wait(self, answer: "Future[list[LeasedMessage]]") -> bool:
        """Answer a call with what it got so far; False if it is being carried out elsewhere."""
        if answer.done():
            return True
        later = self._later.get(answer)
        if later is not None:
            later.is_over = True
        waiter = self._by_answer.get(answer) if later is None else later.waiter
        if waiter is not None and waiter.timer is not None:
            waiter.timer.cancel()
            self._time_is_over(waiter)
        return bool(later or waiter) or not isinstance(answer, asyncio.Task)

    def on_ready(self, queue: QueueName) -> None:
        """Something of the queue may be ready. Those who wait are served in a moment, once."""
        if queue in self._lines and queue not in self._planned:
            self._planned.add(queue)
            asyncio.get_running_loop().call_soon(self._serve_queue, queue)

    def gone(self, queue: QueueName) -> None:
        """The queue was deleted: those who wait are told."""
        for line in list(self._lines.get(queue, {}).values()):
            for waiter in list(line.waiters):
                self._answer(waiter, NoSuchQueue(f"queue {queue} was deleted"))

    def close(self) -> None:
        """Answer everyone: nothing came. From now on nobody waits."""
        self._closed = True
        for lines in list(self._lines.values()):
            for line in list(lines.values()):
                for waiter in list(line.waiters):
                    self._time_is_over(waiter)

    # -- serving -----------------------------------------------------------------------------------

    def _serve_queue(self, queue: QueueName) -> None:
        self._planned.discard(queue)
        for line in list(self._lines.get(queue, {}).values()):
            self._serve(line)

    def _serve(self, line: _Line) -> None:
        """Try for each waiter in turn, until one finds nothing."""
        idle = [w for w in line.waiters if w.attempt is None and not w.answer.done()]
        for waiter in line.waiters:
            waiter.again = waiter.attempt is not None  # it may have looked too early
        try:
            ready = self._store.ready_hint(line.queue, line.group)
        except Exception as error:  # the group is not there, say
            for waiter in idle:
                self._answer(waiter, error)
            return
        for index, waiter in enumerate(idle):
            share = waiter.n
            if ready is not None:
                share = max(min(waiter.n, ready // (len(idle) - index)), 1)
            try:
                attempt = self._store.lease(
                    line.queue,
                    share,
                    lease_s=waiter.lease_s,
                    group=line.group,
                    holder=waiter.holder,
                    max_bytes=partial(self._answer_room, waiter.max_bytes),
                )
            except Exception as error:
                self._answer(waiter, error)
                continue
            if attempt.done() and not attempt.exception() and not attempt.result():
                return  # nothing is ready: neither for those behind
            if ready is not None:
                ready -= share
            waiter.attempt = attempt
            attempt.add_done_callback(partial(self._attempted, line, waiter))

    def _attempted(
        self, line: _Line, waiter: _Waiter, attempt: Future[list[LeasedMessage]]
    ) -> None:
        waiter.attempt = None
        if attempt.cancelled():
            return  # the waiter went away, and took its attempt along
        error = attempt.exception()
        if error is not None:
            self._answer(waiter, error)
        elif attempt.result():
            if waiter.answer.done():  # it went away in this very moment
                self._give_back(attempt.result())
            else:
                leased = attempt.result()
                waiter.size = encoded_bytes(payload_bytes(leased))
                self._held.bytes += waiter.size
                waiter.answer.set_result(leased)
        elif waiter.timer is None:
            self._answer(waiter, None)  # its time was over while it tried
        elif waiter.again:
            self._serve(line)

    def _time_is_over(self, waiter: _Waiter) -> None:
        waiter.timer = None
        if waiter.attempt is None:
            self._answer(waiter, None)
        # Else it is about to get something, and does.

    @staticmethod
    def _answer(waiter: _Waiter, error: BaseException | None) -> None:
        if waiter.answer.done():
            return
        if error is None:
            waiter.answer.set_result([])
        else:
            waiter.answer.set_exception(error)

    def _leave(self, line: _Line, waiter: _Waiter) -> None:
        """It was answered, or nobody waits for the answer any more."""
        self._held.bytes -= waiter.size
        if waiter.timer is not None:
            waiter.timer.cancel()
        line.waiters.remove(waiter)
        del self._by_answer[waiter.answer]
        self._store.unwatch(line.queue)
        if waiter.answer.cancelled() and waiter.attempt is not None:
            waiter.attempt.cancel()  # the store gives back what it had leased
        if not line.waiters:
            lines = self._lines[line.queue]
            if lines.get(line.group) is line:
                del lines[line.group]
            if not lines:
                del self._lines[line.queue]
