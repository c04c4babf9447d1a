"""Prometheus metrics of gRPC: calls and their duration, by method and status.

Methods are those of the services, or `unknown`, so the number of series is bounded.
"""

from collections.abc import Iterable

from grpc import StatusCode
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.server.http_metrics import add_times
from penstock.server.routes import Times


class GrpcMetrics:
    """The series of one server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = 0  # under way
        self._times: dict[tuple[str, StatusCode], Times] = {}
        registry.register(self)

    def answered(self, method: str, status: StatusCode, took_ns: int) -> None:
        """Count a call that ended."""
        times = self._times.get((method, status))
        if times is None:
            times = self._times[method, status] = Times()
        times.add(took_ns)

    def collect(self) -> Iterable[Metric]:
        """Return the series, for the registry."""
        calls = CounterMetricFamily(
            "penstock_grpc_calls", "gRPC calls that ended.", labels=["method", "status"]
        )
        by_method: dict[str, list[Times]] = {}
        for (method, status), times in sorted(self._times.items(), key=lambda one: str(one[0])):
            calls.add_metric([method, status.name], sum(times.counts))
            by_method.setdefault(method, []).append(times)
        yield calls
        seconds = HistogramMetricFamily(
            "penstock_grpc_call_seconds",
            "Duration of gRPC calls; a long poll or a stream counts its waiting.",
            labels=["method"],
        )
        for method, all_times in by_method.items():
            add_times(seconds, method, all_times)
        yield seconds
        yield GaugeMetricFamily("penstock_grpc_active_calls", "gRPC calls under way.", self.calls)
