"""All queues at a glance: totals, and a table that is sorted, filtered and paged.

The counts of a queue come from its owner, which keeps them. Looking opens no queue. They are asked
for at most once a second, for all callers. A queue that no running broker has opened is shown with
what the charts know of it.
"""

import asyncio
import heapq
from asyncio import Future
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from penstock.broker.charts import SERIES, Charts
from penstock.broker.charts.track import levels_of, totals_of
from penstock.broker.store import DatabaseState, Store
from penstock.checking import check_choice, check_whole
from penstock.clock import Clock
from penstock.errors import InvalidInput
from penstock.names import QueueName
from penstock.queue.metrics import Percentiles

MAX_ROWS = 1000
FRESH_S = 1.0
_AT_ONCE = 100  # queues looked at before other calls get their turn
QUEUE_COLUMNS = (
    "name",
    *("ready", "scheduled", "leased", "parked", "blocked", "dead"),
    *("publish_rate", "ack_rate", "fail_rate", "oldest_age_s", "size_bytes"),
)


class QueueSummary(NamedTuple):
    """One queue in the table. Messages are counted in every group that is not done with them."""

    queue: QueueName
    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    parked: int = 0
    dead: int = 0
    oldest_age_s: float = 0.0  # of the messages that are ready
    size_bytes: int = 0
    published: int = 0  # this and the next: since the queue was made
    delivered: int = 0
    acked: int = 0
    failed: int = 0
    dead_lettered: int = 0
    publish_rate: float = 0.0  # messages a second, over the last 10 to 20 seconds
    ack_rate: float = 0.0
    fail_rate: float = 0.0
    groups: int = 1
    paused: bool = False
    blocked: int = 0
    is_known: bool = True  # False: no running broker has opened it; the counts may be old
    spark: Sequence[float | None] = ()  # the last ten minutes of a series of the charts

    @property
    def name(self) -> str:
        """Return the name to sort by."""
        return str(self.queue)


class Position(NamedTuple):
    """Where a page of the table ends: the next one begins after it."""

    value: float | str
    name: str


class QueuePage(NamedTuple):
    """A page of the table of queues."""

    rows: Sequence[QueueSummary]
    next: Position | None  # None: this was the last page
    matched: int  # queues on all pages


class Overview(NamedTuple):
    """All queues that a caller may read, added up."""

    queues: int
    paused: int
    unknown: int  # queues that no running broker has opened
    ready: int
    scheduled: int
    leased: int
    parked: int
    blocked: int
    dead: int
    publish_rate: float
    ack_rate: float
    fail_rate: float
    oldest_age_s: float
    oldest_queue: QueueName | None
    size_bytes: int
    free_bytes: int | None  # of the disk; None: not known
    brokers: int
    trouble: str | None


class StorageState(NamedTuple):
    """The store as a whole."""

    sync: Percentiles  # of the rounds of syncs of this broker since it started
    queues: int
    size_bytes: int
    free_bytes: int | None  # of the disk; None: not known
    trouble: str | None  # why some queue takes no writes
    database: DatabaseState | None  # of a store in PostgreSQL: replication, dead rows


