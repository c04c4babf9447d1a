"""What the data pipeline costs as data, cores, messages and time grow: `make bench-spark-scale`.

Ranges of an archive, a steady stream, the memory of executors, compressed messages, and cost by
size and cores. On a shared machine `--by cpu` evaluates rates by processor time; the rows `steady`
and `cores` need a quiet one.
"""

import sys
from collections.abc import Callable

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target
from spark import ratio, value, versions

MILLION = 1_000_000
PER_SECOND = 50_000
SIZES = (1, 4, 8, 16)  # million rows
HEAP_MIB = 512
WORKER_MIB, JVM_MIB = 450, 2 * HEAP_MIB  # limits of resident memory, mapped files included


def of_the_line(millions: int) -> Callable[[Round], float]:
    """Return what a size costs, relative to the straight line from the smallest to the largest."""

    def judge(one: Round) -> float:
        def cost(size: int) -> float:
            return size / one[_named(size)]["rate"]

        low, high = SIZES[0], SIZES[-1]
        slope = (cost(high) - cost(low)) / (high - low)
        return cost(millions) / (cost(low) + slope * (millions - low))

    return judge


def _named(millions: int) -> str:
    return f"{millions} million"


def rows(*, quick: bool) -> list[Row]:
    """Return every row. A quick run does a hundredth of the work."""
    part = 100 if quick else 1
    return [
        _archive_range(8 * MILLION // part),
        _steady(quick=quick),
        _memory(mib=2048 // part),
        _zstd(MILLION // part),
        _growth(part),
        _cores(8 * MILLION // part),
    ]


def _archive_range(count: int) -> Row:
    return Row(
        name="archive-range",
        title="1 % of an archive of 100 segments, by time",
        unit="rows/s",
        prepare=Contender(
            name="fill", workload="fill_archive", arguments={"count": count, "segments": 100}
        ),
        contenders=[
            Contender(
                name="archived",
                workload="archive_range",
                does="all archived columns; in turn with it, ten ranges of 1 %",
            )
        ],
        targets=[
            Target(
                says="1 % by time, of the whole's time",
                judge=value("archived", "share"),
                at_most=0.05,
            )
        ],
    )


def _steady(*, quick: bool) -> Row:
    seconds, per_s = (5, PER_SECOND // 100) if quick else (40, PER_SECOND)
    return Row(
        name="steady",
        title=f"a stream at {per_s:,} messages a second",
        unit="ms",
        contenders=[
            Contender(
                name="trigger 1 s",
                workload="steady",
                arguments={"per_s": per_s, "seconds": seconds, "trigger_ms": 1000},
                does="from append to the result of an aggregation in foreachBatch",
            )
        ],
        targets=[
            Target(says="p50, ms", judge=value("trigger 1 s", "p50_ms"), at_most=1500),
            Target(
                says="read, of what was published",
                judge=value("trigger 1 s", "share"),
                at_least=0.95,
            ),
        ],
    )


def _memory(mib: int) -> Row:
    names = ("source", "sink", "stream")
    return Row(
        name="memory",
        title=f"resident memory with payloads of 1 MB, heap of {HEAP_MIB} MiB",
        unit="MiB",
        contenders=[
            Contender(
                name=name,
                workload="memory",
                arguments={"of": name, "mib": mib, "heap_mib": HEAP_MIB},
                does=f"{mib} MiB of payloads; the largest Python worker, and the JVM",
            )
            for name in names
        ],
        targets=[
            Target(
                says=f"{name}: {process}, MiB",
                judge=value(name, f"{process}_mib"),
                at_most=WORKER_MIB if process == "worker" else JVM_MIB,
            )
            for name in names
            for process in ("worker", "jvm")
        ],
    )


def _zstd(count: int) -> Row:
    return Row(
        name="zstd",
        title="a query over orders of 1 KB as JSON",
        unit="rows/s",
        prepare=Contender(name="fill", workload="fill_orders", arguments={"count": count}),
        contenders=[
            Contender(name=name, workload="orders", arguments={"of": of}, does=does)
            for name, of, does in (
                ("zstd", "zstd", "each message compressed by itself"),
                ("plain", "queue", "the same queue, not compressed"),
                ("parquet zstd", "parquet", "Spark's reader, columns compressed"),
            )
        ],
        in_turn=True,
        targets=[
            Target(says="of the plain queue", judge=ratio("zstd", "plain"), at_least=0.5),
            Target(says="of Parquet", judge=ratio("zstd", "parquet zstd"), at_least=0.4),
        ],
    )


def _growth(part: int) -> Row:
    return Row(
        name="growth",
        title=f"cost from {SIZES[0]} to {SIZES[-1]} million rows",
        unit="rows/s",
        prepare=Contender(
            name="fill", workload="fill_queue", arguments={"count": SIZES[-1] * MILLION // part}
        ),
        contenders=[
            Contender(
                name=_named(size),
                workload="first_rows",
                arguments={"count": size * MILLION // part},
                does="three columns to the noop sink",
            )
            for size in SIZES
        ],
        in_turn=True,
        targets=[
            Target(
                says=f"{_named(size)}, of the line",
                judge=of_the_line(size),
                at_least=0.9,
                at_most=1.1,
            )
            for size in SIZES[1:-1]
        ],
    )


def _cores(count: int) -> Row:
    return Row(
        name="cores",
        title="cost by cores",
        unit="rows/s",
        prepare=Contender(name="fill", workload="fill_queue", arguments={"count": count}),
        contenders=[
            Contender(
                name=name,
                workload="first_rows",
                arguments={"count": count, "cores": cores},
                does=does,
            )
            for name, cores, does in (
                ("two", 2, "all that the machine has"),
                ("one", 1, "JVM and worker on one core"),
            )
        ],
        targets=[Target(says="two cores, of one", judge=ratio("two", "one"), at_least=1.8)],
    )


BENCHMARK = Benchmark(
    name="spark_scale",
    title="The data pipeline as it grows",
    workloads=HERE / "spark_scale_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=512,
    rounds=1,
    by_cpu=True,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
