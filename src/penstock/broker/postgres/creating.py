"""Creates queues: a row that only this broker sees, then the files, then the row for all brokers.

A broker that dies in between leaves the row. The next creation replaces it. So a broker creates a
queue once at a time: else it would take the row of its own call for one that was left.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable

from penstock.broker.embedded.shelf import Shelf
from penstock.broker.postgres.membership import Membership
from penstock.broker.postgres.routing import RETRY_S
from penstock.broker.postgres.tables import BeingMade, Tables
from penstock.broker.store import QueueInfo
from penstock.clock import Clock
from penstock.names import QueueName
from penstock.queue.settings import QueueSettings


class Creations:
    """The creations of queues by one broker."""

    def __init__(
        self,
        tables: Tables,
        membership: Membership,
        shelf: Shelf,
        clock: Clock,
        *,
        patience_s: float,
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        """`patience_s`: for another broker that creates the queue. `refresh`: read the
        catalogue."""
        self._tables = tables
        self._membership = membership
        self._shelf = shelf
        self._clock = clock
        self._patience_s = patience_s
        self._refresh = refresh
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[QueueName, Future[None]] = {}

    async def create(self, queue: QueueName, settings: QueueSettings) -> QueueInfo:
        """Create a queue; raise AlreadyExists if another call or broker did so first.

        It must run to its end: its caller may be cancelled, and the next one waits for it here.
        """
        while queue in self._under_way:
            await asyncio.wait([self._under_way[queue]])
        ended = self._under_way[queue] = self._loop.create_future()
        try:
            return await self._create(queue, settings)
        finally:
            del self._under_way[queue]
            ended.set_result(None)

    async def _create(self, queue: QueueName, settings: QueueSettings) -> QueueInfo:
        self._shelf.quotas.check_bytes(queue.namespace)
        number = self._membership.number
        await self._reserve(queue, number)
        try:
            if queue in self._shelf:  # deleted elsewhere a moment ago
                await self._shelf.forget(queue)
            info = await self._shelf.create(queue, settings)
        except BaseException:
            await asyncio.to_thread(self._tables.abandon, queue, number)
            raise
        await self._refresh()
        return info

    async def _reserve(self, queue: QueueName, number: int) -> None:
        ends_at = self._loop.time() + self._patience_s
        now_ns = self._clock.now_ns()
        while True:
            try:
                await asyncio.to_thread(self._tables.reserve, queue, number, now_ns)
                return
            except BeingMade:
                if self._loop.time() >= ends_at:
                    raise
                await asyncio.sleep(RETRY_S)
