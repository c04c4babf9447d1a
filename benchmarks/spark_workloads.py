"""What the Spark benchmark times; one workload a process, each with a Spark of its own."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import median
from threading import Event, Thread
from time import perf_counter, time_ns
from typing import Any

from measure import OTHERS, Figures, settle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import penstock
from penstock import codec
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.queue import NewMessage
from penstock.spark import jobs, session
from penstock.spark.jobs.archive import ARCHIVED_COLUMNS
from penstock.spark.jobs.report import figures as report_figures
from penstock.spark.tasks import run_tasks

_QUEUE, _PARQUET = "queue", "parquet"
_BATCH = 1000
_TICK = os.sysconf("SC_CLK_TCK")


# -- making what is read ---------------------------------------------------------------------------


def fill(directory: str, count: int, size: int) -> Figures:
    """A queue of plain messages, and the same rows as Parquet."""
    root = Path(directory)
    root.mkdir(parents=True)
    random = Random(1)
    pool = [random.randbytes(size // 2).hex().encode() for _ in range(50_000)]
    with penstock.open(str(root / _QUEUE), sync="never", auto_compact=False) as queue:
        for start in range(0, count, _BATCH):
            at = start % (len(pool) - _BATCH)
            queue.enqueue_batch(pool[at : at + min(_BATCH, count - start)])
    spark = _session()
    _queue(spark, root).write.parquet(str(root / _PARQUET))
    return {}


def work(directory: str, events: int) -> Figures:
    """A queue whose messages were leased and acked, some of them after failures; and as Parquet."""
    root = Path(directory)
    root.mkdir(parents=True)
    done = 0
    with penstock.open(
        str(root / _QUEUE), sync="never", auto_compact=False, max_attempts=3, backoff_base_s=0
    ) as queue:
        while done < events:
            queue.enqueue_batch(
                [NewMessage(payload=b"x" * 20, priority=n % 3 * 4) for n in range(500)]
            )
            for job in queue.lease(500):
                if job.seq % 50 == 0:
                    queue.nack(job, f"reason {job.seq % 7}")
                else:
                    queue.ack(job)
            done += 1000
    spark = _session()
    for table in ("events", "messages"):
        _report_table(spark, root, table).write.parquet(str(root / table))
    return {}


def _report_table(spark: SparkSession, root: Path, table: str) -> DataFrame:
    columns = {
        "events": "event,group,seq,timestamp,attempt,reason",
        "messages": "seq,timestamp,priority,deliver_at",
    }
    options = {"path": str(root / _QUEUE), "table": table, "columns": columns[table]}
    return spark.read.format("penstock").options(**options).load()


# -- what is timed ---------------------------------------------------------------------------------


def read(directory: str, of: str, columns: str = "", work: str = "noop", cores: int = 2) -> Figures:
    """All rows, or a part of them, to the noop sink or into an aggregation."""
    root, spark = Path(directory), _session(cores)
    spark.dataSource.register(Tuples)

    def frame() -> DataFrame:
        if of == "parquet":
            found = spark.read.parquet(str(root / _PARQUET))
            return found.select(*columns.split(",")) if columns else found
        if of == "tuples":
            return spark.read.format("penstock-tuples").load(str(root / _QUEUE))
        return _queue(spark, root, columns)

    count = spark.read.parquet(str(root / _PARQUET)).count()
    span = spark.read.parquet(str(root / _PARQUET)).selectExpr(
        "min(timestamp)", "max(timestamp)"
    ).collect()[0]  # fmt: skip
    middle = span[0] + (span[1] - span[0]) / 2
    chosen: dict[str, Callable[[DataFrame], DataFrame]] = {
        "seq": lambda f: f.where(f"seq > {count // 2} and seq <= {count // 2 + count // 100}"),
        "time": lambda f: f.where(
            (f.timestamp >= middle) & (f.timestamp < middle + (span[1] - span[0]) / 100)
        ),
        "eighth": lambda f: f.where(f"seq <= {count // 8}"),
    }
    rows = count // 8 if work == "eighth" else count

    def once() -> None:
        found = chosen[work](frame()) if work in chosen else frame()
        if work == "group":
            found.groupBy((found.seq % 10).alias("k")).agg(
                {"timestamp": "max", "payload": "max"}
            ).collect()
        else:
            found.write.format("noop").mode("overwrite").save()

    return _timed(rows, once)


def write(directory: str, to: str, count: int) -> Figures:
    """A frame that is in memory, written."""
    root, spark = Path(directory), _session()
    frame = spark.range(0, count, 1, 4).selectExpr(
        "cast(concat(sha2(cast(id as string), 256), substring(sha2(cast(id + 1 as string), 256), "
        "1, 36)) as binary) as payload"
    )
    frame = frame.persist()
    frame.count()

    def once() -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(exist_ok=True)
        if to == "penstock":
            frame.write.format("penstock").mode("append").save(str(root))
        else:
            frame.write.parquet(str(root))

    return _timed(count, once)


def job(directory: str, which: str) -> Figures:
    """Jobs that read whole segments, and what they are compared with."""
    root, spark = Path(directory), _session()
    count = spark.read.parquet(str(root / _PARQUET)).count()
    path, target = str(root / _QUEUE), root / "out"

    def once() -> None:
        shutil.rmtree(target, ignore_errors=True)
        if which == "archive":
            jobs.archive(spark, path, str(target))
        elif which == "write":
            frame = _queue(spark, root, ",".join(ARCHIVED_COLUMNS))
            frame.write.option("compression", "zstd").parquet(str(target))
        elif which == "audit":
            assert jobs.audit(spark, path).is_sound
        else:
            files = [str(file) for file in sorted((root / _QUEUE / "messages").glob("*.log"))]
            list(run_tasks(spark, _checksum, files))

    return _timed(count, once)


def _checksum(path: str) -> int:
    return codec.crc32c(Path(path).read_bytes())


def figures(directory: str, of: str) -> Figures:
    """The aggregations of the report."""
    root, spark = Path(directory), _session()
    count = spark.read.parquet(str(root / "events")).count()

    def table(name: str) -> DataFrame:
        if of == "parquet":
            return spark.read.parquet(str(root / name))
        return _report_table(spark, root, name)

    def once() -> None:
        report_figures(table("events").where("group = 'main'"), table("messages"), "q", "main", 60)

    return _timed(count, once)


def drain(directory: str, per_trigger: int) -> Figures:
    """A stream over all that is there, until it has no more."""
    root, spark = Path(directory), _session()
    count = spark.read.parquet(str(root / _PARQUET)).count()

    def once() -> None:
        checkpoint = root / "checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        (
            spark.readStream.format("penstock")
            .option("startingOffsets", "earliest")
            .option("columns", "seq,timestamp,payload")
            .option("maxOffsetsPerTrigger", per_trigger)
            .load(str(root / _QUEUE))
            .writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    return _timed(count, once)


def latency(directory: str, count: int, trigger_ms: int) -> Figures:
    """How long after its append a message is seen in foreachBatch."""
    root, spark = Path(directory), _session()
    seen_ms: list[float] = []
    enough = Event()

    def note(frame: DataFrame, _: int) -> None:
        rows = frame.selectExpr("timestamp_ns").collect()
        now = time_ns()
        seen_ms.extend((now - row.timestamp_ns) / 1e6 for row in rows)
        if len(seen_ms) >= count + 20:
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
    ordered = sorted(seen_ms[20:])  # the first batches warm up
    return {"p50_ms": median(ordered), "p99_ms": ordered[int(len(ordered) * 0.99)]}


# -- how it is timed -------------------------------------------------------------------------------


def _timed(count: int, once: Callable[[], Any]) -> Figures:
    """Once to warm up, once for the figures."""
    once()
    start, cpu_s = perf_counter(), _tree_cpu_s()
    once()
    wall_s, cpu_s = perf_counter() - start, _tree_cpu_s() - cpu_s
    by_cpu = os.environ.get("BENCH_BY") == "cpu"
    return {"rate": count / (cpu_s if by_cpu else wall_s), "wall_s": wall_s, "cpu_s": cpu_s}


def _tree_cpu_s() -> float:
    """The processor time of this process and all that it started: the JVM, and Python workers."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        number = int(place.parent.name)
        parents[number] = int(fields[1])
        used[number] = sum(map(int, fields[11:15])) / _TICK  # own, and of ended children
    return sum(spent for number, spent in used.items() if _is_ours(number, parents))


