"""One run of a worker: lease, call, renew, settle, until the end."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from penstock.errors import NoSuchQueue, PenstockError, TooManyRequests, Unavailable
from penstock.model import LeasedMessage
from penstock.queue.facade import AnyAsyncQueue
from penstock.queue.settings import YEARS_S
from penstock.worker.calling import Handler, Running, caller_of
from penstock.worker.options import WorkerOptions
from penstock.worker.queues import name_of
from penstock.worker.renewing import Renewing
from penstock.worker.settling import Counts, HandedBack, LeaseLost, Settling, TimeLimitExceeded
from penstock.worker.stopping import StopButton

log = logging.getLogger("penstock.worker")

_FIRST_PAUSE_S = 0.5  # after the broker could not be reached; doubles
_LONGEST_PAUSE_S = 30.0
_GRACE_S = 1.0  # for handlers that were told that the stop waits no longer


class Shift:
    """Everything between the beginning of a worker and its end."""

    def __init__(
        self,
        queue: AnyAsyncQueue,
        handler: Handler,
        options: WorkerOptions,
        holder: str,
        counts: Counts,
    ) -> None:
        self._queue = queue
        self._options = options
        self._holder = holder
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._caller = caller_of(handler, options.concurrency)
        self._settling = Settling(queue, counts)
        self._renewing = Renewing(queue, options.lease_s)
        self._calls: dict[asyncio.Task[None], Running] = {}
        self._call_ended = asyncio.Event()
        self._abandoned = asyncio.Event()
        self._first_look: asyncio.Task[None] | None = None

    async def work(self, button: StopButton) -> None:
        """Until the button is pressed or nothing comes any more. What was begun is settled first
        also where leasing fails for good."""
        options = self._options
        log.info(
            "working on %s, group %s, %d at a time",
            name_of(self._queue),
            options.group,
            options.concurrency,
        )
        if options.idle_s is None:  # it may wait for ever: is this the queue that was meant?
            self._first_look = asyncio.ensure_future(self._warn_if_new())
        try:
            await self._lease_and_call(button)
        except asyncio.CancelledError:  # whoever cancels does not wait for handlers
            button.asked.set()
            button.urgent.set()
            raise
        finally:
            await self._finish(button)
            await self._renewing.close()
            self._caller.close()
            if self._first_look is not None:
                self._first_look.cancel()
                await asyncio.wait([self._first_look])

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

    async def _lease_and_call(self, button: StopButton) -> None:
        pause_s = _FIRST_PAUSE_S
        while not button.asked.is_set():
            room = self._options.concurrency - len(self._calls)
            if not room:
                self._call_ended.clear()
                await self._either(self._call_ended.wait(), button.asked.wait())
                continue
            try:
                leased = await self._lease(room * self._options.batch, button)
            except (Unavailable, TooManyRequests) as error:
                log.warning("nothing could be leased; next try in %.1f s: %s", pause_s, error)
                await self._either(asyncio.sleep(pause_s), button.asked.wait())
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            pause_s = _FIRST_PAUSE_S
            if not leased and self._options.idle_s is not None:
                return
            for start in range(0, len(leased), self._options.batch):
                self._call(leased[start : start + self._options.batch])

    async def _lease(self, n: int, button: StopButton) -> list[LeasedMessage]:
        """Wait for messages, but not beyond a stop: what came at that moment is given back."""
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
            await self._either(asyncio.wait([asking]), button.asked.wait())
        finally:
            asking.cancel()
        await asyncio.wait([asking])
        if asking.cancelled():
            return []
        leased = asking.result()
        if leased and button.asked.is_set():
            await self._settling.release(leased)
            return []
        return leased

    async def _either(self, *waits: Coroutine[Any, Any, object]) -> None:
        """Until one of them is over; the others are dropped."""
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    # -- calling -----------------------------------------------------------------------------------

    def _call(self, messages: Sequence[LeasedMessage]) -> None:
        argument = messages[0] if self._options.batch == 1 else list(messages)
        running = self._caller.start(argument)
        # An outcome that nobody waits for any more is not a mistake.
        running.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        task = asyncio.ensure_future(self._see_through(messages, running))
        self._calls[task] = running
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._calls[task]
        self._call_ended.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the outcome of a call was not told", exc_info=error)

    async def _see_through(self, messages: Sequence[LeasedMessage], running: Running) -> None:
        """From the beginning of a call to its settlement."""
        began_s = self._loop.time()
        held = self._renewing.hold(messages, lambda: running.interrupt(LeaseLost))
        timer = None
        if self._options.time_limit_s is not None:
            timer = self._loop.call_later(
                self._options.time_limit_s, self._time_is_over, held, running
            )
        try:
            await self._either(asyncio.wait([running.ended]), self._abandoned.wait())
        finally:
            if timer is not None:
                timer.cancel()
            self._renewing.let_go(held)
        outcome = await self._settle(messages, running)
        if log.isEnabledFor(logging.DEBUG):
            took_s = self._loop.time() - began_s
            for message in messages:
                log.debug(
                    "%s %s in %.3f s, attempt %d", message.id, outcome, took_s, message.attempt
                )

    def _time_is_over(self, held: int, running: Running) -> None:
        """A handler that cannot be interrupted loses its leases when they are over."""
        self._renewing.let_go(held)
        running.interrupt(TimeLimitExceeded)

    async def _settle(self, messages: Sequence[LeasedMessage], running: Running) -> str:
        """Settle by what the call came to. Return that in a word, for the log."""
        error = running.ended.exception() if running.ended.done() else HandedBack()
        if error is None:
            await self._settling.ack(messages)
            return "done"
        if isinstance(error, HandedBack):
            await self._settling.release(messages)
            return "handed back"
        if isinstance(error, LeaseLost):
            self._counts.lost += len(messages)
            return "lost"
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, TimeLimitExceeded):
            reason = f"TimeLimitExceeded: not done within {self._options.time_limit_s:g} s"
        ids = ", ".join(message.id for message in messages)
        log.error("handling %s failed: %s", ids, reason, exc_info=error)
        await self._settling.nack(messages, reason)
        return "failed"

    # -- the end -----------------------------------------------------------------------------------

    async def _finish(self, button: StopButton) -> None:
        """Let calls end by themselves; after a stop only for so long."""
        while self._calls and not button.asked.is_set():
            self._call_ended.clear()
            await self._either(self._call_ended.wait(), button.asked.wait())
        await self._all_ended(self._options.stop_s, button.urgent)
        for running in self._calls.values():
            running.interrupt(HandedBack)
        await self._all_ended(_GRACE_S)
        if self._calls:
            log.warning("%d calls of the handler did not end, and are left alone", len(self._calls))
        self._abandoned.set()
        while self._calls:
            await asyncio.wait(self._calls)

    async def _all_ended(self, within_s: float, unless: asyncio.Event | None = None) -> None:
        if not self._calls:
            return
        ended = asyncio.wait(list(self._calls), timeout=within_s)
        if unless is None:
            await ended
        else:
            await self._either(ended, unless.wait())
