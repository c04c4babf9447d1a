"""Gives queues to brokers that own fewer, after one has joined.

Ownership is sticky: a queue moves only if its owner has at least two more queues than another
broker. It moves gradually, one that is open at a time: the owner answers the calls of the queue,
closes it, and names the new owner, which opens it when it is next used. One broker at a time gives.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from penstock.broker.embedded.shelf import Shelf
from penstock.broker.postgres.membership import Membership
from penstock.broker.postgres.routing import Router
from penstock.errors import PenstockError
from penstock.names import QueueName

log = logging.getLogger("penstock.broker")

_LOCK = "rebalance"
_MOST_CLOSED = 100  # queues that are not open, given at a time


class Rebalancing:
    """The task of one broker that gives queues away."""

    def __init__(
        self,
        membership: Membership,
        shelf: Shelf,
        router: Router,
        acquire_lock: Callable[[str, str, float], Awaitable[bool]],
        every_s: float,
    ) -> None:
        self._membership = membership
        self._shelf = shelf
        self._router = router
        self._acquire_lock = acquire_lock
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.give_some()
            except PenstockError as error:
                log.warning("queues are not given to other brokers now: %s", error)

    async def give_some(self) -> list[QueueName]:
        """Give some queues to the broker that owns fewest. Return them."""
        surplus = await asyncio.to_thread(self._membership.surplus)
        if surplus is None:
            return []
        if not await self._acquire_lock(_LOCK, str(self._membership.number), self._every_s / 2):
            return []
        target, count, queues = surplus
        given: list[QueueName] = []
        for queue in self._in_order(queues)[: min(count, _MOST_CLOSED)]:
            is_open = self._shelf.get(queue) is not None
            if is_open and given:
                break
            await self._router.hand_over(queue, partial(self._membership.give, queue, target))
            given.append(queue)
        log.info("%d queues were given to another broker", len(given))
        return given

    def _in_order(self, queues: list[QueueName]) -> list[QueueName]:
        """Return queues in the order in which they are given: those in use last."""

        def use(queue: QueueName) -> int:
            found = self._shelf.get(queue)
            return 0 if found is None else 1 + found.is_in_use

        return sorted(queues, key=use)
