"""Redrive at a limited rate: a number of dead letters a second, so that consumers keep up.

The redrives that are not finished are a document of the store. One broker at a time runs each; it
goes on after a restart, or on another broker if the first one dies. After an error that may pass, a
redrive is retried with backoff; after any other it stays as failed until it is cancelled. While the
document is damaged, redrives are refused, so that it is not overwritten.
"""

import asyncio
import logging
import math
import secrets
from asyncio import Future
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec

from penstock.broker.access import Admit, Caller
from penstock.broker.background import Background
from penstock.broker.ownership import Ownership, Renewal
from penstock.broker.store import Store, update_document
from penstock.checking import check_number
from penstock.clock import Clock
from penstock.errors import (
    CorruptLedger,
    InvalidInput,
    LedgerError,
    NoSuchMessage,
    NoSuchNamespace,
    NoSuchQueue,
    NoSuchRedrive,
    PenstockError,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    TooManyRequests,
    Unavailable,
)
from penstock.model import NS
from penstock.names import QueueName
from penstock.operations import Redrive, Verb

log = logging.getLogger("penstock.broker")

MAX_REDRIVES = 100
_DOCUMENT = "redrives.json"
_STEPS_PER_S = 10
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 60.0
_MAX_REASON = 500  # characters
# Errors that may pass: the disk is full, the queue is being opened, there is too much to do.
_RETRIED = (
    *(LedgerError, Unavailable, QueueFull, RateLimited, TooManyRequests, QuotaExceeded),
    OSError,
)
_FIELDS = [item.name for item in fields(Redrive) if item.name != "dry_run"]


T = TypeVar("T")
State = Literal["running", "retrying", "failed"]


class PacedRedrive(NamedTuple):
    """A redrive that is not finished. It ends when it succeeds or is cancelled."""

    id: str
    group: str
    rate_per_s: float
    state: State  # failed: it is not retried
    reason: str  # the last error; empty while it runs


class Begun(NamedTuple):
    """A paced redrive that was started."""

    id: str  # empty: no dead letter matches, and there is none
    letters: int  # dead letters that will be ready again


