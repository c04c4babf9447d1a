"""The Spark source and jobs compared with Spark's own Parquet: `make bench-spark`. See README.md.

The contenders of a row alternate in one Spark session: ten seconds of each to warm up, then five
passes of each. The medians count. One JVM compiles the same code better than the next, by up to
30 %, so rows of a second a pass are run in several sessions. `cpu_s` is the processor time of Spark
and its Python workers. On a shared machine, `--by cpu` evaluates targets by it.
"""

import sys
from collections.abc import Callable

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target, version_of

MANY, MANY_BYTES = 8_000_000, 100
SESSIONS = 3  # of rows whose passes are short
LARGE, LARGE_BYTES = 1_000_000, 1024
EVENTS = 10_000_000


def ratio(name: str, to: str) -> Callable[[Round], float]:
    return lambda one: one[name]["rate"] / one[to]["rate"]


def value(name: str, figure: str) -> Callable[[Round], float]:
    return lambda one: one[name][figure]


def rows(*, quick: bool) -> list[Row]:
    """Every row. A quick run does a hundredth of the work: it shows that all of it runs."""

    def size(full: int) -> int:
        return full // 100 if quick else full

    def filled(count: int, size_bytes: int = MANY_BYTES) -> Contender:
        return Contender(
            name="fill", workload="fill", arguments={"count": size(count), "size": size_bytes}
        )

    def read(name: str, of: str, does: str, **arguments: int | str | bool) -> Contender:
        return Contender(name=name, workload="read", arguments={"of": of, **arguments}, does=does)

    two, three = "seq,timestamp", "seq,timestamp,payload"
    return [
        Row(
            name="read",
            title="read all default columns to the noop sink, 100 bytes",
            unit="rows/s",
            prepare=filled(MANY),
            contenders=[
                read("penstock", "queue", "the queue's own files, every checksum"),
                read("parquet", "parquet", "Spark's reader on the same columns, snappy"),
                Contender(
                    name="tuples",
                    workload="tuples",
                    does="two of the same files by a source that yields tuples",
                ),
            ],
            often=SESSIONS,
            in_turn=True,
            targets=[
                Target(
                    says="of Parquet, 100 bytes", judge=ratio("penstock", "parquet"), at_least=0.85
                ),
                Target(says="of tuples", judge=ratio("penstock", "tuples"), at_least=6),
            ],
        ),
        Row(
            name="read-1k",
            title="read all default columns to the noop sink, 1 KB",
            unit="rows/s",
            prepare=filled(LARGE, LARGE_BYTES),
            contenders=[
                read("penstock", "queue", "the queue's own files, every checksum"),
                read("parquet", "parquet", "Spark's reader on the same columns, snappy"),
            ],
            often=SESSIONS,
            in_turn=True,
            targets=[
                Target(says="of Parquet, 1 KB", judge=ratio("penstock", "parquet"), at_least=0.95)
            ],
        ),
        Row(
            name="columns",
            title="some of the columns",
            unit="rows/s",
            prepare=filled(MANY),
            contenders=[
                read("penstock grouped", "queue", "three columns", columns=three, work="group"),
                read("parquet grouped", "parquet", "the same", columns=three, work="group"),
                read("penstock two", "queue", "seq and timestamp", columns=two),
                read("parquet two", "parquet", "the same", columns=two),
            ],
            often=SESSIONS,
            in_turn=True,
            targets=[
                Target(
                    says="grouped, of Parquet",
                    judge=ratio("penstock grouped", "parquet grouped"),
                    at_least=0.8,
                ),
                Target(
                    says="two columns, of Parquet",
                    judge=ratio("penstock two", "parquet two"),
                    at_least=0.4,
                ),
            ],
        ),
        Row(
            name="filter",
            title="some of the rows",
            unit="rows/s",
            prepare=filled(MANY),
            contenders=[
                Contender(
                    name="penstock",
                    workload="narrow",
                    does="all rows; in turn with it, in the same Spark, two ranges of 1 %",
                )
            ],
            targets=[
                Target(
                    says=f"1 % by {by}, of the full read's time",
                    judge=value("penstock", by),
                    at_most=0.1,
                )
                for by in ("seq", "time")
            ],
        ),
        Row(
            name="sink",
            title="write a frame of 100-byte payloads",
            unit="rows/s",
            contenders=[
                Contender(
                    name=name,
                    workload="write",
                    arguments={"to": name, "count": size(MANY)},
                    does=does,
                )
                for name, does in (
                    ("penstock", "staged, synced, verified, adopted: all or nothing"),
                    ("parquet", "Spark's writer, snappy; not synced"),
                )
            ],
            in_turn=True,
            targets=[Target(says="of Parquet", judge=ratio("penstock", "parquet"), at_least=1.1)],
        ),
        Row(
            name="archive",
            title="archive and audit",
            unit="rows/s",
            prepare=filled(MANY),
            contenders=[
                Contender(name=name, workload="job", arguments={"which": name}, does=does)
                for name, does in (
                    ("archive", "zstd, synced, read back and compared"),
                    ("write", "df.write.parquet of the same source, zstd; not synced"),
                    ("audit", "every checksum, seq and order"),
                    ("checksum", "the checksum alone, of every byte, in tasks"),
                )
            ],
            in_turn=True,
            targets=[
                Target(says="archive, of write", judge=ratio("archive", "write"), at_least=2),
                Target(says="audit, of checksum", judge=ratio("audit", "checksum"), at_least=0.8),
                Target(says="audit, of archive", judge=ratio("audit", "archive"), at_least=1.5),
            ],
        ),
        Row(
            name="report",
            title="the report's figures",
            unit="events/s",
            prepare=Contender(name="work", workload="work", arguments={"events": size(EVENTS)}),
            contenders=[
                Contender(name=name, workload="figures", arguments={"of": name}, does=does)
                for name, does in (
                    ("penstock", "from the queue's logs"),
                    ("parquet", "the same aggregation from Parquet"),
                )
            ],
            targets=[
                Target(
                    says="time, of Parquet's",
                    judge=ratio("parquet", "penstock"),
                    at_most=1.5,
                )
            ],
        ),
        Row(
            name="stream",
            title="streams",
            unit="rows/s",
            prepare=filled(MANY),
            contenders=[
                Contender(
                    name="drain",
                    workload="drain",
                    arguments={"per_trigger": size(2_000_000)},
                    does="AvailableNow, three columns, 2 million a batch",
                ),
                read("batch", "queue", "the same columns at once", columns=three),
            ],
            in_turn=True,
            targets=[Target(says="drain, of batch", judge=ratio("drain", "batch"), at_least=0.3)],
        ),
        Row(
            name="latency",
            title="from append to foreachBatch",
            unit="ms",
            contenders=[
                Contender(
                    name="trigger 1 s",
                    workload="latency",
                    arguments={"count": 20 if quick else 200, "trigger_ms": 1000},
                    does="one message every 150 ms",
                ),
            ],
            targets=[
                Target(
                    says="p50, ms, at most half the interval and 400",
                    judge=value("trigger 1 s", "p50_ms"),
                    at_most=900,
                )
            ],
        ),
    ]


def versions() -> dict[str, str]:
    return {
        one: version_of(one) or "not installed"
        for one in ("penstock", "pyspark", "pyarrow", "numpy")
    }


BENCHMARK = Benchmark(
    name="spark",
    title="The data pipeline",
    workloads=HERE / "spark_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=512,
    rounds=1,
    by_cpu=True,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
