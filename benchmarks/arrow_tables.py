"""Queues read as Arrow tables, compared with the decoder alone and with pyarrow reading Parquet.

The Parquet files have the same rows. All files are in the page cache.
"""

import sys
from importlib import metadata

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target

import penstock

ROWS = 4_000_000
OF_DECODER, OF_PARQUET = 0.8, 0.5


def rows(*, quick: bool) -> list[Row]:
    count = ROWS // (100 if quick else 1)
    everything = "seq,timestamp,priority,key,payload"
    return [
        _row("all", "default columns", everything, count, parquet=True),
        _row("two", "seq and timestamp", "seq,timestamp", count, parquet=False),
        _part(count),
    ]


def _row(name: str, title: str, columns: str, count: int, *, parquet: bool) -> Row:
    arguments = {"columns": columns}
    targets = [
        Target(
            says=f"of the decoder alone, at least {OF_DECODER}",
            judge=lambda one: _ratio(one, "decoder alone"),
            at_least=OF_DECODER,
        )
    ]
    if parquet:
        targets.append(
            Target(
                says=f"of pyarrow reading Parquet (snappy) in one thread, at least {OF_PARQUET}",
                judge=lambda one: _ratio(one, "Parquet, snappy"),
                at_least=OF_PARQUET,
            )
        )
    return Row(
        name=name,
        title=f"read {count:,} messages of 100 bytes, {title}",
        unit="messages/s",
        prepare=Contender(name="fill", workload="fill", arguments={"count": count}, does="fills"),
        contenders=[
            Contender(
                name="penstock.arrow",
                workload="read_queue",
                arguments=arguments,
                does="record batches of `penstock.arrow.read`, checksums verified",
            ),
            Contender(
                name="decoder alone",
                workload="decode",
                arguments=arguments,
                does="the codec's buffers of the same columns, checksums verified, no Arrow",
            ),
            Contender(
                name="Parquet, snappy",
                workload="read_parquet",
                arguments={**arguments, "compression": "snappy"},
                does="pyarrow's iter_batches in one thread; no checksums",
            ),
            Contender(
                name="Parquet, zstd",
                workload="read_parquet",
                arguments={**arguments, "compression": "zstd"},
                does="the same",
            ),
        ],
        targets=targets,
    )


def _part(count: int) -> Row:
    """One in a hundred messages, by time."""
    return Row(
        name="part",
        title=f"read 1 % of {count:,} messages by time, default columns",
        unit="ms",
        prepare=Contender(name="fill", workload="fill", arguments={"count": count}, does="fills"),
        contenders=[
            Contender(
                name="1 %",
                workload="read_part",
                arguments={"share": 0.01},
                does="`since` and `until`",
            ),
            Contender(name="all", workload="read_part", arguments={"share": 1.0}, does="no range"),
        ],
        targets=[
            Target(
                says="1 % takes of the whole, at most 0.05",
                judge=lambda one: one["1 %"]["ms"] / one["all"]["ms"],
                at_most=0.05,
            )
        ],
    )


def _ratio(one: Round, other: str) -> float:
    return one["penstock.arrow"]["rate"] / one[other]["rate"]


def versions() -> dict[str, str]:
    return {"penstock": penstock.__version__, "pyarrow": metadata.version("pyarrow")}


BENCHMARK = Benchmark(
    name="arrow",
    title="Arrow tables",
    workloads=HERE / "arrow_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=0,
    rounds=5,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