class Overviews:
    """The summaries of all queues of a store, as one of its brokers knows them."""

    def __init__(self, store: Store, clock: Clock, charts: Charts) -> None:
        self._store = store
        self._clock = clock
        self._charts = charts
        self._all: dict[QueueName, QueueSummary] = {}
        self._brokers = 1
        self._free_bytes: int | None = None
        self._looked_ns: int | None = None
        self._looking: Future[None] | None = None

    # -- looking -----------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Ask all brokers of the store, unless that was done a moment ago."""
        if self._looking is None or self._looking.done():
            if self._is_fresh():
                return
            self._looking = asyncio.ensure_future(self._look_now())
            # All callers may be cancelled, and none would retrieve the error.
            self._looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._looking)

    def _is_fresh(self) -> bool:
        if self._looked_ns is None:
            return False
        return self._clock.monotonic_ns() - self._looked_ns < FRESH_S * 1e9

    async def _look_now(self) -> None:
        own, answers, self._free_bytes = await asyncio.gather(
            self._look_here(), self._store.ask_others(["overview"]), self._store.free_bytes()
        )
        found = own
        for answer in answers:
            found |= {one.queue: one for one in map(_unpacked, answer)}
        self._all, self._brokers = found, 1 + len(answers)
        self._looked_ns = self._clock.monotonic_ns()

    async def _look_here(self) -> dict[QueueName, QueueSummary]:
        samples = (await self._store.sample()).queues
        mono_ns = self._clock.monotonic_ns()
        found: dict[QueueName, QueueSummary] = {}
        for number, sample in enumerate(samples, start=1):
            queue, stats = sample.queue, sample.stats
            levels, totals = levels_of(sample), totals_of(stats)
            rates = self._charts.rates(queue, totals, mono_ns)
            found[queue] = QueueSummary(
                queue, *levels, *totals, *rates, len(stats.groups), stats.paused, stats.blocked
            )
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        return found

    async def for_another(self) -> list[list[Any]]:
        """Return the queues of this broker, for another broker."""
        return [[*one.queue, *one[1:-1]] for one in (await self._look_here()).values()]

    async def _known(self, queues: Iterable[QueueName]) -> list[QueueSummary]:
        """Return the summaries of queues, in their order."""
        await self._look()
        found = self._all
        return [found.get(queue) or self._at_rest(queue) for queue in queues]

    def _at_rest(self, queue: QueueName) -> QueueSummary:
        return QueueSummary(queue, *self._charts.last_levels(queue))._replace(is_known=False)

    # -- answering ---------------------------------------------------------------------------------

    async def totals(self, queues: Sequence[QueueName], trouble: str | None) -> Overview:
        """Return the sum over some queues."""
        found = await self._known(queues)
        oldest = max(found, key=lambda one: one.oldest_age_s, default=None)
        return Overview(
            queues=len(found),
            paused=sum([one.paused for one in found]),
            unknown=sum([not one.is_known for one in found]),
            ready=sum([one.ready for one in found]),
            scheduled=sum([one.scheduled for one in found]),
            leased=sum([one.leased for one in found]),
            parked=sum([one.parked for one in found]),
            blocked=sum([one.blocked for one in found]),
            dead=sum([one.dead for one in found]),
            publish_rate=sum([one.publish_rate for one in found]),
            ack_rate=sum([one.ack_rate for one in found]),
            fail_rate=sum([one.fail_rate for one in found]),
            oldest_age_s=0.0 if oldest is None else oldest.oldest_age_s,
            oldest_queue=oldest.queue if oldest is not None and oldest.oldest_age_s else None,
            size_bytes=sum([one.size_bytes for one in found]),
            free_bytes=self._free_bytes,
            brokers=self._brokers,
            trouble=trouble,
        )

    async def page(
        self,
        queues: Iterable[QueueName],
        *,
        text: str,
        sort: str,
        descending: bool,
        after: tuple[float | str, str] | None,
        limit: int,
        spark: str,
    ) -> QueuePage:
        """Return a page of the table of some queues."""
        check_choice("sort", sort, QUEUE_COLUMNS)
        check_whole("limit", limit, 1, MAX_ROWS)
        if spark:
            check_choice("spark", spark, SERIES)
        if after is not None and isinstance(after[0], str) != (sort == "name"):
            raise InvalidInput(f"{after!r} is not a position in a table that is sorted by {sort}")
        wanted = text.casefold()
        matching = [queue for queue in queues if wanted in str(queue).casefold()]
        rows = [
            (Position(getattr(one, sort), one.name), one) for one in await self._known(matching)
        ]
        if after is not None:
            start = Position(*after)
            rows = [row for row in rows if _is_after(row[0], start, descending=descending)]
        choose = heapq.nlargest if descending else heapq.nsmallest
        found = choose(limit + 1, rows, key=lambda row: row[0])
        shown = [
            one._replace(spark=self._charts.spark(one.queue, spark)) if spark else one
            for _, one in found[:limit]
        ]
        last = found[limit - 1][0] if len(found) > limit else None
        return QueuePage(shown, last, len(matching))


def _is_after(row: Any, start: Any, *, descending: bool) -> bool:
    return bool(row < start if descending else row > start)


def _unpacked(parts: Sequence[Any]) -> QueueSummary:
    namespace, name, *others = parts
    return QueueSummary(QueueName(namespace, name), *others)
