"""The broker's calls that look at many queues: overview, table, charts, storage, metrics."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from penstock.broker.access import Caller
from penstock.broker.charts import Chart, Charts
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.overview import Overview, Overviews, QueuePage, StorageState
from penstock.broker.readers import Readers
from penstock.broker.store import Store
from penstock.checking import check_number, check_whole
from penstock.clock import Clock
from penstock.errors import NoSuchQueue, PenstockError
from penstock.model import NS, Stats
from penstock.names import QueueName
from penstock.operations import MAX_TIME_S, GetStats, Verb

_AT_ONCE = 50  # queues looked at without a break
MAX_POINTS = 2000  # of a chart


class _Surveyed(Protocol):
    """What a survey needs of the broker."""

    store: Store
    clock: Clock
    charts: Charts
    metrics: BrokerMetrics
    readers: Readers

    @property
    def trouble(self) -> str | None: ...
    def admit(self, caller: Caller, verb: Verb, namespace: str | None) -> None: ...
    def has_queue(self, queue: QueueName) -> bool: ...
    def every_queue(self) -> Sequence[QueueName]: ...
    def queues(self, caller: Caller, namespace: str | None = None) -> list[QueueName]: ...


class Survey:
    """All queues of a broker at a glance. Except for `metrics_page`, it opens no queue."""

    def __init__(self, broker: _Surveyed, overviews: Overviews) -> None:
        self._broker = broker
        self._overviews = overviews

    async def overview(self, caller: Caller, namespace: str | None = None) -> Overview:
        """Return the sum over the queues that the caller may read."""
        queues = self._broker.queues(caller, namespace)
        return await self._overviews.totals(queues, self._broker.trouble)

    async def queues(
        self,
        caller: Caller,
        namespace: str | None = None,
        *,
        text: str = "",
        sort: str = "name",
        descending: bool = False,
        after: tuple[float | str, str] | None = None,
        limit: int = 50,
        spark: str = "",
    ) -> QueuePage:
        """Return a page of the queues that the caller may read, with their counts.

        `text` is a part of the name. `sort` is one of `QUEUE_COLUMNS`. `after` is the `next` of the
        page before. `spark` is a series of the charts.
        """
        return await self._overviews.page(
            self._broker.queues(caller, namespace),
            text=text,
            sort=sort,
            descending=descending,
            after=after,
            limit=limit,
            spark=spark,
        )

    async def chart(
        self,
        caller: Caller,
        queue: QueueName | None = None,
        *,
        since: float | None = None,
        until: float | None = None,
        max_points: int = 720,
    ) -> Chart:
        """Return the history of a queue, or of all queues; of the last hour by default."""
        broker = self._broker
        broker.admit(caller, Verb.READ, None if queue is None else queue.namespace)
        if queue is not None and not broker.has_queue(queue):
            raise NoSuchQueue(f"there is no queue {queue}")
        now_s = broker.clock.now_ns() / NS
        check_whole("max_points", max_points, 1, MAX_POINTS)
        since = now_s - 3600 if since is None else check_number("since", since, 0, MAX_TIME_S)
        until = now_s if until is None else check_number("until", until, 0, MAX_TIME_S)
        return await broker.charts.read(queue, since, until, max_points)

    async def storage(self, caller: Caller) -> StorageState:
        """Return how long syncs take, and how much room the store uses and has."""
        broker = self._broker
        broker.admit(caller, Verb.READ, None)
        sizes = await self._overviews.totals(broker.every_queue(), broker.trouble)
        return StorageState(
            broker.metrics.commits.percentiles(),
            sizes.queues,
            sizes.size_bytes,
            sizes.free_bytes,
            broker.trouble,
            await broker.store.database_state(),
        )

    async def metrics_page(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        broker = self._broker
        found: list[tuple[QueueName, Stats]] = []
        for number, queue in enumerate(broker.every_queue(), start=1):
            try:
                found.append((queue, await broker.store.run(queue, GetStats())))
            except (PenstockError, OSError):
                continue
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        readers = await broker.readers.of_all(found)
        database = await broker.store.database_state()
        is_writable = broker.trouble is None
        return await asyncio.to_thread(
            broker.metrics.page, found, database, readers, is_writable=is_writable
        )