def _is_ours(number: int, parents: dict[int, int]) -> bool:
    while number > 1:
        if number == os.getpid():
            return True
        number = parents.get(number, 0)
    return False


def _session(cores: int = 2) -> SparkSession:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = session(
        f"local[{cores}]",
        settings={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "4g",
            "spark.sql.shuffle.partitions": "4",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _queue(spark: SparkSession, root: Path, columns: str = "") -> DataFrame:
    reader = spark.read.format("penstock")
    if columns:
        reader = reader.option("columns", columns)
    return reader.load(str(root / _QUEUE))


class Tuples(DataSource):
    """The same files by the plainest source there can be: a tuple for each entry."""

    @classmethod
    def name(cls) -> str:
        return "penstock-tuples"

    def schema(self) -> str:
        return "seq bigint, timestamp bigint, priority int, key string, payload binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TupleReader(self.options["path"])


class _TupleReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(f)) for f in sorted(Path(self._path, "messages").glob("*.log"))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        data, offset = Path(partition.value).read_bytes(), HEADER_BYTES
        while True:
            entries, offset = codec.read_entries(data, offset, len(data), max_count=1000)
            if not entries:
                return
            for entry in entries:
                yield entry.seq, entry.timestamp_ns, entry.priority, None, entry.payload


WORKLOADS: dict[str, Callable[..., Figures]] = {
    "fill": fill,
    "work": work,
    "read": read,
    "write": write,
    "job": job,
    "figures": figures,
    "drain": drain,
    "latency": latency,
}


def _main() -> None:
    """As `measure.run_workload`, but what Spark's processes use is ours, not that of others."""
    name, arguments_json, settle_mib = sys.argv[1:]
    arguments = json.loads(arguments_json)
    settle(Path(arguments["directory"]).parent, int(settle_mib))
    start, busy_s, own_s = perf_counter(), _busy_s(), _tree_cpu_s()
    found = WORKLOADS[name](**arguments)
    others_s = (_busy_s() - busy_s) - (_tree_cpu_s() - own_s)
    cpus = len(os.sched_getaffinity(0))
    found[OTHERS] = max(others_s / (perf_counter() - start) / cpus, 0.0)
    print(json.dumps(found))


def _busy_s() -> float:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    return sum(int(n) for at, n in enumerate(fields) if at not in (3, 4)) / _TICK


if __name__ == "__main__":
    _main()
