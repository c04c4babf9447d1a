"""A worker compared with a bare loop of lease and ack, embedded and over HTTP.

In each row, the loop and the worker use the same kind of queue: with a function for threads, with a
coroutine function for tasks.
"""

import sys

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target

import penstock

AT_LEAST = 0.5


def rows(*, quick: bool) -> list[Row]:
    return [
        _row(kind, over_http, (20_000 if not over_http else 4_000) // (50 if quick else 1))
        for over_http in (False, True)
        for kind in ("threads", "tasks")
    ]


def _row(kind: str, over_http: bool, count: int) -> Row:
    place = "over HTTP" if over_http else "embedded"
    handler = "a function" if kind == "threads" else "a coroutine function"
    arguments = {"count": count, "over_http": over_http}
    return Row(
        name=f"{'http' if over_http else 'embedded'}-{kind}",
        title=f"no-op handler, {kind}, {place}, no sync",
        unit="messages/s",
        contenders=[
            Contender(
                name="bare loop",
                workload=f"bare_{kind}",
                arguments=arguments,
                does="lease one message, ack it, again",
            ),
            Contender(
                name="worker",
                workload=f"worker_{kind}",
                arguments=arguments,
                does=f"Worker with {handler} that does nothing, default options",
            ),
        ],
        targets=[
            Target(
                says=f"worker, of the bare loop, at least {AT_LEAST}",
                judge=_of_the_bare_loop,
                at_least=AT_LEAST,
            )
        ],
    )


def _of_the_bare_loop(one: Round) -> float:
    return one["worker"]["rate"] / one["bare loop"]["rate"]


def versions() -> dict[str, str]:
    return {"penstock": penstock.__version__}


BENCHMARK = Benchmark(
    name="worker",
    title="The worker",
    workloads=HERE / "worker_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=0,
    rounds=5,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
