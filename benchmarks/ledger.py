"""The ledger compared with other logs and with the disk: `make bench`. See README.md."""

import sys
from collections.abc import Callable

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target, version_of

ENOUGH_BATCHED = 5_000_000  # entries/s
SHARE_OF_COPYING = 0.6
SETTLE_MIB = 512  # more than any workload writes in one run


def rate(name: str) -> Callable[[Round], float]:
    return lambda one: one[name]["rate"]


def ratio(name: str, to: str) -> Callable[[Round], float]:
    return lambda one: one[name]["rate"] / one[to]["rate"]


def batched_enough(one: Round) -> float:
    """Of the lesser of the two demands: 1 is enough."""
    copying = SHARE_OF_COPYING * one["memcpy + CRC"]["rate"]
    return one["penstock"]["rate"] / min(ENOUGH_BATCHED, copying)


def rows(*, quick: bool) -> list[Row]:
    """Every row. A quick run does a hundredth of the work: it shows that all of it runs."""

    def size(full: int) -> int:
        return full // 100 if quick else full

    return [
        Row(
            name="append",
            title="single append, no sync, kill-safe",
            unit="entries/s",
            contenders=[
                Contender(
                    name="penstock",
                    workload="append",
                    arguments={"count": size(1_100_000), "mapped": True},
                    does="checksummed entry into a shared mapping; two segments sealed meanwhile",
                ),
                Contender(
                    name="twin",
                    workload="append",
                    arguments={"count": size(50_000), "mapped": False},
                    codec="python",
                    does="the same in pure Python with one write(2) each; no segment sealed",
                ),
                Contender(
                    name="queuelib",
                    workload="append_queuelib",
                    arguments={"count": size(300_000)},
                    peer="queuelib",
                    does="one write(2) each; no checksum, seq or time; index only at close",
                ),
            ],
            targets=[
                Target(says="of the twin, at least 4", judge=ratio("penstock", "twin"), at_least=4),
                Target(
                    says="of queuelib's push, at least 3",
                    judge=ratio("penstock", "queuelib"),
                    at_least=3,
                ),
            ],
        ),
        Row(
            name="batch",
            title="batches of 100, no sync, kill-safe",
            unit="entries/s",
            contenders=[
                Contender(
                    name="penstock",
                    workload="append_batches",
                    arguments={"count": size(1_600_000)},
                    does="atomic batches into a shared mapping; three segments sealed meanwhile",
                ),
                Contender(
                    name="memcpy + CRC",
                    workload="copy_and_checksum",
                    arguments={"count": size(10_000_000)},
                    does="the same bytes, 12.6 KB at a time, in memory: no file, no batch of Python"
                    " objects",
                ),
            ],
            targets=[
                Target(
                    says="of 5 M/s, or of 60 % of memcpy + CRC if that is less, at least 1",
                    judge=batched_enough,
                    at_least=1,
                ),
            ],
        ),
        Row(
            name="read",
            title="sequential read, checksum verified",
            unit="entries/s",
            prepare=Contender(name="fill", workload="fill", arguments={"count": size(1_070_000)}),
            contenders=[
                Contender(
                    name="penstock",
                    workload="read_in_order",
                    arguments={"count": size(1_000_000)},
                    does="Cursor, 1,000 entries a call, each a Python object",
                ),
                Contender(
                    name="twin",
                    workload="read_in_order",
                    arguments={"count": size(50_000)},
                    codec="python",
                    does="the same in pure Python",
                ),
                Contender(
                    name="columns",
                    workload="read_columns",
                    arguments={"all_columns": False},
                    does="seq, timestamp and payload to Arrow-ready buffers, one core",
                ),
                Contender(
                    name="all columns",
                    workload="read_columns",
                    arguments={"all_columns": True},
                    does="the same with all thirteen columns",
                ),
            ],
            targets=[
                Target(says="of the twin, at least 5", judge=ratio("penstock", "twin"), at_least=5),
                Target(says="columns, at least 8 M/s", judge=rate("columns"), at_least=8_000_000),
            ],
        ),
        Row(
            name="durable",
            title="durable append (sync=always)",
            unit="entries/s",
            often=3,
            contenders=[
                Contender(
                    name="machine",
                    workload="durable_loop",
                    arguments={"count": size(1_000)},
                    does="write(2) at the end of a file, fdatasync, again: 126 bytes each",
                ),
                Contender(
                    name="1 thread",
                    workload="durable_one",
                    arguments={"count": size(1_000)},
                    does="append, commit, again",
                ),
                Contender(
                    name="64 threads",
                    workload="durable_threads",
                    arguments={"count": size(64_000), "threads": 64},
                    does="each: append, commit, again",
                ),
                Contender(
                    name="64 threads, one core",
                    workload="durable_threads",
                    arguments={"count": size(64_000), "threads": 64, "one_core": True},
                    does="the same, where no thread is woken on another core",
                ),
                Contender(
                    name="1,000 tasks",
                    workload="durable_tasks",
                    arguments={"count": size(100_000), "tasks": 1_000},
                    does="asyncio, one thread; each: append, await commit, again",
                ),
            ],
            targets=[
                Target(
                    says="one thread, of the machine's own loop, at least 0.9",
                    judge=ratio("1 thread", "machine"),
                    at_least=0.9,
                ),
                Target(
                    says="64 threads, of one, at least 7",
                    judge=ratio("64 threads", "1 thread"),
                    at_least=7,
                ),
                Target(
                    says="1,000 tasks, of one thread, at least 30",
                    judge=ratio("1,000 tasks", "1 thread"),
                    at_least=30,
                ),
            ],
        ),
        Row(
            name="random",
            title="read by seq at random over 10 million entries",
            unit="µs",
            prepare=Contender(name="fill", workload="fill", arguments={"count": size(10_000_000)}),
            contenders=[
                Contender(
                    name="penstock",
                    workload="read_at_random",
                    arguments={"count": size(100_000)},
                    does="read_entry: sparse index, a scan of at most 4 KB, checksum; page cache"
                    " warm",
                ),
            ],
            targets=[
                Target(
                    says="median, at most 20 µs",
                    judge=lambda one: one["penstock"]["median_us"],
                    at_most=20,
                ),
            ],
        ),
    ]


def versions() -> dict[str, str]:
    return {one: version_of(one) or "not installed" for one in ("penstock", "queuelib")}


BENCHMARK = Benchmark(
    name="ledger",
    title="The ledger",
    workloads=HERE / "ledger_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=SETTLE_MIB,
    rounds=7,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
