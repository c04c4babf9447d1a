"""Report: throughput, waiting times, processing times and failures of a queue, from its events.

One pass over the events gives each attempt: when it was leased, and when and how it ended. The
figures are aggregations of attempts, joined once with the messages for their due times.
"""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from penstock.arrow.locations import QueueLocation, queues_of_job
from penstock.arrow.logs import groups_of
from penstock.arrow.selection import NO_ARCHIVE
from penstock.checking import check_number
from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME, NS
from penstock.spark.archive_stores import archive_of, check_outside, check_place
from penstock.spark.jobs.report_page import page

_ENDS = ("acked", "nacked", "timed_out", "dead", "expired", "released")
_TOP = 10
_PERCENTS = (0.5, 0.95, 0.99)
_MAX_SLA_S = 100 * 365 * 86400


@dataclass(slots=True)
class QueueReport:
    """The figures of one queue; times in seconds."""

    queue: str
    group: str
    sla_s: float
    totals: dict[str, int] = field(default_factory=dict)
    wait_s: dict[str, float | None] = field(default_factory=dict)  # p50, p95, p99, max
    work_s: dict[str, float | None] = field(default_factory=dict)
    by_hour: list[dict[str, Any]] = field(default_factory=list)
    by_priority: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[dict[str, Any]] = field(default_factory=list)
    poison: list[dict[str, Any]] = field(default_factory=list)


def check_report(
    location: str, target: str, queue: str | None, group: str, sla_s: float = 60.0
) -> list[QueueLocation]:
    """Return the queues to report on. Raise if the report cannot be written to the target."""
    check_number("sla_s", sla_s, 0, _MAX_SLA_S)
    queues = queues_of_job(location, queue)
    check_outside("report", target, location)
    check_place(target, writes=False)
    known = {name for one in queues for name in groups_of(one)}
    if group not in known:
        raise InvalidInput(f"there is no group {group!r}; there are {', '.join(sorted(known))}")
    return queues


def report(
    spark: SparkSession,
    path: str,
    target: str,
    *,
    queue: str | None = None,
    group: str = MAIN_GROUP_NAME,
    sla_s: float = 60.0,
) -> list[QueueReport]:
    """Write report.html (one file, for offline use), report.json and by_hour.parquet.

    `target` is a directory or a URL, as for an archive.
    """
    queues = check_report(path, target, queue, group, sla_s)
    store = archive_of(spark, target).store
    reports = [report_of(spark, one, group, sla_s) for one in queues]
    made_at = datetime.fromtimestamp(SystemClock().now_ns() / NS, UTC)
    store.write("report.html", page(reports, made_at).encode())
    everything = {"made_at": made_at.isoformat(), "queues": [asdict(one) for one in reports]}
    store.write("report.json", (json.dumps(everything, indent=1, default=str) + "\n").encode())
    hours = [{"queue": one.queue, **hour} for one in reports for hour in one.by_hour]
    if hours:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(hours), sink)
        store.write("by_hour.parquet", sink.getvalue().to_pybytes())
    return reports


def report_of(spark: SparkSession, queue: QueueLocation, group: str, sla_s: float) -> QueueReport:
    """Return the figures of one queue."""

    def read(table: str, columns: str) -> DataFrame:
        options = {**queue.options(), "table": table, "columns": columns}
        if table == "messages":
            options["archive"] = NO_ARCHIVE  # as the events, which are not archived
        return spark.read.format("penstock").options(**options).load()

    events = read("events", "event,group,seq,timestamp,attempt,reason")
    messages = read("messages", "seq,timestamp,priority,deliver_at")
    return figures(events.where(f.col("group") == group), messages, queue.key, group, sla_s)


def figures(
    events: DataFrame, messages: DataFrame, key: str, group: str, sla_s: float
) -> QueueReport:
    """Return the figures from tables of events and messages."""
    attempts = _attempts(events).persist()
    waits = _waits(attempts, messages).persist()
    try:
        made = QueueReport(key, group, sla_s)
        made.totals = _totals(attempts, waits, messages, sla_s)
        made.wait_s = _spread(waits, "wait_s")
        made.work_s = _spread(attempts.where("work_s is not null"), "work_s")
        made.by_hour = _by_hour(attempts, waits, messages)
        made.by_priority = _by_priority(waits, sla_s)
        made.attempts = _rows(
            attempts.groupBy("seq").agg(f.max("attempt").alias("attempts"))
            .groupBy("attempts").agg(f.count("*").alias("messages")).orderBy("attempts")
        )  # fmt: skip
        made.reasons = _rows(
            attempts.where("outcome in ('nacked', 'dead', 'timed_out')")
            .groupBy("outcome", f.coalesce("reason", f.lit("")).alias("reason"))
            .agg(f.count("*").alias("times"), f.countDistinct("seq").alias("messages"))
            .orderBy(f.desc("times"))
            .limit(_TOP)
        )
        made.poison = _rows(
            attempts.groupBy("seq")
            .agg(
                f.max("attempt").alias("attempts"),
                f.max_by("outcome", "attempt").alias("outcome"),
                f.max_by("reason", "attempt").alias("reason"),
                f.max("ended_at").alias("last"),
            )
            .where("attempts > 1 and outcome != 'acked'")
            .orderBy(f.desc("attempts"), "seq")
            .limit(_TOP)
        )
        return made
    finally:
        attempts.unpersist()
        waits.unpersist()


