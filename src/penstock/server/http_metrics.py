# cython: annotation_typing=False
"""Prometheus metrics of the transports: requests and their duration, by route and status.

Requests are counted in plain lists, which become series on request. This costs two additions for
each request; the histogram of prometheus-client costs as much as reading a small body. Routes are
templates (`…/queues/{queue}/lease`), never paths, so the number of series is bounded.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.model import NS

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
_BUCKETS_NS = tuple(round(bucket * NS) for bucket in BUCKETS_S)
REFUSED_ROUTE = "refused"  # requests refused before a route was found
UNKNOWN_ROUTE = "unknown"


class Times:
    """The durations of the requests that one route answered with one status."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS_NS) + 1)
        self.total_ns = 0

    def add(self, took_ns: int) -> None:
        """Count a request."""
        self.counts[bisect_left(_BUCKETS_NS, took_ns)] += 1
        self.total_ns += took_ns


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
            buckets, so_far = [], 0
            counts = map(sum, zip(*(times.counts for times in all_times), strict=True))
            for bucket, count in zip((*BUCKETS_S, float("inf")), counts, strict=True):
                so_far += count
                buckets.append(("+Inf" if bucket == float("inf") else str(bucket), so_far))
            total_ns = sum(times.total_ns for times in all_times)
            seconds.add_metric([route], buckets, total_ns / NS)
        yield seconds
        yield GaugeMetricFamily(
            "penstock_http_connections", "Open HTTP and WebSocket connections.", self._connections()
        )
        yield GaugeMetricFamily(
            "penstock_http_held_bytes",
            "Bytes of requests and answers in memory, of all connections.",
            self._held_bytes(),
        )
