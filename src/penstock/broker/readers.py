"""Readers of a queue's log that lease nothing, such as Spark queries: how far each one is.

A reader reports its position from time to time. The broker computes the lag from the end of the
queue when it is asked, so the lag of a reader that has died grows. A report expires if it is not
repeated. Reports are a document of the store: all of its brokers show them, over restarts too.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.broker.access import Admit, Caller
from penstock.broker.store import Store, update_document
from penstock.checking import check_number, check_whole
from penstock.clock import Clock
from penstock.errors import NoSuchQueue, PenstockError, QuotaExceeded
from penstock.model import NS, Stats
from penstock.names import QueueName, check_name
from penstock.operations import GetStats, Verb
from penstock.operations.operation import MAX_SEQ

log = logging.getLogger("penstock.broker")

DOCUMENT = "readers.json"
MAX_READERS = 1000  # of all queues of the store
MAX_QUEUE_READERS = 50
MIN_EXPIRES_S, DEFAULT_EXPIRES_S, MAX_EXPIRES_S = 10.0, 3600.0, 7 * 86400.0
MAX_RATE_PER_S = 1e12


class Reader(NamedTuple):
    """A reader of a queue, and how far it is behind."""

    name: str
    position: int  # the next seq that it reads
    lag: int  # messages from there to the end of the queue
    rows_per_s: float  # as it reported them
    reported_ns: int
    expires_ns: int


class _Report(msgspec.Struct, frozen=True):
    """What a reader said last."""

    position: int
    rows_per_s: float
    reported_ns: int
    expires_ns: int


_Key = tuple[str, str, str]  # namespace, queue, reader
_Reports = dict[_Key, _Report]
_Row = tuple[str, str, str, _Report]
_Change = Callable[[_Reports], None]


class Readers:
    """The reported readers of a store, as one of its brokers knows them."""

    def __init__(
        self, store: Store, clock: Clock, admit: Admit, has_queue: Callable[[QueueName], bool]
    ) -> None:
        self._store = store
        self._clock = clock
        self._admit = admit
        self._has_queue = has_queue
        self._turn = asyncio.Lock()
        self._changes: list[_Change] = []  # to be written with the next round

    async def report(
        self,
        caller: Caller,
        queue: QueueName,
        name: str,
        position: int,
        *,
        rows_per_s: float = 0.0,
        expires_s: float = DEFAULT_EXPIRES_S,
    ) -> None:
        """Record how far a reader is. It is shown until `expires_s` after its last report."""
        self._admit(caller, Verb.CONSUME, queue.namespace)
        self._check_queue(queue)
        key = (*queue, check_name("reader", name))
        check_whole("position", position, 0, MAX_SEQ)
        check_number("rows_per_s", rows_per_s, 0, MAX_RATE_PER_S)
        check_number("expires_s", expires_s, MIN_EXPIRES_S, MAX_EXPIRES_S)
        now_ns = self._clock.now_ns()
        made = _Report(position, float(rows_per_s), now_ns, now_ns + round(expires_s * NS))
        refused: list[QuotaExceeded] = []

        def add(reports: _Reports) -> None:
            refused.clear()  # it may be called again
            error = None if key in reports else _over_limit(reports, queue)
            if error is None:
                reports[key] = made
            else:
                refused.append(error)

        await self._change(add)
        if refused:
            raise refused[0]

    async def forget(self, caller: Caller, queue: QueueName, name: str) -> None:
        """Remove the report of a reader that has ended. Do nothing if there is none."""
        self._admit(caller, Verb.CONSUME, queue.namespace)
        self._check_queue(queue)
        key = (*queue, check_name("reader", name))

        def remove(reports: _Reports) -> None:
            reports.pop(key, None)

        await self._change(remove)

    async def of_queue(self, caller: Caller, queue: QueueName) -> list[Reader]:
        """Return the readers of a queue, those with most lag first."""
        self._admit(caller, Verb.READ, queue.namespace)
        stats = await self._store.run(queue, GetStats())
        reports = await self._reports()
        found = [
            _reader(key[2], report, stats)
            for key, report in reports.items()
            if key[:2] == (*queue,)
        ]
        return sorted(found, key=lambda one: (-one.lag, one.name))

    async def of_all(
        self, queues: Sequence[tuple[QueueName, Stats]]
    ) -> list[tuple[QueueName, Reader]]:
        """Return the readers of these queues, for the metrics. None if they cannot be read."""
        counts: Mapping[QueueName, Stats] = dict(queues)
        try:
            reports = await self._reports()
        except (PenstockError, OSError) as error:
            log.warning("readers are not shown: %s", error)
            return []
        return [
            (queue, _reader(name, report, counts[queue]))
            for (namespace, short, name), report in sorted(reports.items())
            if (queue := QueueName(namespace, short)) in counts
        ]

    async def queue_deleted(self, queue: QueueName) -> None:
        """Remove the readers of a deleted queue. For `Broker.on_deleted`."""

        def remove(reports: _Reports) -> None:
            for key in [key for key in reports if key[:2] == (*queue,)]:
                del reports[key]

        try:
            if any(key[:2] == (*queue,) for key in await self._reports()):
                await self._change(remove)
        except (PenstockError, OSError) as error:
            log.warning("readers of %s, which is deleted, are not removed: %s", queue, error)

    def _check_queue(self, queue: QueueName) -> None:
        if not self._has_queue(queue):
            raise NoSuchQueue(f"there is no queue {queue}")

    # -- the document ------------------------------------------------------------------------------

    async def _reports(self) -> _Reports:
        return _load(await self._store.load_document(DOCUMENT), self._clock.now_ns())

    async def _change(self, change: _Change) -> None:
        """Make a change, durably. Changes that arrive during a write are written together."""
        self._changes.append(change)
        async with self._turn:
            if change not in self._changes:
                return  # written by the round before
            changes, self._changes = self._changes, []

            def changed(document: bytes | None) -> bytes | None:
                reports = _load(document, self._clock.now_ns())
                for one in changes:
                    one(reports)
                rows: list[_Row] = [(*key, report) for key, report in sorted(reports.items())]
                return msgspec.json.encode(rows) if rows else None

            try:
                await update_document(self._store, DOCUMENT, changed)
            except BaseException:
                # The others wait for their turn, and try again.
                self._changes[:0] = [one for one in changes if one is not change]
                raise


def _over_limit(reports: _Reports, queue: QueueName) -> QuotaExceeded | None:
    of_queue = sum(key[:2] == (*queue,) for key in reports)
    if of_queue >= MAX_QUEUE_READERS:
        return QuotaExceeded(
            f"queue {queue} has {MAX_QUEUE_READERS} readers that report: let some expire, or "
            f"remove some"
        )
    if len(reports) >= MAX_READERS:
        return QuotaExceeded(
            f"{MAX_READERS} readers report to this broker: let some expire, or remove some"
        )
    return None


def _reader(name: str, report: _Report, stats: Stats) -> Reader:
    # What retention removed before it was read is lost, not behind.
    lag = max(stats.next_seq - max(report.position, stats.first_seq), 0)
    return Reader(
        name, report.position, lag, report.rows_per_s, report.reported_ns, report.expires_ns
    )


def _load(document: bytes | None, now_ns: int) -> _Reports:
    """Return the reports that have not expired. What cannot be read is replaced by new reports."""
    try:
        rows = msgspec.json.decode(document, type=list[_Row]) if document else []
    except msgspec.DecodeError as error:
        log.error("%s is damaged: readers are unknown until they report again: %s", DOCUMENT, error)
        rows = []
    return {
        (namespace, queue, name): report
        for namespace, queue, name, report in rows
        if report.expires_ns > now_ns
    }
