"""Redrive at a limited rate: a number of dead letters a second, so that consumers keep up."""

import asyncio
import logging
import math
from asyncio import Future
from dataclasses import replace

from penstock.broker.store import Store
from penstock.errors import InvalidInput, NoSuchMessage, PenstockError
from penstock.names import QueueName
from penstock.operations import Redrive

log = logging.getLogger("penstock.broker")

_STEPS_PER_S = 10


class PacedRedrives:
    """Redrives that continue after they were answered. A restart leaves the rest dead."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def redrive(self, queue: QueueName, redrive: Redrive, *, rate_per_s: float) -> Future[int]:
        """Return how many dead letters will be ready again."""
        return asyncio.ensure_future(self._start(queue, redrive, rate_per_s))

    async def _start(self, queue: QueueName, redrive: Redrive, rate_per_s: float) -> int:
        count = await self._store.run(queue, replace(redrive, dry_run=True))
        task = asyncio.ensure_future(self._run(queue, redrive, rate_per_s, count))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return count

    async def _run(self, queue: QueueName, redrive: Redrive, rate_per_s: float, count: int) -> None:
        step = max(math.ceil(rate_per_s / _STEPS_PER_S), 1)
        try:
            if redrive.ids is not None:
                for at in range(0, len(redrive.ids), step):
                    part = replace(redrive, ids=redrive.ids[at : at + step])
                    await asyncio.sleep(await self._still_dead(queue, part) / rate_per_s)
                return
            while count > 0:
                part = replace(redrive, limit=min(step, count))
                done = await self._store.run(queue, part)
                if not done:
                    return  # others took the rest
                count -= done
                await asyncio.sleep(done / rate_per_s)
        except PenstockError as error:
            log.warning("redriving of %s ended early: %s", queue, error)

    async def _still_dead(self, queue: QueueName, part: Redrive) -> int:
        """Redrive the ids that are still dead: some may have been settled in the meantime."""
        try:
            return await self._store.run(queue, part)
        except (NoSuchMessage, InvalidInput):
            ids = part.ids or ()
            if len(ids) == 1:
                return 0
            return sum([await self._still_dead(queue, replace(part, ids=(one,))) for one in ids])

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
