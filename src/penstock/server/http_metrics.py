"""Prometheus metrics of the transports: requests and their duration, by route and status.

Requests are counted in plain lists, see `routes.Times`, which become series on request. Routes are
templates (`…/queues/{queue}/lease`), never paths, so the number of series is bounded.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.model import NS
from penstock.server.routes import BUCKETS_S, Times

REFUSED_ROUTE = "refused"  # requests refused before a route was found


class HttpMetrics:
    """The series of one server."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        connections: Callable[[], int],
        held_bytes: Callable[[], int],
    ) -> None:
        self._times: dict[tuple[str, str, int], Times] = {}
        self._connections = connections
        self._held_bytes = held_bytes
        registry.register(self)

    def answered(self, route: str, method: str, status: int, took_ns: int) -> None:
        """Count an answered request."""
        self.times(route, method, status).add(took_ns)

    def times(self, route: str, method: str, status: int) -> Times:
        """Return where the requests of a route with this method and status are counted."""
        times = self._times.get((route, method, status))
        if times is None:
            times = self._times[route, method, status] = Times()
        return times

    def totals(self) -> Iterator[tuple[str, str, int, int, float]]:
        """Return (route, method, status, requests, total seconds), sorted."""
        for (route, method, status), times in sorted(self._times.items()):
            yield route, method, status, sum(times.counts), times.total_ns / NS

    def collect(self) -> Iterable[Metric]:
        """Return the series, for the registry."""
        requests = CounterMetricFamily(
            "penstock_http_requests",
            "HTTP requests answered, by route and status.",
            labels=["route", "method", "status"],
        )
        by_route: dict[str, list[Times]] = {}
        for (route, method, status), times in sorted(self._times.items()):
            requests.add_metric([route, method, str(status)], sum(times.counts))
            by_route.setdefault(route, []).append(times)
        yield requests
        seconds = HistogramMetricFamily(
            "penstock_http_request_seconds",
            "Time from the end of a request to its answer; a long poll counts its waiting.",
            labels=["route"],
        )
        for route, all_times in by_route.items():
            add_times(seconds, route, all_times)
        yield seconds
        yield GaugeMetricFamily(
            "penstock_http_connections", "Open HTTP and WebSocket connections.", self._connections()
        )
        yield GaugeMetricFamily(
            "penstock_http_held_bytes",
            "Bytes of requests and answers in memory, of all connections.",
            self._held_bytes(),
        )


def add_times(histogram: HistogramMetricFamily, label: str, times: Sequence[Times]) -> None:
    """Add the sum of some times to a histogram with one label."""
    buckets, so_far = [], 0
    counts = map(sum, zip(*(one.counts for one in times), strict=True))
    for bucket, count in zip((*BUCKETS_S, float("inf")), counts, strict=True):
        so_far += count
        buckets.append(("+Inf" if bucket == float("inf") else str(bucket), so_far))
    histogram.add_metric([label], buckets, sum(one.total_ns for one in times) / NS)
