"""Renew leases while their messages wait for a handler, and while handlers work."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.errors import PenstockError, ReceiptInvalid
from penstock.model import LeasedMessage
from penstock.queue.facade import AnyAsyncQueue

log = logging.getLogger("penstock.worker")


class Renewable(Protocol):
    """Messages whose leases are renewed together."""

    messages: Sequence[LeasedMessage]
    due_s: float  # when the next renewal is due, in the loop's time


class Renewing:
    """One timer for all leases of a worker: each is renewed when half of it is over."""

    def __init__(
        self, queue: AnyAsyncQueue, lease_s: float, on_lost: Callable[[Any], None]
    ) -> None:
        self._queue = queue
        self._lease_s = lease_s
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._held: dict[Renewable, None] = {}
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    def hold(self, call: Renewable) -> None:
        """Keep the messages of a call leased until `let_go`."""
        call.due_s = self._loop.time() + self._lease_s / 2
        if not self._held:
            self._changed.set()  # otherwise an earlier one is due before
        self._held[call] = None

    def let_go(self, call: Renewable) -> None:
        self._held.pop(call, None)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            next_s = min((call.due_s for call in self._held), default=None)
            try:
                async with asyncio.timeout_at(next_s):
                    await self._changed.wait()
            except TimeoutError:
                await self._renew_due()

    async def _renew_due(self) -> None:
        now_s = self._loop.time()
        due = [call for call in self._held if call.due_s <= now_s]
        if not due:
            return  # the timer was set for a call that has ended since
        for call in due:
            call.due_s = now_s + self._lease_s / 2
        try:
            messages = [message for call in due for message in call.messages]
            await self._queue.extend(messages, self._lease_s)
        except ReceiptInvalid:
            for call in due:
                await self._renew_one(call)
        except PenstockError as error:
            log.warning("leases could not be renewed, and are tried again: %s", error)
            for call in due:
                call.due_s = self._loop.time() + self._lease_s / 8

    async def _renew_one(self, call: Renewable) -> None:
        """Renew the leases of one call, or report it as lost."""
        if call not in self._held:
            return  # settled meanwhile
        try:
            await self._queue.extend(call.messages, self._lease_s)
        except ReceiptInvalid as error:
            if call in self._held:
                log.warning("a lease is lost while its message is handled: %s", error)
                self.let_go(call)
                self._on_lost(call)
        except PenstockError as error:
            log.warning("a lease could not be renewed, and is tried again: %s", error)
            call.due_s = self._loop.time() + self._lease_s / 8
