"""Calls over gRPC compared with Penstock's client over HTTP, on one broker that syncs each commit.

Not named `grpc.py`, which would hide the package.
"""

import sys
from importlib import metadata

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target

import penstock

AT_LEAST = 50_000  # messages/s in batches of 100


def rows(*, quick: bool) -> list[Row]:
    return [
        _row(what, size, calls // (20 if quick else 1), target)
        for what, size, calls, target in (
            ("publish", 100, 1600, True),
            ("consume", 100, 800, False),
            ("publish", 1, 4000, False),
            ("consume", 1, 2000, False),
        )
    ]


def _row(what: str, size: int, calls: int, target: bool) -> Row:
    messages = f"{size} messages" if size > 1 else "1 message"
    verb = "publish" if what == "publish" else "lease and ack"
    arguments = {"calls": calls, "size": size}
    return Row(
        name=f"{what}-{size}",
        title=f"{verb} {messages} a call, 8 callers, durable",
        unit="messages/s",
        contenders=[
            Contender(
                name="gRPC",
                workload=f"{what}_grpc",
                arguments=arguments,
                does="tasks on one grpc.aio channel, requests made and answers read in Python",
            ),
            Contender(
                name="HTTP",
                workload=f"{what}_http",
                arguments=arguments,
                does="tasks with penstock.aio.connect, default options: it adds dedup ids",
            ),
        ],
        targets=[
            Target(
                says=f"gRPC, messages a second, at least {AT_LEAST:,}",
                judge=_grpc_rate,
                at_least=AT_LEAST,
            )
        ]
        if target
        else [],
    )


def _grpc_rate(one: Round) -> float:
    return one["gRPC"]["rate"]


def versions() -> dict[str, str]:
    return {"penstock": penstock.__version__, "grpcio": metadata.version("grpcio")}


BENCHMARK = Benchmark(
    name="grpc",
    title="gRPC",
    workloads=HERE / "grpc_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=0,
    rounds=5,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
