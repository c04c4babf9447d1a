"""Messages keep their times, to the nanosecond, and tenants on every way from queue to queue."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, PenstockError
from penstock.model import NS
from penstock.queue import NewMessage, QueueSettings
from penstock.queue.queue import open_queue
from penstock.queue.settings import YEARS_S
from penstock.spark.jobs import archive, redrive, restore, stream
from penstock.spark.sink_rows import RowsToMessages, check_sink_schema
from tests.spark.in_process import rows
from tests.spark.random_queues import SMALL, open_small

KEPT = ("deliver_at_ns", "expires_at_ns", "tenant")
MINUTE = 60.0
NOW_NS, YEARS_NS = 1_800_000_000 * NS, round(YEARS_S * NS)


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(0, NOW_NS + YEARS_NS),
            st.none() | st.integers(1, NOW_NS + 2 * YEARS_NS),
        ),
        min_size=1,
    )
)
def test_nanoseconds_of_rows_are_those_of_messages(
    times: list[tuple[int | None, int | None]],
) -> None:
    columns = {
        "payload": pa.array([b""] * len(times)),
        "deliver_at_ns": pa.array([one for one, _ in times], pa.int64()),
        "expires_at_ns": pa.array([one for _, one in times], pa.int64()),
    }
    made = RowsToMessages(QueueSettings()).messages(pa.record_batch(columns), NOW_NS)
    assert isinstance(made, list)
    found = [(one.deliver_at_ns, one.expires_at_ns) for one in made]
    assert found == [(deliver or 0, expires or 0) for deliver, expires in times]


@pytest.mark.parametrize("column", ["deliver_at_ns", "expires_at_ns"])
def test_nanoseconds_that_are_no_time_are_refused(column: str) -> None:
    schema = StructType().add("payload", "binary")
    check_sink_schema(schema.add(column, "long"))
    with pytest.raises(InvalidInput, match="takes bigint, nanoseconds since 1970"):
        check_sink_schema(StructType().add("payload", "binary").add(column, "timestamp"))
    with pytest.raises(InvalidInput, match=f"both '{column[:-3]}' and '{column}': drop one"):
        check_sink_schema(schema.add(column[:-3], "timestamp"))
    batch = pa.record_batch({"payload": [b""], column: pa.array([-1], pa.int64())})
    with pytest.raises(InvalidInput, match=f"a row's {column} is -1; it must be"):
        RowsToMessages(QueueSettings()).messages(batch, 0)


@pytest.mark.parametrize(("tenant", "said"), [("", "tenant is empty"), ("x" * 1025, "1025 bytes")])
def test_tenants_that_publishing_refuses_are_refused(tenant: str, said: str) -> None:
    check_sink_schema(StructType().add("payload", "binary").add("tenant", "string"))
    batch = pa.record_batch({"payload": [b"", b""], "tenant": ["acme", tenant]})
    with pytest.raises(PenstockError, match=said):
        RowsToMessages(QueueSettings()).messages(batch, 0)


def publish(path: Path, random: Random, count: int) -> list[tuple[Any, ...]]:
    """Publish messages with random times and tenants, and return these."""
    clock = ManualClock(now_s=1_700_000_000.5)
    with open_small(path, clock) as queue:
        for _ in range(count):
            clock.advance(random.randrange(1000) * 1e-9)
            delay, ttl = (random.choice((None, random.random() * MINUTE)) for _ in range(2))
            tenant = random.choice((None, "acme", "größe µ"))
            queue.publish([NewMessage(payload=b"x" * 100, delay=delay, ttl=ttl, tenant=tenant)])
    return kept(path)


def kept(path: Path) -> list[tuple[Any, ...]]:
    found = rows(path, columns=",".join(KEPT))
    return [tuple(row[name] for name in KEPT) for row in found]


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_restored_and_copied_messages_have_exact_times_and_tenants(
    spark: SparkSession, tmp_path: Path
) -> None:
    published = publish(tmp_path / "orders", Random(7), 120)
    assert sum(1 for one in published if (one[0] or 0) % 1000) > 30, "microseconds do not hold it"
    assert {one[2] for one in published} == {None, "acme", "größe µ"}
    archive(spark, str(tmp_path / "orders"), str(tmp_path / "archive"))
    count = restore(spark, str(tmp_path / "archive"), str(tmp_path / "restored"))
    assert count > 50
    assert kept(tmp_path / "restored") == published[:count]
    place = {"checkpoint": str(tmp_path / "checkpoint")}
    orders, copy = str(tmp_path / "orders"), str(tmp_path / "copy")
    stream(spark, orders, copy, to="queue", once=True, **place).awaitTermination()  # type: ignore[arg-type]
    assert kept(tmp_path / "copy") == published


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_changed_dead_letters_expire_when_they_would_have(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, ttls = tmp_path / "orders", (None, 3600.123456789, 3700.000000001)

    def fail_all() -> None:
        with open_queue(str(path), {**SMALL, "max_attempts": 1}) as queue:
            for leased in queue.lease(10):
                queue.nack(leased, "no")

    def expiries() -> list[object]:
        return [expires for _, expires, _ in kept(path)]

    with open_queue(str(path), {**SMALL, "max_attempts": 1}) as queue:
        for ttl in ttls:
            queue.publish([NewMessage(payload=b"x", ttl=ttl, tenant="acme")])
    fail_all()
    before = expiries()
    assert redrive(spark, str(path), transform="encode('y', 'utf-8')").replaced == 3
    assert expiries() == before * 2
    assert [tenant for _, _, tenant in kept(path)] == ["acme"] * 6
    # A function that changes the time, or leaves it out, is followed.
    later = datetime(2200, 1, 1, tzinfo=UTC)

    def changed(to: datetime) -> Callable[[DataFrame], DataFrame]:
        time = f.when(f.col("seq") == 5, f.lit(to)).otherwise(f.col("expires_at"))
        return lambda frame: frame.withColumn("expires_at", time)

    fail_all()
    with pytest.raises(PySparkException, match="an expires_at is not between 1970 and 2262"):
        redrive(spark, str(path), transform=changed(datetime(2300, 1, 1, tzinfo=UTC)))
    assert redrive(spark, str(path), transform=changed(later)).replaced == 3
    assert expiries()[6:] == [None, round(later.timestamp()) * 10**9, before[2]]
    fail_all()
    redrive(spark, str(path), transform=lambda frame: frame.drop("expires_at"))
    assert expiries()[9:] == [None] * 3