class _Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A redrive that is not finished. It covers dead letters that died before it was asked for."""

    id: str
    queue: tuple[str, str]
    rate_per_s: Annotated[float, msgspec.Meta(gt=0)]
    redrive: dict[str, object]
    state: State = "running"
    reason: str = ""

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
        self._trouble: dict[str, tuple[State, str]] = {}  # of jobs here; the document may lack it
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

    async def begin(self, queue: QueueName, redrive: Redrive, *, rate_per_s: float) -> Begun:
        """Start a redrive, unless no dead letter matches."""
        count = await self._store.run(queue, replace(redrive, dry_run=True))
        if not count:
            return Begun("", 0)
        # Those that die later, perhaps for the second time, are not meant.
        now_s = self._clock.now_ns() / NS + 1e-6
        until = now_s if redrive.until is None else min(float(redrive.until), now_s)  # type: ignore[arg-type]
        bounded = replace(redrive, until=until)
        values = {name: getattr(bounded, name) for name in _FIELDS}
        job = _Job(secrets.token_hex(8), queue, rate_per_s, values)
        await self._owned.take(job.id)
        try:
            await self._change(job.id, lambda _: job)
        except BaseException:
            await self._owned.release(job.id)
            raise
        self._start(job)
        return Begun(job.id, count)

    async def unfinished(self, queue: QueueName) -> list[PacedRedrive]:
        """Return the redrives of a queue that are not finished, in the order of their ids."""
        jobs = _load(await self._store.load_document(_DOCUMENT))
        found = []
        for id_, job in sorted(jobs.items()):
            if job.queue == queue:
                state, reason = self._trouble.get(id_, (job.state, job.reason))
                group = job.operation().group
                found.append(PacedRedrive(id_, group, job.rate_per_s, state, reason))
        return found

    async def cancel(self, queue: QueueName, id: str) -> bool:
        """Cancel a redrive. Return False if the queue has none of that id (any more)."""
        was_there = False

        def cancelled(job: _Job | None) -> _Job | None:
            nonlocal was_there
            was_there = job is not None and job.queue == queue
            return None if was_there else job

        await self._change(id, cancelled)
        if was_there:
            await self._forget(id)
        return was_there

    async def queue_deleted(self, queue: QueueName) -> None:
        """Cancel the redrives of a queue that was deleted. For `Broker.on_deleted`."""
        try:
            for job in await self.unfinished(queue):
                await self.cancel(queue, job.id)
        except (PenstockError, OSError) as error:
            log.warning("redrives of %s, which is deleted, are not cancelled: %s", queue, error)

    # -- the document ------------------------------------------------------------------------------

    async def _change(self, id: str, change: "Callable[[_Job | None], _Job | None]") -> bool:
        """Add, replace or (None) remove a redrive. Return whether it is there then."""

        def changed(document: bytes | None) -> bytes | None:
            jobs = _load(document)
            job = change(jobs.get(id))
            if job is None:
                jobs.pop(id, None)
            elif id not in jobs and len(jobs) >= MAX_REDRIVES:
                raise QuotaExceeded(
                    f"there are {MAX_REDRIVES} paced redrives: wait for some, or cancel some"
                )
            else:
                jobs[id] = job
            return msgspec.json.encode(list(jobs.values())) if jobs else None

        async with self._turn:
            self._jobs = _load(await update_document(self._store, _DOCUMENT, changed))
            return id in self._jobs

    async def _note(self, id: str, state: State, reason: str) -> None:
        """Show the state of a redrive, also in the document if that can be written."""
        if state == "running":
            self._trouble.pop(id, None)
        else:
            self._trouble[id] = state, reason

        def noted(job: _Job | None) -> _Job | None:
            return job and msgspec.structs.replace(job, state=state, reason=reason)

        try:
            await self._change(id, noted)
        except (PenstockError, OSError) as error:
            log.warning("the state of redrive %s is not saved: %s", id, error)

    async def _update(self) -> None:
        """Renew the locks, take over redrives that no broker runs, and stop cancelled ones."""
        async with self._turn:
            try:
                self._jobs = _load(await self._store.load_document(_DOCUMENT))
                for job in self._jobs.values():
                    if not await self._owned.take(job.id):
                        self._lose(job.id)
                    elif job.id not in self._tasks:
                        self._start(job)
                for id_ in self._owned.ids:
                    if id_ not in self._jobs and id_ in self._tasks:
                        await self._forget(id_)
            except (PenstockError, OSError) as error:
                log.warning("paced redrives are not read: %s", error)
            for id_ in self._owned.lapsed():
                self._lose(id_)

    async def _forget(self, id: str) -> None:
        """Stop a redrive that is finished or cancelled."""
        self._stop(id)
        await self._owned.release(id)

    def _lose(self, id: str) -> None:
        self._owned.forget(id)
        self._stop(id)

    def _stop(self, id: str) -> None:
        self._trouble.pop(id, None)
        task = self._tasks.pop(id, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    # -- running -----------------------------------------------------------------------------------

    def _start(self, job: _Job) -> None:
        if job.id not in self._tasks and job.state != "failed":
            if job.state == "retrying":
                self._trouble[job.id] = job.state, job.reason
            self._tasks[job.id] = asyncio.get_running_loop().create_task(self._run(job))

    async def _run(self, job: _Job) -> None:
        queue = QueueName(*job.queue)
        try:
            await self._redrive(job)
        except (NoSuchQueue, NoSuchNamespace) as error:
            log.warning("redriving of %s ended: %s", queue, error)
        except PenstockError as error:
            log.warning("redriving of %s failed: %s", queue, error)
            self._tasks.pop(job.id, None)
            return await self._note(job.id, "failed", str(error)[:_MAX_REASON])
        try:
            await self._change(job.id, lambda _: None)
        except (PenstockError, OSError) as error:
            log.warning("a redrive that ended is not noted, and will find nothing: %s", error)
        return await self._forget(job.id)

    async def _redrive(self, job: _Job) -> None:
        redrive = job.operation()
        step = max(math.ceil(job.rate_per_s / _STEPS_PER_S), 1)
        ids, left = redrive.ids, redrive.limit
        while left != 0 and (ids is None or ids):
            n = step if left is None else min(step, left)
            now, ids = (None, None) if ids is None else (ids[:n], ids[n:])
            if left is not None:
                # Noted before it is done: a crash may leave a few dead, never redrive too many.
                rest = {**job.redrive, "ids": ids, "limit": left - n}
                if not await self._retry(job, lambda: self._shorten(job.id, rest)):  # noqa: B023
                    return  # cancelled
            done = await self._still_dead(job, replace(redrive, ids=now, limit=n))
            left = None if left is None else left - done
            if now is None and done < n:
                return  # no other one matches
            await asyncio.sleep(done / job.rate_per_s)

    def _shorten(self, id: str, rest: dict[str, object]) -> Awaitable[bool]:
        return self._change(id, lambda job: job and msgspec.structs.replace(job, redrive=rest))

    async def _still_dead(self, job: _Job, part: Redrive) -> int:
        """Redrive the ids that are still dead: some may have been settled in the meantime."""
        try:
            return await self._retry(job, lambda: self._store.run(QueueName(*job.queue), part))
        except (NoSuchMessage, InvalidInput):
            ids = part.ids or ()
            if not ids:
                raise
            if len(ids) == 1:
                return 0
            return sum([await self._still_dead(job, replace(part, ids=(one,))) for one in ids])

    async def _retry(self, job: _Job, call: Callable[[], Awaitable[T]]) -> T:
        """Call until there is no error that may pass, and show the last such error meanwhile."""
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                result = await call()
            except _RETRIED as error:
                log.warning(
                    "redriving of %s is retried in %g s: %s",
                    QueueName(*job.queue),
                    backoff_s,
                    error,
                )
                await self._note(job.id, "retrying", str(error)[:_MAX_REASON])
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
            else:
                if job.id in self._trouble:
                    await self._note(job.id, "running", "")
                return result


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


class RedriveCalls:
    """The calls of a broker about paced redrives."""

    def __init__(
        self,
        paced: PacedRedrives,
        admit: Admit,
        has_queue: Callable[[QueueName], bool],
        background: Background,
    ) -> None:
        self._paced = paced
        self._admit = admit
        self._has_queue = has_queue
        self._background = background

    def start(
        self, caller: Caller, queue: QueueName, redrive: Redrive, max_rate: float
    ) -> Future[int]:
        """Redrive at most `max_rate` dead letters a second, in the background. Return how many.

        It goes on after a restart, or on another broker of the store. See `list`.
        """
        beginning = self.begin(caller, queue, redrive, max_rate)

        async def count() -> int:
            return (await beginning).letters

        return asyncio.ensure_future(count())

    def begin(
        self, caller: Caller, queue: QueueName, redrive: Redrive, max_rate: float
    ) -> Future[Begun]:
        """Start a redrive as `start` does. Return its id as well."""
        self._admit(caller, redrive.verb, queue.namespace)
        check_number("max_rate", max_rate, 1e-6, 1e9)
        return asyncio.ensure_future(self._paced.begin(queue, redrive, rate_per_s=max_rate))

    async def list(self, caller: Caller, queue: QueueName) -> list[PacedRedrive]:
        """Return the paced redrives of a queue that run, wait for a retry, or failed."""
        self._admit(caller, Verb.READ, queue.namespace)
        self._check_queue(queue)
        return await self._paced.unfinished(queue)

    async def cancel(self, caller: Caller, queue: QueueName, id: str) -> None:
        """End a paced redrive. Raise NoSuchRedrive if the queue has none of that id (any more)."""
        self._admit(caller, Redrive.verb, queue.namespace)
        self._check_queue(queue)
        if not await self._background.run(self._paced.cancel(queue, id)):
            raise NoSuchRedrive(f"queue {queue} has no redrive {id!r}: it is finished or cancelled")

    def _check_queue(self, queue: QueueName) -> None:
        if not self._has_queue(queue):
            raise NoSuchQueue(f"there is no queue {queue}")
