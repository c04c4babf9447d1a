"""Workloads of the benchmark of scale. Each runs in its own process with its own Spark session."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Thread
from time import monotonic, time_ns
from typing import Any

from measure import Figures
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from spark_running import queue_frame, run_workloads, start_session, to_noop
from spark_timing import Passes, timed_in_turn, tree_memory_mib

import penstock
from penstock.archive import open_archive
from penstock.spark import jobs
from penstock.spark import read as read_range

_BATCH = 1000
_ENTRY_BYTES = 126  # of a message of 100 bytes
_RANGES = 10
_MANY = 100_000  # messages: enough that the last segment, which has room to grow, is a small part
_WARM_S = 15  # of a stream, whose latencies do not count
_MB = 1 << 20


# -- making what is read ---------------------------------------------------------------------------


def fill_queue(directory: str, count: int, segments: int = 0) -> Figures:
    """A queue of plain messages of 100 bytes, in a number of segments."""
    root = Path(directory)
    root.mkdir(parents=True)
    random = Random(1)
    pool = [random.randbytes(50).hex().encode() for _ in range(50_000)]
    settings: dict[str, Any] = {}
    if segments:
        settings["segment_bytes"] = max(count * _ENTRY_BYTES // segments, 1 << 16)
    with _open(root / "queue", **settings) as queue:
        for start in range(0, count, _BATCH):
            at = start % (len(pool) - _BATCH)
            queue.enqueue_batch(pool[at : at + min(_BATCH, count - start)])
    return {}


def fill_archive(directory: str, count: int, segments: int) -> Figures:
    """The same, archived."""
    fill_queue(directory, count, segments)
    root = Path(directory)
    (result,) = jobs.archive(start_session(), str(root / "queue"), str(root / "archive"))
    assert result.rows >= count * 0.9
    return {}


def fill_orders(directory: str, count: int) -> Figures:
    """Orders as JSON of about 1 KB: in a queue, in a compressed queue, and as Parquet with zstd."""
    root = Path(directory)
    root.mkdir(parents=True)
    random = Random(1)
    rest = [_order(random) for _ in range(5_000)]
    for name, compression in (("queue", "none"), ("zstd", "zstd")):
        with _open(root / name, compression=compression) as queue:
            for start in range(0, count, _BATCH):
                numbers = range(start, min(start + _BATCH, count))
                # Distinct, as orders are: Parquet stores equal ones only once.
                queue.enqueue_batch([b'{"order": %d, %b' % (n, rest[n % 5_000]) for n in numbers])
    sizes = [
        sum(file.stat().st_blocks * 512 for file in (root / name / "messages").glob("*.log"))
        for name in ("queue", "zstd")
    ]
    assert count < _MANY or sizes[1] < sizes[0] / 2, sizes
    spark = start_session()
    plain = queue_frame(spark, root)
    plain.write.option("compression", "zstd").parquet(str(root / "parquet"))
    return {}


def _order(random: Random) -> bytes:
    items = [
        {"sku": f"sku-{random.randrange(5000)}", "quantity": random.randrange(9)} for _ in range(30)
    ]
    text = json.dumps({"customer": random.randrange(10**6), "items": items})
    return text.removeprefix("{").encode()


def _open(path: Path, **settings: Any) -> penstock.Queue:
    return penstock.open(str(path), sync="never", auto_compact=False, **settings)


# -- what is timed ---------------------------------------------------------------------------------


def archive_range(directory: str) -> Figures:
    """All of an archive, and ten ranges of 1 % by time: what share of its time one takes."""
    archive, spark = Path(directory) / "archive", start_session()
    (manifest,) = open_archive(str(archive)).manifests()
    first, last = manifest.files[0].first_ns, manifest.files[-1].last_ns

    def at(share: float) -> datetime:
        return datetime.fromtimestamp(0, UTC) + timedelta(
            microseconds=(first + int((last - first) * share)) // 1000
        )

    def part(number: int) -> DataFrame:
        start = (number + 0.5) / _RANGES
        return jobs.archived(spark, str(archive), since=at(start), until=at(start + 0.01))

    counts = [part(number).count() for number in range(_RANGES)]
    assert 0.05 < sum(counts) / manifest.rows / (_RANGES * 0.01) < 5, counts

    def some() -> None:
        for number in range(_RANGES):
            to_noop(part(number))

    found = timed_in_turn(
        {
            "all": Passes(manifest.rows, lambda: to_noop(jobs.archived(spark, str(archive)))),
            "some": Passes(manifest.rows * _RANGES, some),
        }
    )
    whole = found["all"]
    return {**whole, "share": whole["rate"] / found["some"]["rate"]}


def first_rows(directory: str, count: int, cores: int = 2) -> Passes:
    """The first rows of a queue, three columns, to the noop sink."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    path, spark = Path(directory) / "queue", start_session(cores)
    columns = ["seq", "timestamp", "payload"]

    def frame() -> DataFrame:
        return read_range(spark, path, columns=columns, end_seq=count + 1)

    assert frame().count() == count
    return Passes(count, lambda: to_noop(frame()))


def orders(directory: str, of: str) -> Passes:
    """The largest payload and the number of bytes by ten groups."""
    root, spark = Path(directory), start_session()

    def frame() -> DataFrame:
        if of == "parquet":
            return spark.read.parquet(str(root / of)).select("seq", "timestamp", "payload")
        return read_range(spark, root / of, columns="seq,timestamp,payload")

    def query() -> list[Any]:
        keys = frame().groupBy((f.col("seq") % 10).alias("k"))
        found = keys.agg(f.max("payload"), f.sum(f.length("payload")), f.max("timestamp"))
        return found.collect()

    assert len(query()) == 10
    return Passes(frame().count(), query)


