"""Workloads of the Spark benchmark. Each runs in its own process with its own Spark session."""

import os
import shutil
from collections.abc import Callable
from datetime import datetime
from mmap import ACCESS_READ, mmap
from pathlib import Path
from random import Random
from statistics import median
from threading import Event, Thread
from time import time_ns
from typing import Any

from measure import Figures
from pyspark.sql import DataFrame, SparkSession
from spark_running import QUEUE, queue_frame, run_workloads, start_session, to_noop
from spark_timing import Passes, timed_in_turn
from spark_tuples import Tuples

import penstock
from penstock import codec
from penstock.queue import NewMessage
from penstock.spark import jobs
from penstock.spark import read as read_range
from penstock.spark.jobs.archive import ARCHIVED_COLUMNS
from penstock.spark.jobs.report import figures as report_figures
from penstock.spark.workers import run_tasks

_PARQUET = "parquet"
_BATCH = 1000
_FULL = 1_000_000  # messages; a quick run has fewer
_TUPLE_FILES = 2  # of sixteen: it is slow
_UNCOUNTED = 60  # messages whose latency is that of a JVM which is not warm yet
_CONTENT = ["count(*)", "sum(seq)", "bit_xor(xxhash64(seq, timestamp, priority, key, payload))"]


# -- making what is read ---------------------------------------------------------------------------


