"""Write deploy/grafana-dashboard.json and deploy/alerts.yaml from the broker's metrics.

    python scripts/make_monitoring.py

The dashboard has a panel for each metric that the broker and the server export. The alerts are
below; each names metrics and what to do. A test runs this script and compares the files, and checks
that no metric is missing or misspelled.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from grpc import StatusCode
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from penstock.broker.metrics import GROUP_SERIES, QUEUE_SERIES, READER_SERIES, BrokerMetrics
from penstock.broker.store import DatabaseState, StandbyState, TableState
from penstock.server.beanstalk.listener import series as beanstalk_series
from penstock.server.grpc.metrics import GrpcMetrics
from penstock.server.http_metrics import HttpMetrics
from penstock.server.sqs.actions import series as sqs_series

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
DASHBOARD = DEPLOY / "grafana-dashboard.json"
ALERTS = DEPLOY / "alerts.yaml"
JOB = "penstock"
_RATE = "$__rate_interval"


# -- the metrics -----------------------------------------------------------------------------------


class Series(NamedTuple):
    """A metric of the broker or the server."""

    name: str  # of its samples; without suffix for a histogram
    type: str
    help: str
    labels: tuple[str, ...]


def all_series() -> list[Series]:
    """Return every metric that a broker can export, in the order of the page."""
    broker = BrokerMetrics()
    database = DatabaseState(
        "db",
        standbys=[StandbyState("standby", "streaming", "sync", 0, 0)],
        tables=[TableState("message", 0, 0, 0)],
    )
    broker.page([], database)
    http = HttpMetrics(CollectorRegistry(), connections=lambda: 0, held_bytes=lambda: 0)
    http.answered("/", "GET", 200, 1)
    grpc = GrpcMetrics(CollectorRegistry())
    grpc.answered("/penstock.v1.QueueService/Publish", StatusCode.OK, 1)
    tubes = beanstalk_series({"put": 1}, {"NOT_FOUND": 1}, connections=0, reserved=0, waiting=0)
    sqs = sqs_series({"SendMessage": 1}, {"InvalidParameterValue": 1})
    families = [*broker.registry.collect(), *http.collect(), *grpc.collect(), *tubes, *sqs]
    return [_series(family) for family in families]


def _series(family: Metric) -> Series:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = {label for sample in family.samples for label in sample.labels} - {"le"}
    if name in ("penstock_rejected_total", "penstock_webhook_deliveries_total"):
        labels |= {"cause" if "rejected" in name else "outcome"}  # no sample before the first call
    return Series(name, family.type, family.documentation, tuple(sorted(labels)))


# -- the dashboard ---------------------------------------------------------------------------------

ROWS = (  # title, prefixes of the metrics; the first match counts
    ("Database", ("penstock_database_",)),
    ("HTTP", ("penstock_http_",)),
    ("gRPC", ("penstock_grpc_",)),
    ("Beanstalk", ("penstock_beanstalk_",)),
    ("SQS", ("penstock_sqs_",)),
    ("Process", ("process_",)),
    (
        "Broker",
        (
            "penstock_rejected",
            "penstock_commit_",
            "penstock_webhook_",
            "penstock_queues",
            "penstock_writable",
        ),
    ),
    ("Queues", ("penstock_",)),
)
_ORDER = ("Queues", "Broker", "HTTP", "gRPC", "Beanstalk", "SQS", "Process", "Database")
_QUEUE_FILTER = 'namespace=~"$namespace",queue=~"$queue"'


def dashboard() -> dict[str, Any]:
    """Return the dashboard, as Grafana imports it."""
    by_row: dict[str, list[Series]] = {title: [] for title in _ORDER}
    for one in all_series():
        by_row[next(title for title, names in ROWS if one.name.startswith(names))].append(one)
    panels: list[dict[str, Any]] = []
    top = 0
    for title, series in by_row.items():
        panels.append(_row(len(panels) + 1, title, top))
        top += 1
        for number, one in enumerate(series):
            panels.append(_panel(len(panels) + 1, one, number, top))
        top += -(-len(series) // 3) * 7
    return {
        "title": "Penstock",
        "uid": "penstock",
        "tags": ["penstock"],
        "timezone": "browser",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": panels,
    }


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": 24, "h": 1}
    return {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}


def _panel(number: int, series: Series, position: int, top: int) -> dict[str, Any]:
    expression, legend = _query(series)
    place = {"x": position % 3 * 8, "y": top + position // 3 * 7, "w": 8, "h": 7}
    return {
        "id": number,
        "type": "timeseries",
        "title": series.help.rstrip("."),
        "description": series.name,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": _unit(series), "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": expression, "legendFormat": legend}],
    }


def _query(series: Series) -> tuple[str, str]:
    """Return the PromQL of a panel, and the names of its lines."""
    selected = f'job="{JOB}"'
    by_queue = series.name.startswith("penstock_") and series.name in of_queues()
    if by_queue:
        selected += f",{_QUEUE_FILTER}"
    labels = [label for label in of_queues().get(series.name, series.labels) if label != "le"]
    legend = " ".join(f"{{{{{label}}}}}" for label in labels) or "{{instance}}"
    by = ", ".join(labels or ["instance"])
    if series.type == "histogram":
        by = ", ".join(["le", *labels])
        rate = f"sum by ({by}) (rate({series.name}_bucket{{{selected}}}[{_RATE}]))"
        return f"histogram_quantile(0.99, {rate})", ("p99 " + legend).strip()
    if series.type == "counter":
        return f"sum by ({by}) (rate({series.name}{{{selected}}}[{_RATE}]))", legend
    # Every broker of a store shows the same readers.
    largest = "_age_" in series.name or series.name.startswith(("process_", "penstock_reader_"))
    combine = "max" if largest else "sum"
    return f"{combine} by ({by}) ({series.name}{{{selected}}})", legend


def of_queues() -> dict[str, tuple[str, ...]]:
    """Return the labels of the metrics of queues, whose series exist only if there are queues."""
    found = {}
    for tables, labels in (
        (QUEUE_SERIES, ("namespace", "queue")),
        (GROUP_SERIES, ("namespace", "queue", "group")),
        (READER_SERIES, ("namespace", "queue", "reader")),
    ):
        found.update(dict.fromkeys(tables, labels))
    return found


def _unit(series: Series) -> str:
    if series.name in ("process_start_time_seconds", "penstock_reader_reported_seconds"):
        return "dateTimeAsIso"
    if "seconds" in series.name and series.type != "counter":
        return "s"
    if series.name.endswith("_bytes"):
        return "bytes"
    return "ops" if series.type == "counter" else "short"


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    for name, query in (
        ("namespace", "label_values(penstock_published_total, namespace)"),
        ("queue", 'label_values(penstock_published_total{namespace=~"$namespace"}, queue)'),
    ):
        yield {
            "name": name,
            "type": "query",
            "label": name.capitalize(),
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": query,
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "current": {"text": "All", "value": "$__all"},
        }


# -- the alerts ------------------------------------------------------------------------------------


class Alert(NamedTuple):
    """An alert: when it fires, and what to do."""

    name: str
    expr: str
    lasts: str  # before it fires
    severity: str  # "critical": a person must act now; "warning": during the day
    summary: str
    what_to_do: str


_QUEUE = "{{ $labels.namespace }}/{{ $labels.queue }}"
_GROUP = f"{_QUEUE}, group {{{{ $labels.group }}}}"

ALERT_RULES = (
    Alert(
        "PenstockDown",
        f'up{{job="{JOB}"}} == 0',
        "1m",
        "critical",
        "The broker {{ $labels.instance }} does not answer",
        "Look at its log. Check disk and memory: penstock doctor.",
    ),
    Alert(
        "PenstockRestarts",
        f'changes(process_start_time_seconds{{job="{JOB}"}}[15m]) > 2',
        "0m",
        "critical",
        "The broker {{ $labels.instance }} was started {{ $value }} times in 15 minutes",
        "Look for the reason at the end of the log of the former process.",
    ),
    Alert(
        "PenstockDamage",
        "penstock_damaged > 0",
        "0m",
        "critical",
        f"{_QUEUE} has damaged files",
        "Run penstock verify. Check the disk. Restore lost messages from a backup.",
    ),
    Alert(
        "PenstockDiskFull",
        'increase(penstock_rejected_total{cause="disk_full"}[5m]) > 0',
        "0m",
        "critical",
        "The broker {{ $labels.instance }} refuses messages: the disk is full",
        "Free space, compact queues or lower their retention.",
    ),
    Alert(
        "PenstockWritesFail",
        "min by (instance) (penstock_writable) == 0 or sum by (instance) "
        '(increase(penstock_rejected_total{cause="unavailable"}[5m])) > 0',
        "0m",
        "critical",
        "The broker {{ $labels.instance }} cannot write",
        "A sync failed, or the database is away: see /readyz and the log; restart if it persists.",
    ),
    Alert(
        "PenstockMessagesWait",
        "penstock_oldest_ready_age_seconds > 300",
        "5m",
        "warning",
        f"The oldest ready message of {_GROUP} waits for {{{{ $value | humanizeDuration }}}}",
        "Add consumers, or find out why they are slow.",
    ),
    Alert(
        "PenstockNoConsumers",
        "(penstock_ready > 0 and rate(penstock_delivered_total[10m]) == 0)"
        " unless on (namespace, queue) penstock_paused == 1",
        "10m",
        "warning",
        f"No message of {_GROUP} is delivered, and {{{{ $value }}}} are ready",
        "Start consumers, or delete the group if it is not needed: it keeps messages on disk.",
    ),
    Alert(
        "PenstockBacklogGrows",
        "penstock_ready > 1000 and deriv(penstock_ready[30m]) > 0",
        "30m",
        "warning",
        f"The backlog of {_GROUP} grows: {{{{ $value }}}} messages",
        "Add consumers, or publish less.",
    ),
    Alert(
        "PenstockDeadLetters",
        "increase(penstock_dead_lettered_total[10m]) > 0",
        "0m",
        "warning",
        f"{_GROUP} has new dead letters",
        "See the reasons on the dashboard, fix the consumer, then redrive.",
    ),
    Alert(
        "PenstockAttemptsFail",
        "rate(penstock_nacked_total[10m]) + rate(penstock_timed_out_total[10m])"
        " > 0.5 * rate(penstock_delivered_total[10m])",
        "10m",
        "warning",
        f"More than half of the attempts of {_GROUP} fail",
        "Look at the reasons: penstock retries; are leases too short?",
    ),
    Alert(
        "PenstockDedupForgets",
        "increase(penstock_dedup_evicted_total[10m]) > 0",
        "0m",
        "warning",
        f"{_QUEUE} forgets dedup ids before their window ends",
        "Raise dedup_entries or result_entries, or shorten the windows.",
    ),
    Alert(
        "PenstockSlowSync",
        "histogram_quantile(0.99, sum by (instance, le) (rate(penstock_commit_seconds_bucket[5m])))"
        " > 0.25",
        "10m",
        "warning",
        "Syncs of {{ $labels.instance }} take {{ $value | humanizeDuration }} (p99)",
        "Every durable answer waits for it: check the disk (penstock doctor) and its neighbours.",
    ),
    Alert(
        "PenstockServerErrors",
        'sum by (instance) (rate(penstock_http_requests_total{status=~"5.."}[5m]))'
        " > 0.01 * sum by (instance) (rate(penstock_http_requests_total[5m]))",
        "5m",
        "critical",
        "More than 1% of the requests to {{ $labels.instance }} fail",
        "See the log, and the panel of HTTP requests by route.",
    ),
    Alert(
        "PenstockWebhooksFail",
        'sum by (instance) (rate(penstock_webhook_deliveries_total{outcome!="delivered"}[10m]))'
        " > 0.5 * sum by (instance) (rate(penstock_webhook_deliveries_total[10m]))",
        "10m",
        "warning",
        "More than half of the webhook deliveries of {{ $labels.instance }} fail",
        "See the deliveries: penstock webhooks deliveries.",
    ),
    Alert(
        "PenstockOpenFiles",
        f'process_open_fds{{job="{JOB}"}} > 0.8 * process_max_fds{{job="{JOB}"}}',
        "5m",
        "warning",
        "The broker {{ $labels.instance }} has {{ $value }} open files, near its limit",
        "Raise LimitNOFILE in the unit, or lower the number of connections.",
    ),
    Alert(
        "PenstockDatabaseDown",
        "penstock_database_up == 0",
        "1m",
        "critical",
        "The database of {{ $labels.instance }} takes no writes",
        "Check PostgreSQL and its failover.",
    ),
    Alert(
        "PenstockReplicationLag",
        "penstock_database_replication_lag_seconds > 30",
        "5m",
        "warning",
        "Standby {{ $labels.standby }} is {{ $value | humanizeDuration }} behind",
        "Check its disk and network: a failover to it would wait as long.",
    ),
    Alert(
        "PenstockOldSnapshot",
        "penstock_database_oldest_snapshot_seconds > 3600",
        "5m",
        "warning",
        "A transaction has been open for {{ $value | humanizeDuration }}",
        "End it: vacuum removes nothing younger, and tables grow.",
    ),
    Alert(
        "PenstockOutboxRefused",
        "penstock_database_outbox_refused > 0",
        "0m",
        "warning",
        "{{ $value }} rows of the outbox were refused",
        "Read their errors in the table outbox, correct or delete them.",
    ),
)


def alerts() -> dict[str, Any]:
    """Return the rules, as Prometheus reads them."""
    rules = [
        {
            "alert": one.name,
            "expr": one.expr,
            **({"for": one.lasts} if one.lasts != "0m" else {}),
            "labels": {"severity": one.severity},
            "annotations": {"summary": one.summary, "description": one.what_to_do},
        }
        for one in ALERT_RULES
    ]
    return {"groups": [{"name": "penstock", "rules": rules}]}


def written() -> dict[Path, str]:
    """Return the content of both files."""
    head = "# Written by scripts/make_monitoring.py: change that, and run it.\n"
    return {
        DASHBOARD: json.dumps(dashboard(), indent=1) + "\n",
        ALERTS: head + yaml.safe_dump(alerts(), sort_keys=False, width=110, allow_unicode=True),
    }


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
