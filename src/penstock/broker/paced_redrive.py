"""Redrive at a limited rate: a number of dead letters a second, so that consumers keep up.

The redrives that are not finished are a document of the store. One broker at a time runs each; it
goes on after a restart, or on another broker if the first one dies. While the document is damaged,
redrives are refused, so that it is not overwritten.
"""

import asyncio
import logging
import math
import secrets
from asyncio import Future
from dataclasses import fields, replace
from typing import Annotated

import msgspec

from penstock.broker.ownership import Ownership, Renewal
from penstock.broker.store import Store, update_document
from penstock.clock import Clock
from penstock.errors import CorruptLedger, InvalidInput, NoSuchMessage, PenstockError, QuotaExceeded
from penstock.model import NS
from penstock.names import QueueName
from penstock.operations import Redrive

log = logging.getLogger("penstock.broker")

MAX_REDRIVES = 100
_DOCUMENT = "redrives.json"
_STEPS_PER_S = 10
_FIELDS = [item.name for item in fields(Redrive) if item.name != "dry_run"]


class _Job(msgspec.Struct, frozen=True):
    """A redrive that is not finished. It covers dead letters that died before it was asked for."""

    id: str
    queue: tuple[str, str]
    rate_per_s: Annotated[float, msgspec.Meta(gt=0)]
    redrive: dict[str, object]

    def operation(self) -> Redrive:
        return Redrive(**self.redrive)  # type: ignore[arg-type]


class PacedRedrives:
    """The paced redrives of a store, as one of its brokers runs them."""

    def __init__(self, store: Store, clock: Clock, owner: str) -> None:
        self._store = store
        self._clock = clock
        self._owned = Ownership(store, owner, "redrive")
        self._jobs: dict[str, _Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._renewal = Renewal(self._update, is_needed=lambda: bool(self._jobs))
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Go on with redrives that no other broker runs."""
        await self._update()
        self._renewal.start()

    def on_document(self, name: str) -> None:
        """For `Broker.on_document_changed`."""
        if name == _DOCUMENT:
            self._renewal.changed()

    async def close(self) -> None:
        """Stop; another broker, or the next start, goes on."""
        await self._renewal.stop()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for id_ in self._owned.ids:
            await self._owned.release(id_)

    def redrive(self, queue: QueueName, redrive: Redrive, *, rate_per_s: float) -> Future[int]:
        """Return how many dead letters will be ready again."""
        return asyncio.ensure_future(self._add(queue, redrive, rate_per_s))

    async def _add(self, queue: QueueName, redrive: Redrive, rate_per_s: float) -> int:
        count = await self._store.run(queue, replace(redrive, dry_run=True))
        if not count:
            return 0
        # Those that die later, perhaps for the second time, are not meant.
        now_s = self._clock.now_ns() / NS + 1e-6
        until = now_s if redrive.until is None else min(float(redrive.until), now_s)  # type: ignore[arg-type]
        bounded = replace(redrive, until=until)
        values = {name: getattr(bounded, name) for name in _FIELDS}
        job = _Job(secrets.token_hex(8), queue, rate_per_s, values)
        await self._owned.take(job.id)
        try:
            await self._change(job.id, job)
        except BaseException:
            await self._owned.release(job.id)
            raise
        self._start(job)
        return count

    # -- the document ------------------------------------------------------------------------------

    async def _change(self, id: str, job: _Job | None) -> None:
        """Add, replace or (None) remove a redrive."""

        def change(document: bytes | None) -> bytes | None:
            jobs = _load(document)
            if job is None:
                jobs.pop(id, None)
            elif id not in jobs and len(jobs) >= MAX_REDRIVES:
                raise QuotaExceeded(f"{MAX_REDRIVES} paced redrives are running: wait for some")
            else:
                jobs[id] = job
            return msgspec.json.encode(list(jobs.values())) if jobs else None

        self._jobs = _load(await update_document(self._store, _DOCUMENT, change))

    async def _update(self) -> None:
        """Renew the locks, and take over redrives that no broker runs."""
        async with self._turn:
            try:
                self._jobs = _load(await self._store.load_document(_DOCUMENT))
                for job in self._jobs.values():
                    if not await self._owned.take(job.id):
                        self._lose(job.id)
                    elif job.id not in self._tasks:
                        self._start(job)
            except (PenstockError, OSError) as error:
                log.warning("paced redrives are not read: %s", error)
            for id_ in self._owned.lapsed():
                self._lose(id_)

    def _lose(self, id: str) -> None:
        self._owned.forget(id)
        task = self._tasks.pop(id, None)
        if task is not None:
            task.cancel()

    # -- running -----------------------------------------------------------------------------------

    def _start(self, job: _Job) -> None:
        if job.id not in self._tasks:
            self._tasks[job.id] = asyncio.get_running_loop().create_task(self._run(job))

    async def _run(self, job: _Job) -> None:
        try:
            await self._redrive(job)
        except PenstockError as error:
            log.warning("redriving of %s ended early: %s", QueueName(*job.queue), error)
        try:
            await self._change(job.id, None)
        except (PenstockError, OSError) as error:
            log.warning("a redrive that ended is not noted, and will find nothing: %s", error)
        self._tasks.pop(job.id, None)
        await self._owned.release(job.id)

    async def _redrive(self, job: _Job) -> None:
        queue, redrive = QueueName(*job.queue), job.operation()
        step = max(math.ceil(job.rate_per_s / _STEPS_PER_S), 1)
        ids, left = redrive.ids, redrive.limit
        while left != 0 and (ids is None or ids):
            n = step if left is None else min(step, left)
            now, ids = (None, None) if ids is None else (ids[:n], ids[n:])
            if left is not None:
                # Noted before it is done: a crash may leave a few dead, never redrive too many.
                rest = {**job.redrive, "ids": ids, "limit": left - n}
                await self._change(job.id, msgspec.structs.replace(job, redrive=rest))
            done = await self._still_dead(queue, replace(redrive, ids=now, limit=n))
            left = None if left is None else left - done
            if now is None and done < n:
                return  # no other one matches
            await asyncio.sleep(done / job.rate_per_s)

    async def _still_dead(self, queue: QueueName, part: Redrive) -> int:
        """Redrive the ids that are still dead: some may have been settled in the meantime."""
        try:
            return await self._store.run(queue, part)
        except (NoSuchMessage, InvalidInput):
            ids = part.ids or ()
            if len(ids) == 1:
                return 0
            return sum([await self._still_dead(queue, replace(part, ids=(one,))) for one in ids])


def _load(document: bytes | None) -> dict[str, _Job]:
    """Return the redrives of a document. Raise CorruptLedger if it cannot be read."""
    try:
        jobs = msgspec.json.decode(document, type=list[_Job]) if document else []
        for job in jobs:
            QueueName.checked(*job.queue)
            job.operation()
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise CorruptLedger(
            f"the broker's document {_DOCUMENT} cannot be read ({error}): "
            f"repair it, or move it away to start without its redrives, and restart the broker"
        ) from None
    return {job.id: job for job in jobs}
