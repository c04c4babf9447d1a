"""Calls that wait for messages: served in the order they came, woken by notices. Nothing polls.

A message that becomes ready wakes one waiter. If several messages are ready and several calls wait,
each gets a fair share before any gets more.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable
from functools import partial

from penstock.broker.limits import Held, encoded_bytes
from penstock.broker.store import Store, payload_bytes
from penstock.errors import NoSuchQueue, TooManyRequests
from penstock.model import LeasedMessage
from penstock.names import QueueName

_TRY_AGAIN_S = 1.0
_MAX_PROBES = 64  # attempts of a line at a time, if the store does not say how many are ready


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


class _Line:
    """The waiters of one group of one queue, in the order they came."""

    __slots__ = ("group", "probes", "queue", "waiters")

    def __init__(self, queue: QueueName, group: str) -> None:
        self.queue = queue
        self.group = group
        self.waiters: deque[_Waiter] = deque()
        self.probes = 1  # attempts at a time: doubled by a success, 1 again when nothing is ready


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
        line = self._lines.setdefault(queue, {}).setdefault(group, _Line(queue, group))
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

    def expect(self, answer: "Future[list[LeasedMessage]]", later: Later) -> None:
        """Let `end_wait` end the wait of a call that has not begun."""
        self._later[answer] = later
        answer.add_done_callback(self._later.pop)

    def end_wait(self, answer: "Future[list[LeasedMessage]]") -> None:
        """Answer a call with what it got so far. A call that does not wait is left alone."""
        later = self._later.get(answer)
        if later is not None:
            later.is_over = True
        waiter = self._by_answer.get(answer) if later is None else later.waiter
        if waiter is not None and waiter.timer is not None:
            waiter.timer.cancel()
            self._time_is_over(waiter)

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

    def _serve(self, line: _Line, *, at_least: int = 1) -> None:
        """Try for the first waiters: as many as messages are ready, and at least so many.

        If the store does not know how many are ready, the first attempts show it.
        """
        idle = [w for w in line.waiters if w.attempt is None and not w.answer.done()]
        if at_least:
            for waiter in line.waiters:
                waiter.again = waiter.attempt is not None  # it may have looked too early
        try:
            ready = self._store.ready_hint(line.queue, line.group)
        except Exception as error:  # there is no such group, for example
            for waiter in idle:
                self._answer(waiter, error)
            return
        if ready is None:
            tries = line.probes - (len(line.waiters) - len(idle))
        else:
            tries = max(ready, at_least)
        for index, waiter in enumerate(idle[: max(tries, 0)]):
            share = max(waiter.n // len(idle), 1)
            if ready is not None:
                if ready <= 0 and index >= at_least:
                    return
                share = max(min(waiter.n, ready // (len(idle) - index)), 1)
                ready -= share
            self._try(line, waiter, share)

    def _try(self, line: _Line, waiter: _Waiter, n: int) -> None:
        try:
            attempt = self._store.lease(
                line.queue,
                n,
                lease_s=waiter.lease_s,
                group=line.group,
                holder=waiter.holder,
                max_bytes=partial(self._answer_room, waiter.max_bytes),
            )
        except Exception as error:
            self._answer(waiter, error)
            return
        waiter.attempt = attempt
        attempt.add_done_callback(partial(self._attempted, line, waiter))

    def _attempted(
        self, line: _Line, waiter: _Waiter, attempt: Future[list[LeasedMessage]]
    ) -> None:
        waiter.attempt = None
        if attempt.cancelled():
            return  # the waiter is gone, and cancelled its attempt
        error = attempt.exception()
        if error is not None:
            self._answer(waiter, error)
        elif attempt.result():
            if waiter.answer.done():  # cancelled a moment ago
                self._give_back(attempt.result())
            else:
                leased = attempt.result()
                waiter.size = encoded_bytes(payload_bytes(leased))
                self._held.bytes += waiter.size
                waiter.answer.set_result(leased)
            line.probes = min(2 * line.probes, _MAX_PROBES)
            if len(line.waiters) > 1:
                self._serve(line, at_least=0)  # more may be ready than was known
        else:
            line.probes = 1
            if waiter.timer is None:
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
