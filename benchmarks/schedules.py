"""The cost of schedules: the share of a core that a thousand of them take.

The target is less than 1 % of a core, whether they are due each minute or once a day. A message has
100 bytes. The processor time of publishing is included, that of consuming is not.
"""

import sys

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target

import penstock

MANY = 1000
AT_MOST = 1.0


def rows(*, quick: bool) -> list[Row]:
    many, hours, seconds = (20, 1, 2) if quick else (MANY, 6, 60)
    found = [
        _row("minutes", "due each minute", "virtual", many, cron="* * * * *", hours=hours),
        _row("days", "due once a day", "virtual", many, cron="30 2 * * *", hours=4 * hours),
        _row("interval", "due every 60 s", "virtual", many, every_s=60, hours=hours),
    ]
    every_s = seconds if quick else 60
    return [*found, _row("real", "due every 60 s, real time", "real", many, every_s, seconds)]


def _row(
    name: str,
    title: str,
    workload: str,
    many: int,
    every_s: int = 0,
    seconds: int = 0,
    *,
    cron: str = "",
    hours: int = 0,
) -> Row:
    arguments: dict[str, int | str | bool] = {"count": many, "every_s": every_s}
    if workload == "virtual":
        arguments |= {"cron": cron, "hours": hours}
    else:
        arguments |= {"seconds": seconds}
    return Row(
        name=name,
        title=f"{many:,} schedules, {title}",
        unit="% of a core",
        contenders=[
            Contender(
                name="penstock",
                workload=workload,
                arguments=arguments,
                does="an embedded queue, no sync: the message and the record of each tick",
            )
        ],
        targets=[
            Target(
                says=f"at most {AT_MOST:g} % of a core",
                judge=_share,
                at_most=AT_MOST,
            )
        ],
    )


def _share(one: Round) -> float:
    return one["penstock"]["rate"]


def versions() -> dict[str, str]:
    return {"penstock": penstock.__version__}


BENCHMARK = Benchmark(
    name="schedules",
    title="Schedules",
    workloads=HERE / "schedules_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=0,
    rounds=3,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
