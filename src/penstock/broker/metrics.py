"""The broker's Prometheus metrics. docs/broker.md lists them; a test compares the two.

The state machine of each queue counts its messages (published, acked, dead, …). The counts are
read from there on request, so they are correct after a restart too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.broker.readers import Reader
from penstock.broker.store import DatabaseState
from penstock.errors import (
    DiskFull,
    InvalidInput,
    KeyRefused,
    LedgerError,
    NotAllowed,
    PenstockError,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    TooManyRequests,
)
from penstock.model import NS, GroupStats, Stats
from penstock.names import QueueName
from penstock.queue.metrics import Histogram as DurationHistogram

MAX_SERIES_QUEUES = 1000  # queues with series of their own

_FSYNC_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 5)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)

CAUSES: tuple[tuple[type[PenstockError], str], ...] = (
    (QueueFull, "queue_full"),
    (RateLimited, "queue_rate"),
    (TooManyRequests, "client_rate"),
    (QuotaExceeded, "quota"),
    (DiskFull, "disk_full"),
    (KeyRefused, "key_refused"),
    (NotAllowed, "not_allowed"),
    (InvalidInput, "invalid"),
    (LedgerError, "unavailable"),
)


def cause_of(error: PenstockError) -> str:
    """Return the cause of a refusal: one of a fixed set of labels."""
    return next((cause for kind, cause in CAUSES if isinstance(error, kind)), "other")


_From = TypeVar("_From", GroupStats, Stats, Reader)


class _Read(NamedTuple, Generic[_From]):
    """A series that is read from the counts of a group or queue, or from the report of a reader."""

    name: str
    help: str
    value: Callable[[_From], float]


_GROUP_COUNTERS: tuple[_Read[GroupStats], ...] = (
    _Read("delivered", "Messages leased or taken, each attempt.", lambda g: g.delivered),
    _Read("acked", "Messages settled well.", lambda g: g.acked),
    _Read("nacked", "Attempts that failed and are tried again.", lambda g: g.nacked),
    _Read("timed_out", "Leases that ran out and are tried again.", lambda g: g.timed_out),
    _Read("dead_lettered", "Messages that became dead letters.", lambda g: g.dead_lettered),
    _Read("redriven", "Dead letters that were made ready again.", lambda g: g.redriven),
    _Read("discarded", "Dead letters that were thrown away.", lambda g: g.discarded),
    _Read("expired", "Messages whose time to live was over.", lambda g: g.expired),
    _Read("cancelled", "Messages that were cancelled.", lambda g: g.cancelled),
)
_GROUP_GAUGES: tuple[_Read[GroupStats], ...] = (
    _Read("ready", "Messages that can be delivered now.", lambda g: g.ready),
    _Read("scheduled", "Messages that are due later.", lambda g: g.scheduled),
    _Read("in_flight", "Messages that are leased now.", lambda g: g.leased),
    _Read("parked", "Messages that wait for another of their key.", lambda g: g.parked),
    _Read("blocked", "Messages that wait for others that they come after.", lambda g: g.blocked),
    _Read("dead", "Dead letters.", lambda g: g.dead),
    _Read("retrying", "Messages that failed and are not given up.", lambda g: g.retrying),
    _Read("read_position", "The lowest seq never handed out.", lambda g: g.read_position),
    _Read(
        "oldest_ready_age_seconds",
        "How long the oldest ready message has waited.",
        lambda g: g.oldest_ready_age_s,
    ),
)


_QUEUE_COUNTERS: tuple[_Read[Stats], ...] = (
    _Read("published", "Messages published.", lambda s: s.published),
    _Read("deduplicated", "Publishes answered with an earlier id.", lambda s: s.deduplicated),
    _Read("dedup_evicted", "Dedup ids forgotten early.", lambda s: s.dedup_evicted),
)
_QUEUE_GAUGES: tuple[_Read[Stats], ...] = (
    _Read("dedup_entries", "Dedup ids remembered now.", lambda s: s.dedup_entries),
    _Read("message_log_bytes", "Bytes of the message log.", lambda s: s.storage.message_log_bytes),
    _Read("event_log_bytes", "Bytes of the event log.", lambda s: s.storage.event_log_bytes),
    _Read("segments", "Segment files.", lambda s: s.storage.segments),
    _Read("damaged", "Damages found since it was opened.", lambda s: s.storage.damaged),
    _Read("paused", "1 if nothing is handed out.", lambda s: s.paused),
)


_READER_GAUGES: tuple[_Read[Reader], ...] = (
    _Read("reader_lag", "Messages that a reader has not read.", lambda r: r.lag),
    _Read("reader_position", "The next seq that a reader reads.", lambda r: r.position),
    _Read(
        "reader_reported_seconds",
        "When a reader reported last, in seconds since 1970.",
        lambda r: r.reported_ns / NS,
    ),
)

# Names of the series that exist only if there are queues, for those who draw them.
QUEUE_SERIES = (
    *(f"penstock_{read.name}_total" for read in _QUEUE_COUNTERS),
    *(f"penstock_{read.name}" for read in _QUEUE_GAUGES),
)
GROUP_SERIES = (
    *(f"penstock_{read.name}_total" for read in _GROUP_COUNTERS),
    *(f"penstock_{read.name}" for read in _GROUP_GAUGES),
)
READER_SERIES = tuple(f"penstock_{read.name}" for read in _READER_GAUGES)


class BrokerMetrics:
    """All series of one broker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._queues: Sequence[tuple[QueueName, Stats]] = ()
        self._database: DatabaseState | None = None
        self._is_writable = True
        self._readers: Sequence[tuple[QueueName, Reader]] = ()
        self.commits = DurationHistogram()  # of rounds of syncs, for percentiles
        self._rejected = Counter(
            "penstock_rejected",
            "Calls that were refused, by cause.",
            ["cause"],
            registry=self.registry,
        )
        self._fsync = Histogram(
            "penstock_commit_seconds",
            "Time of one round of syncs.",
            buckets=_FSYNC_BUCKETS,
            registry=self.registry,
        )
        self._batch = Histogram(
            "penstock_commit_answers",
            "Calls answered by one round of syncs.",
            buckets=_BATCH_BUCKETS,
            registry=self.registry,
        )
        self._webhooks = Counter(
            "penstock_webhook_deliveries",
            "Webhook deliveries, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self.registry.register(self)
        ProcessCollector(registry=self.registry)  # process_…: CPU, memory, files, start

    # -- recording ---------------------------------------------------------------------------------

    def refused(self, error: PenstockError) -> None:
        self._rejected.labels(cause_of(error)).inc()

    def committed(self, seconds: float, answers: int) -> None:
        self._fsync.observe(seconds)
        self._batch.observe(answers)
        self.commits.add(round(seconds * NS))

    def webhook_delivered(self, outcome: str) -> None:
        """Count a delivery. `outcome` must be one of a fixed set."""
        self._webhooks.labels(outcome).inc()

    # -- reading -----------------------------------------------------------------------------------

    def page(
        self,
        queues: Sequence[tuple[QueueName, Stats]],
        database: DatabaseState | None = None,
        readers: Sequence[tuple[QueueName, Reader]] = (),
        *,
        is_writable: bool = True,
    ) -> bytes:
        """Return all series, with the counts of these queues, their readers and the database.

        `is_writable` is False if some queue takes no writes.
        """
        self._queues, self._database, self._readers = queues, database, readers
        self._is_writable = is_writable
        return generate_latest(self.registry)

    @property
    def queues(self) -> Sequence[tuple[QueueName, Stats]]:
        """Return the queues that the page shows: a limited number, to limit the series."""
        return self._queues[:MAX_SERIES_QUEUES]

    def rejections(self, cause: str) -> float:
        """Return the number of calls refused for a cause."""
        samples = (one for metric in self._rejected.collect() for one in metric.samples)
        total = "penstock_rejected_total"
        return sum(
            one.value for one in samples if one.name == total and one.labels["cause"] == cause
        )

    def collect(self) -> Iterable[Metric]:
        """Return the series of the queues, for the registry."""
        shown = self.queues
        for read in _QUEUE_COUNTERS:
            counter = CounterMetricFamily(f"penstock_{read.name}", read.help, labels=_QUEUE)
            for queue, stats in shown:
                counter.add_metric([*queue], read.value(stats))
            yield counter
        for read in _QUEUE_GAUGES:
            gauge = GaugeMetricFamily(f"penstock_{read.name}", read.help, labels=_QUEUE)
            for queue, stats in shown:
                gauge.add_metric([*queue], read.value(stats))
            yield gauge
        yield from self._collect_groups(shown)
        names = {queue for queue, _ in shown}
        for one in _READER_GAUGES:
            lags = GaugeMetricFamily(f"penstock_{one.name}", one.help, labels=_READER)
            for queue, reader in self._readers:
                if queue in names:
                    lags.add_metric([*queue, reader.name], one.value(reader))
            yield lags
        yield GaugeMetricFamily("penstock_queues", "Queues that there are.", len(self._queues))
        yield GaugeMetricFamily(
            "penstock_writable", "1 if every queue takes writes.", float(self._is_writable)
        )
        if self._database is not None:
            yield from _collect_database(self._database)

    def _collect_groups(self, shown: Sequence[tuple[QueueName, Stats]]) -> Iterator[Metric]:
        for read in _GROUP_COUNTERS:
            counter = CounterMetricFamily(f"penstock_{read.name}", read.help, labels=_GROUP)
            for queue, stats in shown:
                for name, group in stats.groups.items():
                    counter.add_metric([*queue, name], read.value(group))
            yield counter
        for read in _GROUP_GAUGES:
            gauge = GaugeMetricFamily(f"penstock_{read.name}", read.help, labels=_GROUP)
            for queue, stats in shown:
                for name, group in stats.groups.items():
                    gauge.add_metric([*queue, name], read.value(group))
            yield gauge


def _collect_database(state: DatabaseState) -> Iterator[Metric]:
    for name, text, value in (
        ("up", "1 if the database takes writes.", float(state.problem is None)),
        ("commits_waiting", "Commits that wait for a standby.", state.commits_waiting),
        (
            "oldest_snapshot_seconds",
            "Age of the oldest transaction with a snapshot: vacuum removes nothing younger.",
            state.oldest_snapshot_s,
        ),
        ("outbox_waiting", "Rows of the outbox to be published.", state.outbox_waiting),
        ("outbox_refused", "Rows of the outbox that were refused.", state.outbox_refused),
    ):
        yield GaugeMetricFamily(f"penstock_database_{name}", text, value)
    lag_s = GaugeMetricFamily(
        "penstock_database_replication_lag_seconds",
        "How far a standby is behind with applying.",
        labels=["standby", "sync_state"],
    )
    lag_bytes = GaugeMetricFamily(
        "penstock_database_replication_lag_bytes",
        "How far a standby is behind with applying.",
        labels=["standby", "sync_state"],
    )
    for standby in state.standbys:
        lag_s.add_metric([standby.name, standby.sync_state], standby.lag_s)
        lag_bytes.add_metric([standby.name, standby.sync_state], standby.lag_bytes)
    live = GaugeMetricFamily("penstock_database_live_rows", "Rows of a table.", labels=_TABLE)
    dead = GaugeMetricFamily(
        "penstock_database_dead_rows", "Rows that vacuum has not removed yet.", labels=_TABLE
    )
    size = GaugeMetricFamily(
        "penstock_database_table_bytes", "Size of a table with its indexes.", labels=_TABLE
    )
    for table in state.tables:
        live.add_metric([table.name], table.live_rows)
        dead.add_metric([table.name], table.dead_rows)
        size.add_metric([table.name], table.size_bytes)
    yield from (lag_s, lag_bytes, live, dead, size)


_TABLE = ["table"]
_QUEUE = ["namespace", "queue"]
_GROUP = ["namespace", "queue", "group"]
_READER = ["namespace", "queue", "reader"]
