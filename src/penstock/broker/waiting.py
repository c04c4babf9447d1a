"""Calls that wait for messages: served first come, first served, woken by events, without polling.

A message that becomes ready wakes one waiter. If several messages are ready and several calls wait,
each call gets a fair share.
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
_MAX_PROBES = 64  # parallel attempts of a line, if the store does not report its ready count


class _Waiter:
    """A waiting call. It keeps its position in the line until it is answered."""

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
        self.again = False  # a message became ready during the attempt
        self.size = 0  # bytes of its answer, counted until it is delivered
        self.timer: asyncio.TimerHandle | None = None


class Later:
    """A wait that starts when its queue has been created. It may be ended before."""

    __slots__ = ("is_over", "waiter")

    def __init__(self) -> None:
        self.is_over = False
        self.waiter: _Waiter | None = None  # set when the wait starts


class _Line:
    """The waiters of one group of one queue, in order of arrival."""

    __slots__ = ("dead", "group", "probes", "queue", "waiters")

    def __init__(self, queue: QueueName, group: str, dead: bool) -> None:
        self.queue = queue
        self.group = group
        self.dead = dead  # they wait for dead letters
        self.waiters: deque[_Waiter] = deque()
        self.probes = 1  # parallel attempts: doubled by a success, reset to 1 if nothing is ready


class WaitingLines:
    """The waiting calls of all queues."""

    def __init__(
        self,
        store: Store,
        give_back: Callable[[list[LeasedMessage]], None],
        answer_room: Callable[[int | None], int],
        held: Held,
        *,
        most: int,
    ) -> None:
        """`answer_room` returns the maximum size of an answer now, or raises an error."""
        self._store = store
        self._give_back = give_back
        self._answer_room = answer_room
        self._held = held
        self._most = most
        self._lines: dict[QueueName, dict[tuple[str, bool], _Line]] = {}  # by group and `dead`
        self._by_answer: dict[Future[list[LeasedMessage]], _Waiter] = {}
        self._later: dict[Future[list[LeasedMessage]], Later] = {}  # by the answer to the call
        self._closed = False
        self._planned: set[QueueName] = set()  # queues whose lines are about to be served

    def __len__(self) -> int:
        return len(self._by_answer)

    def counts(self, queue: QueueName) -> dict[str, int]:
        """Return how many calls wait for each group of a queue."""
        lines = self._lines.get(queue, {}).values()
        return {line.group: len(line.waiters) for line in lines if not line.dead}

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
        dead: bool = False,
    ) -> Future[list[LeasedMessage]]:
        """Return messages, or dead letters, as soon as there are some; none after `wait_s`."""
        if len(self._by_answer) >= self._most:
            raise TooManyRequests(
                f"{self._most} calls are waiting for messages already (max_waiters): retry later, "
                f"or lease without waiting",
                _TRY_AGAIN_S,
            )
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), n, lease_s, holder, max_bytes)
        lines = self._lines.setdefault(queue, {})
        line = lines.setdefault((group, dead), _Line(queue, group, dead))
        self._store.watch(queue)  # before the first attempt, so that no message is missed
        self._by_answer[waiter.answer] = waiter
        line.waiters.append(waiter)
        # After `close`, a call gets the ready messages without waiting.
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
        """Let `end_wait` end a wait that has not started yet."""
        self._later[answer] = later
        answer.add_done_callback(self._later.pop)

    def end_wait(self, answer: "Future[list[LeasedMessage]]") -> None:
        """End the wait of a call now. Ignore a call that does not wait."""
        later = self._later.get(answer)
        if later is not None:
            later.is_over = True
        waiter = self._by_answer.get(answer) if later is None else later.waiter
        if waiter is not None and waiter.timer is not None:
            waiter.timer.cancel()
            self._time_is_over(waiter)

    def on_ready(self, queue: QueueName) -> None:
        """Serve the waiters of a queue soon, once, because messages may be ready."""
        if queue in self._lines and queue not in self._planned:
            self._planned.add(queue)
            asyncio.get_running_loop().call_soon(self._serve_queue, queue)

    def gone(self, queue: QueueName) -> None:
        """Answer the waiters of a deleted queue with NoSuchQueue."""
        for line in list(self._lines.get(queue, {}).values()):
            for waiter in list(line.waiters):
                self._answer(waiter, NoSuchQueue(f"queue {queue} was deleted"))

    def close(self) -> None:
        """Answer all waiters without messages. Later calls do not wait."""
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
        """Start attempts of the first waiters: one for each ready message, at least `at_least`.

        If the store does not know the number of ready messages, the first attempts show it.
        """
        idle = [w for w in line.waiters if w.attempt is None and not w.answer.done()]
        if at_least:
            for waiter in line.waiters:
                waiter.again = waiter.attempt is not None  # it may have looked too early
        try:
            ready = None if line.dead else self._store.ready_hint(line.queue, line.group)
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
                dead=line.dead,
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
            return  # the waiter was cancelled, and its attempt with it
        error = attempt.exception()
        if error is not None:
            self._answer(waiter, error)
        elif attempt.result():
            if waiter.answer.done():  # just cancelled
                self._give_back(attempt.result())
            else:
                leased = attempt.result()
                waiter.size = encoded_bytes(payload_bytes(leased))
                self._held.bytes += waiter.size
                waiter.answer.set_result(leased)
            line.probes = min(2 * line.probes, _MAX_PROBES)
            if len(line.waiters) > 1:
                self._serve(line, at_least=0)  # more messages may be ready
        else:
            line.probes = 1
            if waiter.timer is None:
                self._answer(waiter, None)  # its time ended during the attempt
            elif waiter.again:
                self._serve(line)

    def _time_is_over(self, waiter: _Waiter) -> None:
        waiter.timer = None
        if waiter.attempt is None:
            self._answer(waiter, None)
        # Else `_attempted` answers it.

    @staticmethod
    def _answer(waiter: _Waiter, error: BaseException | None) -> None:
        if waiter.answer.done():
            return
        if error is None:
            waiter.answer.set_result([])
        else:
            waiter.answer.set_exception(error)

    def _leave(self, line: _Line, waiter: _Waiter) -> None:
        """Remove a waiter that was answered or cancelled."""
        self._held.bytes -= waiter.size
        if waiter.timer is not None:
            waiter.timer.cancel()
        line.waiters.remove(waiter)
        del self._by_answer[waiter.answer]
        self._store.unwatch(line.queue)
        if waiter.answer.cancelled() and waiter.attempt is not None:
            waiter.attempt.cancel()  # the store releases what it leased
        if not line.waiters:
            lines = self._lines[line.queue]
            if lines.get((line.group, line.dead)) is line:
                del lines[line.group, line.dead]
            if not lines:
                del self._lines[line.queue]
