"""The series of RivetQ and EpochQueue under their own names, for the dashboards that read them.

docs/dialects.md lists them; a test compares the two. They are read from what is counted already,
on request. The setting `dialect_metrics` turns them off.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.broker import DEFAULT_NAMESPACE, BrokerMetrics, QueueName
from penstock.model import MAIN_GROUP_NAME, GroupStats, Stats
from penstock.server.http_metrics import HttpMetrics

_Counts = Sequence[tuple[QueueName, Stats]]


class _Alias(NamedTuple):
    """A metric with one series for each queue, from the counts of its group main."""

    name: str
    help: str
    value: Callable[[Stats, GroupStats], float]


_EPOCHQUEUE = (
    _Alias("messages_published", "Messages published.", lambda s, g: s.published),
    _Alias("messages_consumed", "Messages delivered to consumers.", lambda s, g: g.delivered),
    _Alias("messages_acked", "Messages acknowledged.", lambda s, g: g.acked),
    _Alias("messages_nacked", "Attempts that failed.", lambda s, g: g.nacked + g.dead_lettered),
    _Alias(
        "messages_dlq_routed", "Messages that became dead letters.", lambda s, g: g.dead_lettered
    ),
)
_RIVETQ_COUNTERS = (
    _Alias("jobs_enqueued", "Jobs enqueued.", lambda s, g: s.published),
    _Alias("jobs_leased", "Jobs leased.", lambda s, g: g.delivered),
    _Alias("jobs_acked", "Jobs acknowledged.", lambda s, g: g.acked),
    _Alias("jobs_nacked", "Attempts that failed.", lambda s, g: g.nacked + g.dead_lettered),
)
_RIVETQ_GAUGES = (
    _Alias("jobs_ready", "Jobs that wait.", lambda s, g: g.lag - g.leased),
    _Alias("jobs_inflight", "Jobs that are leased.", lambda s, g: g.leased),
    _Alias("jobs_dlq", "Dead jobs.", lambda s, g: g.dead),
)


class DialectMetrics:
    """All metrics of the dialects, for the registry of a server."""

    def __init__(
        self, broker: BrokerMetrics, http: HttpMetrics, *, are_wanted: Callable[[], bool]
    ) -> None:
        self._broker = broker
        self._http = http
        self._are_wanted = are_wanted
        broker.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return the series, for the registry."""
        if not self._are_wanted():
            return
        queues = self._broker.queues
        jobs = [(queue, stats) for queue, stats in queues if queue.namespace == DEFAULT_NAMESPACE]
        for alias in _EPOCHQUEUE:
            yield _filled(
                CounterMetricFamily(
                    f"epochqueue_{alias.name}", alias.help, labels=["namespace", "queue"]
                ),
                alias,
                queues,
                lambda queue: [*queue],
            )
        yield from self._requests()
        for alias in _RIVETQ_COUNTERS:
            yield _filled(
                CounterMetricFamily(f"rivetq_{alias.name}", alias.help, labels=["queue"]),
                alias,
                jobs,
                lambda queue: [queue.name],
            )
        for alias in _RIVETQ_GAUGES:
            yield _filled(
                GaugeMetricFamily(f"rivetq_{alias.name}", alias.help, labels=["queue"]),
                alias,
                jobs,
                lambda queue: [queue.name],
            )
        yield CounterMetricFamily(
            "rivetq_rate_limit_rejections",
            "Jobs refused by a rate limit, of all queues.",
            self._broker.rejections("queue_rate"),
        )
        segments = sum(stats.storage.segments for _, stats in jobs)
        yield GaugeMetricFamily("rivetq_wal_segments", "Segment files.", segments)
        size = sum(stats.storage.log_bytes for _, stats in jobs)
        yield GaugeMetricFamily("rivetq_wal_size_bytes", "Bytes of all logs.", size)

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "epochqueue_http_requests", "HTTP requests.", labels=["method", "path", "status"]
        )
        times: dict[tuple[str, str], tuple[int, float]] = {}
        for route, method, status, count, total_s in self._http.totals():
            requests.add_metric([method, route, str(status)], count)
            so_far, sum_s = times.get((method, route), (0, 0.0))
            times[method, route] = so_far + count, sum_s + total_s
        yield requests
        durations = SummaryMetricFamily(
            "epochqueue_http_request_duration_milliseconds",
            "Time of HTTP requests.",
            labels=["method", "path"],
        )
        for labels, (count, sum_s) in times.items():
            durations.add_metric([*labels], count, sum_s * 1000)
        yield durations


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily,
    alias: _Alias,
    queues: _Counts,
    labels: Callable[[QueueName], list[str]],
) -> Metric:
    for queue, stats in queues:
        family.add_metric(labels(queue), alias.value(stats, stats.groups[MAIN_GROUP_NAME]))
    return family
