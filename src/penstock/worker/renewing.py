"""Renewing leases while handlers work."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.errors import PenstockError, ReceiptInvalid
from penstock.model import LeasedMessage

log = logging.getLogger("penstock.worker")


class Extends(Protocol):
    async def extend(self, leased: Sequence[LeasedMessage], lease_s: float) -> None: ...


class _Held:
    """Messages of one call, and what to do if one of them is ours no more."""

    def __init__(
        self, messages: Sequence[LeasedMessage], due_s: float, on_lost: Callable[[], None]
    ) -> None:
        self.messages = messages
        self.due_s = due_s
        self.on_lost = on_lost


class Renewing:
    """One timer for all leases of a worker: each is renewed when half of it is over."""

    def __init__(self, queue: Extends, lease_s: float) -> None:
        self._queue = queue
        self._lease_s = lease_s
        self._loop = asyncio.get_running_loop()
        self._held: dict[int, _Held] = {}
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    def hold(self, messages: Sequence[LeasedMessage], on_lost: Callable[[], None]) -> int:
        """Keep these leased until `let_go` of the number that is returned."""
        held = _Held(messages, self._loop.time() + self._lease_s / 2, on_lost)
        number = id(held)
        self._held[number] = held
        self._changed.set()
        return number

    def let_go(self, number: int) -> None:
        self._held.pop(number, None)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            next_s = min((held.due_s for held in self._held.values()), default=None)
            try:
                async with asyncio.timeout_at(next_s):
                    await self._changed.wait()
            except TimeoutError:
                await self._renew_due()

    async def _renew_due(self) -> None:
        now_s = self._loop.time()
        due = {number: held for number, held in self._held.items() if held.due_s <= now_s}
        if not due:
            return  # the timer was set for a call that has ended since
        for held in due.values():
            held.due_s = now_s + self._lease_s / 2
        try:
            messages = [message for held in due.values() for message in held.messages]
            await self._queue.extend(messages, self._lease_s)
        except ReceiptInvalid:
            for number, held in due.items():
                await self._renew_one(number, held)
        except PenstockError as error:
            log.warning("leases could not be renewed, and are tried again: %s", error)
            for held in due.values():
                held.due_s = self._loop.time() + self._lease_s / 8

    async def _renew_one(self, number: int, held: _Held) -> None:
        """Those that are still ours are renewed; a call that lost one of its messages is over."""
        if number not in self._held:
            return  # settled meanwhile
        try:
            await self._queue.extend(held.messages, self._lease_s)
        except ReceiptInvalid as error:
            if number in self._held:
                log.warning("a lease is lost while its message is handled: %s", error)
                self.let_go(number)
                held.on_lost()
        except PenstockError as error:
            log.warning("a lease could not be renewed, and is tried again: %s", error)
            held.due_s = self._loop.time() + self._lease_s / 8
