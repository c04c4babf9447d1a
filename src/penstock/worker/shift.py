"""One run of a worker: lease, call, renew, settle, until the end.

A worker leases ahead as much as its handlers do in a tenth of a second, by the time that calls took
so far: fast handlers get many messages with each request, slow ones none that others could have.
What was called is settled in batches. Messages that were leased ahead are renewed like the others,
and released at a stop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.errors import NoSuchQueue, PenstockError, TooManyRequests, Unavailable
from penstock.model import LeasedMessage
from penstock.queue.facade import AnyAsyncQueue
from penstock.queue.settings import YEARS_S
from penstock.worker.calling import Caller, Running
from penstock.worker.options import MAX_HELD, WorkerOptions
from penstock.worker.outcomes import Done, Failed, error_text
from penstock.worker.queues import name_of
from penstock.worker.renewing import Renewing
from penstock.worker.settling import (
    Counts,
    HandedBack,
    HasMessages,
    LeaseLost,
    Settling,
    TimeLimitExceeded,
)
from penstock.worker.stopping import StopButton

log = logging.getLogger("penstock.worker")

FIRST_PAUSE_S = 0.5  # after the broker could not be reached; doubles
LONGEST_PAUSE_S = 30.0
_GRACE_S = 1.0  # for handlers that were told that the stop waits no longer
_AHEAD_S = 0.1  # of work that is leased ahead
_AHEAD_BYTES = 4 << 20
_NEWEST = 0.2  # the weight of the newest call in the averages


class _HandlerCall:
    """Messages of one call of the handler, from their lease to their settlement."""

    __slots__ = ("due_s", "limit_s", "messages", "running", "timer")

    def __init__(self, messages: Sequence[LeasedMessage]) -> None:
        self.messages = messages
        self.due_s = 0.0
        self.limit_s = 0.0
        self.running: Running | None = None
        self.timer: asyncio.TimerHandle | None = None


class _Ahead:
    """How many calls' messages are leased ahead."""

    def __init__(self, options: WorkerOptions) -> None:
        self._most = min(options.prefetch, MAX_HELD // options.batch - options.concurrency)
        self._concurrency = options.concurrency
        self._call_s: float | None = None  # averages
        self._call_bytes = 0.0

    def ended(self, call_s: float, call_bytes: int) -> None:
        """Record the duration and size of a call."""
        if self._call_s is None:
            self._call_s, self._call_bytes = call_s, call_bytes
        self._call_s += _NEWEST * (call_s - self._call_s)
        self._call_bytes += _NEWEST * (call_bytes - self._call_bytes)

    @property
    def calls(self) -> int:
        if self._call_s is None or not self._most:
            return 0  # until a call has ended
        by_time = _AHEAD_S * self._concurrency / max(self._call_s, 1e-6)
        by_size = _AHEAD_BYTES / max(self._call_bytes, 1)
        return int(min(by_time, by_size, self._most))


class Shift:
    """Everything between the beginning of a worker and its end."""

    def __init__(
        self,
        queue: AnyAsyncQueue,
        caller: Caller,
        options: WorkerOptions,
        holder: str,
        counts: Counts,
        button: StopButton,
        time_limit_of: Callable[[LeasedMessage], float | None] | None = None,
        *,
        warns_if_new: bool = True,
        announces: bool = True,
        on_settled: Callable[[Sequence[LeasedMessage]], None] | None = None,
    ) -> None:
        """`time_limit_of` returns the time limit of one message, instead of `time_limit_s`.

        `warns_if_new`: warn about a queue that never had a message. `announces`: log the beginning.
        `on_settled` is called with messages whose settlement was sent.
        """
        self._on_settled = on_settled
        self._announces = announces
        self._warns_if_new = warns_if_new
        self._queue = queue
        self._options = options
        self._holder = holder
        self._counts = counts
        self._button = button
        self._loop = asyncio.get_running_loop()
        self._caller = caller
        self._time_limit_of = time_limit_of
        self._settling = Settling(queue, counts, self._settled, lambda: bool(self._waiting))
        self._renewing = Renewing(queue, options.lease_s, self._lost)
        self._ahead = _Ahead(options)
        self._waiting: deque[_HandlerCall] = deque()  # leased ahead
        self._calls: dict[object, None] = {}  # started and not settled
        self._settlements = 0
        self._logs_calls = log.isEnabledFor(logging.DEBUG)
        self._changed = asyncio.Event()

    async def work(self) -> None:
        """Work until a stop, or until no message came for `idle_s`.

        Calls that have begun are finished and settled first, also if leasing fails permanently.
        """
        options, button = self._options, self._button
        log.log(
            logging.INFO if self._announces else logging.DEBUG,
            "working on %s, group %s, %d at a time",
            name_of(self._queue),
            options.group,
            options.concurrency,
        )
        watching: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(event.wait()) for event in (button.asked, button.urgent)
        ]
        for watch in watching:
            watch.add_done_callback(lambda _: self._changed.set())
        if (
            options.idle_s is None and self._warns_if_new
        ):  # it may wait forever: is this the queue that was meant?
            watching.append(asyncio.ensure_future(self._warn_if_new()))
        try:
            await self._lease_and_call(watching[0])
        except asyncio.CancelledError:  # do not wait for handlers
            button.asked.set()
            button.urgent.set()
            raise
        finally:
            await self._finish()
            await self._renewing.close()
            self._caller.close()
            for watch in watching:
                watch.cancel()
            await asyncio.wait(watching)

    async def _warn_if_new(self) -> None:
        """Warn about a queue that never had a message: its name may be misspelt."""
        try:
            is_new = (await self._queue.stats()).published == 0
        except NoSuchQueue:
            is_new = True
        except PenstockError:
            return  # leasing reports what is wrong; or this key may not read
        if is_new:
            log.warning(
                "%s is new and empty: nothing was ever published to it; check its name",
                name_of(self._queue),
            )

    # -- leasing -----------------------------------------------------------------------------------

    async def _lease_and_call(self, asked: "asyncio.Future[Any]") -> None:
        options, pause_s = self._options, FIRST_PAUSE_S
        while not self._button.asked.is_set():
            room = self._room()
            if not room:
                self._changed.clear()
                await self._changed.wait()
                continue
            settlements = self._settlements
            try:
                leased = await self._lease(room * options.batch, asked)
            except (Unavailable, TooManyRequests) as error:
                log.warning("nothing could be leased; next try in %.1f s: %s", pause_s, error)
                await asyncio.wait([asked], timeout=pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                continue
            pause_s = FIRST_PAUSE_S
            if not leased and options.idle_s is not None:
                # A call that fails may be delivered again: look once more after the last one.
                if self._calls or self._waiting:
                    self._changed.clear()
                    await self._changed.wait()
                elif self._settlements == settlements:
                    return
            for start in range(0, len(leased), options.batch):
                call = _HandlerCall(leased[start : start + options.batch])
                self._renewing.hold(call)
                self._waiting.append(call)
            self._start_waiting()

    def _room(self) -> int:
        """Return the number of calls to lease messages for; 0: not yet.

        What is leased ahead is filled up when half of it is used, to save requests.
        """
        ahead = self._ahead.calls
        room = self._options.concurrency + ahead - len(self._waiting) - len(self._calls)
        return room if room > ahead // 2 else 0

    async def _lease(self, n: int, asked: "asyncio.Future[Any]") -> list[LeasedMessage]:
        """Wait for messages, but not beyond a stop: messages that came then are released."""
        options = self._options
        asking = asyncio.ensure_future(
            self._queue.lease(
                n,
                lease_s=options.lease_s,
                wait_s=YEARS_S if options.idle_s is None else options.idle_s,
                group=options.group,
                holder=self._holder,
            )
        )
        try:
            waits: list[asyncio.Future[Any]] = [asking, asked]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asking.cancel()
        await asyncio.wait([asking])
        if asking.cancelled():
            return []
        leased = asking.result()
        if leased and self._button.asked.is_set():
            self._release(_HandlerCall(leased))
            return []
        return leased

    def _release(self, call: _HandlerCall) -> None:
        self._renewing.let_go(call)
        self._calls[call] = None
        self._settling.release(call)

    # -- calling -----------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        while self._waiting and self._caller.room > 0:
            call = self._waiting.popleft()
            argument = call.messages[0] if self._options.batch == 1 else list(call.messages)
            self._calls[call] = None
            call.running = self._caller.start(argument, partial(self._ended, call))
            limit_s = self._options.time_limit_s
            if self._time_limit_of is not None:
                limit_s = self._time_limit_of(call.messages[0])
            if limit_s is not None:
                call.limit_s = limit_s
                call.timer = self._loop.call_later(limit_s, self._time_is_over, call)

    def _time_is_over(self, call: _HandlerCall) -> None:
        """Interrupt a call. If that fails, its leases end by themselves."""
        self._renewing.let_go(call)
        self._interrupt(call, TimeLimitExceeded)

    def _lost(self, call: _HandlerCall) -> None:
        """A lease of a call is lost: interrupt it, or do not begin it."""
        if call.running is None:
            self._waiting.remove(call)
            self._counts.lost += len(call.messages)
        elif call.running.withdraw():
            self._ended(call, LeaseLost())
        else:
            self._interrupt(call, LeaseLost)

    def _interrupt(self, call: _HandlerCall, error: type[BaseException]) -> None:
        if call.running is not None:
            call.running.interrupt(error)

    def _ended(self, call: _HandlerCall, error: BaseException | None) -> None:
        """Settle a call by what its handler raised."""
        if call.running is None:
            return  # it was abandoned, and released
        self._renewing.let_go(call)
        if call.timer is not None:
            call.timer.cancel()
        began_s, result, call.running = call.running.began_s, call.running.result, None
        took_s = 0.0 if began_s is None else self._loop.time() - began_s
        self._ahead.ended(took_s, sum(len(message.payload) for message in call.messages))
        outcome = self._settle(call, result, error)
        if self._logs_calls:
            for message in call.messages:
                log.debug(
                    "%s %s in %.3f s, attempt %d", message.id, outcome, took_s, message.attempt
                )
        if self._waiting:
            if not self._button.asked.is_set():
                self._start_waiting()
            if not self._waiting:
                self._settling.flush()

    def _settle(self, call: _HandlerCall, result: object, error: BaseException | None) -> str:
        """Return the outcome in a word, for the log."""
        if error is None:
            self._settling.ack(call, result if isinstance(result, Done) and result.emit else None)
            return "done"
        if isinstance(error, HandedBack):
            self._settling.release(call)
            return "handed back"
        if isinstance(error, LeaseLost):
            self._counts.lost += len(call.messages)
            self._settled([call])
            return "lost"
        # A handler may answer an interrupt at its time limit with an outcome of its own.
        failed = error if isinstance(error, Failed) else error.__cause__
        if isinstance(failed, Failed):
            self._settling.nack(call, failed.reason, failed.delay_s, dead=failed.dead)
            return "failed"
        reason = error_text(error)
        if isinstance(error, TimeLimitExceeded):
            reason = f"TimeLimitExceeded: not done within {call.limit_s:g} s"
        ids = ", ".join(message.id for message in call.messages)
        log.error("handling %s failed: %s", ids, reason, exc_info=error)
        self._settling.nack(call, reason)
        return "failed"

    def _settled(self, calls: Sequence[HasMessages]) -> None:
        for call in calls:
            self._calls.pop(call, None)
            if self._on_settled is not None:
                self._on_settled(call.messages)
        self._settlements += 1
        self._changed.set()

    # -- the end -----------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Let calls end by themselves; after a stop, within `stop_s`."""
        asked, urgent = self._button.asked, self._button.urgent
        await self._until(lambda: asked.is_set() or not (self._calls or self._waiting))
        self._release_waiting()
        await self._until(lambda: urgent.is_set() or not self._calls, self._options.stop_s)
        for call in self._running():
            self._interrupt(call, HandedBack)
        await self._until(lambda: not self._calls, _GRACE_S)
        if left := self._running():
            log.warning("%d calls of the handler did not end, and are left alone", len(left))
        for call in left:
            call.running = None
            self._release(call)
        await self._until(lambda: not self._calls)

    def _release_waiting(self) -> None:
        """Release what was leased ahead."""
        for call in self._running():
            if call.running is not None and call.running.withdraw():
                call.running = None
                self._release(call)
        while self._waiting:
            self._release(self._waiting.popleft())
        self._settling.flush()

    def _running(self) -> list[_HandlerCall]:
        return [c for c in self._calls if isinstance(c, _HandlerCall) and c.running is not None]

    async def _until(self, over: Callable[[], bool], within_s: float | None = None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not over():
                    self._changed.clear()
                    await self._changed.wait()