def fill(directory: str, count: int, size: int) -> Figures:
    """A queue of plain messages, and the same rows as Parquet."""
    root = Path(directory)
    root.mkdir(parents=True)
    random = Random(1)
    pool = [random.randbytes(size // 2).hex().encode() for _ in range(50_000)]
    # A quick run has segments to archive too, if they are small.
    segments: dict[str, Any] = {} if count >= _FULL else {"segment_bytes": 1 << 19}
    with penstock.open(str(root / QUEUE), sync="never", auto_compact=False, **segments) as queue:
        for start in range(0, count, _BATCH):
            at = start % (len(pool) - _BATCH)
            queue.enqueue_batch(pool[at : at + min(_BATCH, count - start)])
    spark = start_session()
    queue_frame(spark, root).write.parquet(str(root / _PARQUET))
    same = [
        frame.selectExpr(*_CONTENT).collect()
        for frame in (queue_frame(spark, root), spark.read.parquet(str(root / _PARQUET)))
    ]
    assert same[0] == same[1] and same[0][0][0] == count, same
    return {}


def work(directory: str, events: int) -> Figures:
    """A queue whose messages were leased and acked, some of them after failures; and as Parquet."""
    root = Path(directory)
    root.mkdir(parents=True)
    done = 0
    with penstock.open(
        str(root / QUEUE), sync="never", auto_compact=False, max_attempts=3, backoff_base_s=0
    ) as queue:
        while done < events:
            priority = 8 if done % 20_000 == 0 else 5
            queue.enqueue_batch([NewMessage(payload=b"x" * 20, priority=priority)] * 500)
            for job in queue.lease(500):
                if job.seq % 500 == 0:
                    queue.nack(job, f"reason {job.seq % 7}")
                else:
                    queue.ack(job)
            done += 1000
    spark = start_session()
    for table in ("events", "messages"):
        _report_table(spark, root, table).write.parquet(str(root / table))
    return {}


def _report_table(spark: SparkSession, root: Path, table: str) -> DataFrame:
    columns = {
        "events": "event,group,seq,timestamp,attempt,reason",
        "messages": "seq,timestamp,priority,deliver_at",
    }
    options = {"path": str(root / QUEUE), "table": table, "columns": columns[table]}
    return spark.read.format("penstock").options(**options).load()


# -- what is timed ---------------------------------------------------------------------------------


def read(
    directory: str,
    of: str,
    columns: str = "",
    work: str = "noop",
) -> Passes:
    """All rows, to the noop sink or into an aggregation."""
    root, spark = Path(directory), start_session()

    def frame() -> DataFrame:
        if of == "parquet":
            found = spark.read.parquet(str(root / _PARQUET))
            return found.select(*columns.split(",")) if columns else found
        return queue_frame(spark, root, columns)

    def once() -> None:
        if work == "group":
            found = frame()
            keys = found.groupBy((found.seq % 10).alias("k"))
            assert len(keys.agg({"timestamp": "max", "payload": "max"}).collect()) == 10
        else:
            to_noop(frame())

    return Passes(_count(spark, root), once)


def tuples(directory: str) -> Passes:
    """All default columns of some of the files, by a source that yields tuples."""
    root, spark = Path(directory), start_session()
    spark.dataSource.register(Tuples)
    source = spark.read.format("penstock-tuples").option("files", _TUPLE_FILES)

    def frame() -> DataFrame:
        return source.load(str(root / QUEUE))

    return Passes(frame().count(), lambda: to_noop(frame()))


def narrow(directory: str) -> Figures:
    """The full read, and two of a range of 1 %: what share of its time they take."""
    root, spark = Path(directory), start_session()
    count = _count(spark, root)
    first, last = (
        spark.read.parquet(str(root / _PARQUET)).selectExpr(f"{end}(timestamp)").collect()[0][0]
        for end in ("min", "max")
    )
    middle, part = first + (last - first) / 2, (last - first) / 100

    def by_seq() -> DataFrame:
        first = count // 2 + 1
        return read_range(spark, root / QUEUE, first_seq=first, end_seq=first + count // 100)

    def by_time() -> DataFrame:
        start, end = (at.astimezone() for at in (middle, middle + part))
        return read_range(spark, root / QUEUE, since=start, until=end)

    assert by_seq().count() == count // 100
    assert by_time().count() == _between(spark, root, middle, middle + part)
    found = timed_in_turn(
        {
            "all": Passes(count, lambda: to_noop(queue_frame(spark, root))),
            "seq": Passes(count, lambda: to_noop(by_seq())),
            "time": Passes(count, lambda: to_noop(by_time())),
        }
    )
    whole = found["all"]
    return {**whole, **{by: whole["rate"] / found[by]["rate"] for by in ("seq", "time")}}


def _between(spark: SparkSession, root: Path, start: datetime, end: datetime) -> int:
    found = spark.read.parquet(str(root / _PARQUET))
    return found.where((found.timestamp >= start) & (found.timestamp < end)).count()


def write(directory: str, to: str, count: int) -> Passes:
    """A frame that is in memory, written."""
    root, spark = Path(directory, to), start_session()
    frame = spark.range(0, count, 1, 4).selectExpr(
        "cast(concat(sha2(cast(id as string), 256), substring(sha2(cast(id + 1 as string), 256), "
        "1, 36)) as binary) as payload"
    )
    content = ["count(*)", "bit_xor(xxhash64(payload))"]
    frame = frame.persist()
    wanted = frame.selectExpr(*content).collect()

    def clear() -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        os.sync()  # what an earlier pass left to the system is not this one's to wait for

    def once() -> None:
        frame.write.format(to).mode("append").save(str(root))

    def compare() -> None:
        written = spark.read.format(to).load(str(root))
        assert written.selectExpr(*content).collect() == wanted

    return Passes(count, once, before=clear, after=compare)


def job(directory: str, which: str) -> Passes:
    """Jobs that read whole segments, and what they are compared with."""
    root, spark = Path(directory), start_session()
    count = _count(spark, root)
    path, target = str(root / QUEUE), root / which

    def archive() -> None:
        rows = sum(one.rows for one in jobs.archive(spark, path, str(target)))
        assert count * 0.9 < rows <= count, rows  # all but what is in the segment being written

    def write() -> None:
        frame = queue_frame(spark, root, ",".join(ARCHIVED_COLUMNS))
        frame.write.option("compression", "zstd").parquet(str(target))

    def audit() -> None:
        result = jobs.audit(spark, path)
        assert result.is_sound and result.messages == count

    def checksum() -> None:
        files = [str(file) for file in sorted((root / QUEUE / "messages").glob("*.log"))]
        list(run_tasks(spark, _checksum, files))

    work = {"archive": archive, "write": write, "audit": audit, "checksum": checksum}[which]
    return Passes(count, work, before=lambda: shutil.rmtree(target, ignore_errors=True))


def _checksum(path: str) -> int:
    with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        return codec.crc32c(data)


def figures(directory: str, of: str) -> Passes:
    """The aggregations of the report."""
    root, spark = Path(directory), start_session()
    count = spark.read.parquet(str(root / "events")).count()

    def table(name: str) -> DataFrame:
        if of == "parquet":
            return spark.read.parquet(str(root / name))
        return _report_table(spark, root, name)

    def once() -> None:
        report_figures(table("events").where("group = 'main'"), table("messages"), "q", "main", 60)

    return Passes(count, once)


def drain(directory: str, per_trigger: int) -> Passes:
    """A stream over all that is there, until it has no more."""
    root, spark = Path(directory), start_session()
    count, checkpoint = _count(spark, root), root / "checkpoint"

    def once() -> None:
        query = (
            spark.readStream.format("penstock")
            .option("startingOffsets", "earliest")
            .option("columns", "seq,timestamp,payload")
            .option("maxOffsetsPerTrigger", per_trigger)
            .load(str(root / QUEUE))
            .writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert sum(progress.numInputRows for progress in query.recentProgress) == count

    return Passes(count, once, before=lambda: shutil.rmtree(checkpoint, ignore_errors=True))


def latency(directory: str, count: int, trigger_ms: int) -> Figures:
    """How long after its append a message is seen in foreachBatch."""
    root, spark = Path(directory), start_session()
    seen_ms: list[float] = []
    enough = Event()

    def note(frame: DataFrame, _: int) -> None:
        rows = frame.selectExpr("timestamp_ns").collect()
        now = time_ns()
        seen_ms.extend((now - row.timestamp_ns) / 1e6 for row in rows)
        if len(seen_ms) >= count + _UNCOUNTED:
            enough.set()

    with penstock.open(str(root), sync="interval") as queue:
        query = (
            spark.readStream.format("penstock")
            .option("columns", "seq,timestamp_ns")
            .option("startingOffsets", "latest")
            .load(str(root))
            .writeStream.foreachBatch(note)
            .trigger(processingTime=f"{trigger_ms} milliseconds")
            .start()
        )

        def publish() -> None:
            pause = Event()
            while not enough.is_set():
                queue.enqueue(b"x" * 100)
                pause.wait(0.15)

        publisher = Thread(target=publish)
        publisher.start()
        enough.wait(300)
        enough.set()
        publisher.join()
        query.stop()
    ordered = sorted(seen_ms[_UNCOUNTED:])
    return {"p50_ms": median(ordered), "p99_ms": ordered[int(len(ordered) * 0.99)]}


def _count(spark: SparkSession, root: Path) -> int:
    return spark.read.parquet(str(root / _PARQUET)).count()


WORKLOADS: dict[str, Callable[..., Figures | Passes]] = {
    "fill": fill,
    "work": work,
    "read": read,
    "tuples": tuples,
    "narrow": narrow,
    "write": write,
    "job": job,
    "figures": figures,
    "drain": drain,
    "latency": latency,
}


if __name__ == "__main__":
    run_workloads(WORKLOADS)
