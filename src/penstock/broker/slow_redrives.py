"""Redriving at a limited rate: so many dead letters a second, so that consumers can keep up."""

import asyncio
import logging
import math
from asyncio import Future

from penstock.broker.names import QueueName
from penstock.broker.store import DeadFilter, Store
from penstock.errors import InvalidInput, NoSuchMessage, PenstockError

log = logging.getLogger("penstock.broker")

_STEPS_PER_S = 10


class SlowRedrives:
    """Redrives that go on after they were answered; what a restart leaves over stays dead."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def redrive(
        self, queue: QueueName, filter: DeadFilter, *, group: str, rate_per_s: float
    ) -> Future[int]:
        """How many will be ready again, by and by."""
        return asyncio.ensure_future(self._start(queue, filter, group, rate_per_s))

    async def _start(
        self, queue: QueueName, filter: DeadFilter, group: str, rate_per_s: float
    ) -> int:
        count = await self._store.redrive(queue, filter, group=group, dry_run=True)
        task = asyncio.ensure_future(self._run(queue, filter, group, rate_per_s, count))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return count

    async def _run(
        self, queue: QueueName, filter: DeadFilter, group: str, rate_per_s: float, count: int
    ) -> None:
        lot = max(math.ceil(rate_per_s / _STEPS_PER_S), 1)
        try:
            if filter.ids is not None:
                for at in range(0, len(filter.ids), lot):
                    part = filter._replace(ids=filter.ids[at : at + lot])
                    await asyncio.sleep(await self._still_dead(queue, part, group) / rate_per_s)
                return
            while count > 0:
                part = filter._replace(limit=min(lot, count))
                done = await self._store.redrive(queue, part, group=group, dry_run=False)
                if not done:
                    return  # others took the rest
                count -= done
                await asyncio.sleep(done / rate_per_s)
        except PenstockError as error:
            log.warning("redriving of %s ended early: %s", queue, error)

    async def _still_dead(self, queue: QueueName, part: DeadFilter, group: str) -> int:
        """Redrive those of the ids that are still dead: others may have settled some meanwhile."""
        try:
            return await self._store.redrive(queue, part, group=group, dry_run=False)
        except (NoSuchMessage, InvalidInput):
            ids = part.ids or ()
            if len(ids) == 1:
                return 0
            return sum(
                [await self._still_dead(queue, part._replace(ids=[one]), group) for one in ids]
            )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