# -- a steady stream -------------------------------------------------------------------------------


def steady(directory: str, per_s: int, seconds: int, trigger_ms: int) -> Figures:
    """How long after its append a message is part of a result, while many are published."""
    root, spark = Path(directory), start_session()
    root.mkdir(parents=True)
    _open(root / "queue").close()
    seen: list[tuple[int, int, int]] = []  # time of the result, time of the append, messages
    ready, passed, until_ns = Event(), Event(), [1 << 62]

    def note(frame: DataFrame, _: int) -> None:
        groups = frame.groupBy("timestamp_ns").agg(
            f.count("*").alias("rows"), f.expr("bit_xor(xxhash64(payload))").alias("hash")
        )
        rows = groups.collect()
        now = time_ns()
        seen.extend((now, row["timestamp_ns"], row["rows"]) for row in rows)
        if rows:
            ready.set()
        if any(row["timestamp_ns"] >= until_ns[0] for row in rows):
            passed.set()

    publisher = subprocess.Popen(
        [sys.executable, __file__, "publish", str(root / "queue"), str(per_s)],
        stdin=subprocess.PIPE,
    )
    try:
        query = (
            spark.readStream.format("penstock")
            .option("columns", "seq,timestamp_ns,payload")
            .option("startingOffsets", "latest")
            .load(str(root / "queue"))
            .writeStream.foreachBatch(note)
            .trigger(processingTime=f"{trigger_ms} milliseconds")
            .start()
        )
        assert ready.wait(120), "no message arrived"
        Event().wait(_WARM_S)
        start = time_ns()
        Event().wait(seconds)
        end = until_ns[0] = time_ns()
        assert passed.wait(300), "the stream does not keep up"
        query.stop()
    finally:
        publisher.communicate(b"\n", timeout=60)
    assert publisher.returncode == 0
    counted = [(now - at, rows) for now, at, rows in seen if start <= at < end]
    read = sum(rows for _, rows in counted)
    return {
        "p50_ms": _percentile(counted, 0.5) / 1e6,
        "p99_ms": _percentile(counted, 0.99) / 1e6,
        "share": read / (per_s * (end - start) / 1e9),
    }


def _percentile(weighted: list[tuple[int, int]], share: float) -> float:
    left = share * sum(weight for _, weight in weighted)
    for number, weight in sorted(weighted):
        left -= weight
        if left <= 0:
            return number
    raise ValueError("nothing was counted")


def publish(path: str, per_s: int) -> None:
    """Publish at a steady rate until a line comes, a batch every ten milliseconds."""
    pause, done = 0.01, Event()

    def wait_for_a_line() -> None:
        sys.stdin.readline()
        done.set()

    Thread(target=wait_for_a_line, daemon=True).start()
    payloads = [Random(n).randbytes(50).hex().encode() for n in range(int(per_s * pause))]
    with penstock.open(path, sync="interval", auto_compact=False) as queue:
        start, sent = monotonic(), 0
        while not done.is_set():
            if sent * pause <= monotonic() - start:
                queue.enqueue_batch(payloads)
                sent += 1
            else:
                done.wait(pause / 2)


# -- memory ----------------------------------------------------------------------------------------


def memory(directory: str, of: str, mib: int, heap_mib: int) -> Figures:
    """The peak of resident memory of the JVM and of the largest Python worker."""
    root = Path(directory)
    root.mkdir(parents=True)
    if of != "sink":
        pool = [Random(n).randbytes(_MB) for n in range(4)]
        with _open(root / "queue", max_payload_bytes=2 * _MB) as queue:
            for number in range(mib):
                queue.enqueue(pool[number % len(pool)])
    spark = start_session(settings={"spark.driver.memory": f"{heap_mib}m"})
    {"source": _read_large, "sink": partial(_write_large, mib=mib), "stream": _drain_large}[of](
        spark, root
    )
    found = tree_memory_mib()
    return {"worker_mib": found["python"], "jvm_mib": found["java"]}


def _read_large(spark: SparkSession, root: Path) -> None:
    to_noop(queue_frame(spark, root))


def _write_large(spark: SparkSession, root: Path, mib: int) -> None:
    large = "repeat(sha2(cast(id as string), 256), 16384) as payload"
    frame = spark.range(0, mib, 1, 4).selectExpr(large)
    frame.write.format("penstock").mode("append").save(str(root / "target"))


def _drain_large(spark: SparkSession, root: Path) -> None:
    stream = (
        spark.readStream.format("penstock")
        .option("startingOffsets", "earliest")
        .option("columns", "payload")
        .load(str(root / "queue"))
    )
    writer = stream.writeStream.format("penstock").option("path", str(root / "target"))
    writer = writer.option("checkpointLocation", str(root / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


WORKLOADS: dict[str, Callable[..., Figures | Passes]] = {
    "fill_queue": fill_queue,
    "fill_archive": fill_archive,
    "fill_orders": fill_orders,
    "archive_range": archive_range,
    "first_rows": first_rows,
    "orders": orders,
    "steady": steady,
    "memory": memory,
}

if __name__ == "__main__":
    if sys.argv[1] == "publish":
        publish(sys.argv[2], int(sys.argv[3]))
    else:
        run_workloads(WORKLOADS)