def _attempts(events: DataFrame) -> DataFrame:
    """Return each attempt: when it was leased, when and how it ended. `taken` is both at once."""
    leased = f.col("event").isin("leased", "taken")
    ended = f.col("event").isin(*_ENDS, "taken")
    made = (
        events.where(leased | ended)
        .groupBy("seq", "attempt")
        .agg(
            f.min(f.when(leased, f.col("timestamp"))).alias("leased_at"),
            f.max(f.when(ended, f.col("timestamp"))).alias("ended_at"),
            f.max_by(
                f.when(f.col("event") == "taken", "acked").otherwise(f.col("event")),
                f.when(ended, f.col("timestamp")),
            ).alias("outcome"),
            f.max("reason").alias("reason"),
        )
    )
    work = f.col("ended_at").cast("double") - f.col("leased_at").cast("double")
    return made.withColumn("work_s", f.when(f.col("outcome").isin(*_ENDS), work))


def _waits(attempts: DataFrame, messages: DataFrame) -> DataFrame:
    """Return the time from when each message was due to its first delivery."""
    first = attempts.where("attempt = 1 and leased_at is not null").select("seq", "leased_at")
    due = f.greatest("timestamp", f.coalesce("deliver_at", "timestamp"))
    wait = f.col("leased_at").cast("double") - due.cast("double")
    return first.join(messages, "seq").select(
        "seq", "priority", "leased_at", f.greatest(wait, f.lit(0.0)).alias("wait_s")
    )


def _totals(
    attempts: DataFrame, waits: DataFrame, messages: DataFrame, sla_s: float
) -> dict[str, int]:
    counted = attempts.agg(
        f.count("*").alias("attempts"),
        *[f.sum((f.col("outcome") == end).cast("long")).alias(end) for end in _ENDS],
    ).collect()[0]
    late = waits.agg(f.sum((f.col("wait_s") > sla_s).cast("long")).alias("late")).collect()[0]
    return {
        "published": messages.count(),
        "attempts": counted.attempts,
        **{end: int(counted[end] or 0) for end in _ENDS},
        "sla_breaches": int(late.late or 0),
    }


def _spread(frame: DataFrame, column: str) -> dict[str, float | None]:
    row = frame.agg(
        f.percentile_approx(column, list(_PERCENTS)).alias("p"), f.max(column).alias("most")
    ).collect()[0]
    if row.p is None:
        return {"p50": None, "p95": None, "p99": None, "max": None}
    return {"p50": row.p[0], "p95": row.p[1], "p99": row.p[2], "max": row.most}


def _by_hour(attempts: DataFrame, waits: DataFrame, messages: DataFrame) -> list[dict[str, Any]]:
    published = messages.groupBy(f.date_trunc("hour", "timestamp").alias("hour")).agg(
        f.count("*").alias("published")
    )
    done = (
        attempts.where("ended_at is not null")
        .groupBy(f.date_trunc("hour", "ended_at").alias("hour"))
        .agg(
            f.sum((f.col("outcome") == "acked").cast("long")).alias("done"),
            f.sum(f.col("outcome").isin("nacked", "timed_out").cast("long")).alias("failed"),
            f.sum((f.col("outcome") == "dead").cast("long")).alias("dead"),
            f.percentile_approx("work_s", 0.5).alias("work_p50"),
            f.percentile_approx("work_s", 0.95).alias("work_p95"),
        )
    )
    waited = waits.groupBy(f.date_trunc("hour", "leased_at").alias("hour")).agg(
        f.percentile_approx("wait_s", 0.5).alias("wait_p50"),
        f.percentile_approx("wait_s", 0.95).alias("wait_p95"),
        f.percentile_approx("wait_s", 0.99).alias("wait_p99"),
        f.max("wait_s").alias("longest_wait"),
    )
    joined = published.join(done, "hour", "full").join(waited, "hour", "full").orderBy("hour")
    return _rows(joined.na.fill(0, ["published", "done", "failed", "dead"]))


def _by_priority(waits: DataFrame, sla_s: float) -> list[dict[str, Any]]:
    return _rows(
        waits.groupBy("priority")
        .agg(
            f.count("*").alias("messages"),
            f.percentile_approx("wait_s", 0.5).alias("wait_p50"),
            f.percentile_approx("wait_s", 0.95).alias("wait_p95"),
            f.percentile_approx("wait_s", 0.99).alias("wait_p99"),
            f.sum((f.col("wait_s") > sla_s).cast("long")).alias("late"),
        )
        .orderBy(f.desc("priority"))
    )


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return rows, with times in UTC: Spark gives local times of the driver."""
    rows: list[Row] = frame.collect()
    return [
        {
            name: value.astimezone(UTC) if isinstance(value, datetime) else value
            for name, value in row.asDict().items()
        }
        for row in rows
    ]
