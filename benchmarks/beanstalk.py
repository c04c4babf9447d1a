"""The beanstalk protocol, with beanstalkd itself: `make bench-beanstalk`.

One process sends the commands of all connections over raw sockets, with epoll; see
beanstalk_workloads.py.
"""

import sys
from collections.abc import Callable

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target, version_of
from server_peers import is_there, version_of_program

EACH_SYNCED, SYNCED_LATER = "beanstalkd -f0", "beanstalkd -f50"


def rows(*, quick: bool) -> list[Row]:
    """Return all rows. A quick run shows that all of them work."""
    seconds = 1 if quick else 4
    connections = 8 if quick else 64
    return [
        _row("put", "put, one at a time on each connection", connections, 1, seconds, 5),
        _row("put-pipelined", "put, 50 at a time on each connection", connections, 50, seconds, 20),
        _row("consume", "reserve, then delete", connections, 1, seconds, 4),
    ]


def _row(name: str, title: str, connections: int, depth: int, seconds: int, at_least: float) -> Row:
    arguments: dict[str, int | str | bool] = {
        "kind": name.partition("-")[0],
        "connections": connections,
        "depth": depth,
        "seconds": seconds,
    }
    contenders = [
        Contender(
            name="penstock",
            workload="of_penstock",
            arguments={**arguments, "options": False},
            does="sync=always; the usual priority and time to run",
        ),
        Contender(
            name="penstock, options",
            workload="of_penstock",
            arguments={**arguments, "options": True},
            does="the same with varied priorities and times to run",
        ),
    ]
    targets: list[Target] = []
    if is_there("beanstalkd"):
        for peer, sync_ms in ((EACH_SYNCED, 0), (SYNCED_LATER, 50)):
            contenders.append(
                Contender(
                    name=peer,
                    workload="of_beanstalkd",
                    arguments={**arguments, "sync_ms": sync_ms},
                    does="a sync each" if not sync_ms else "a sync every 50 ms, after the answers",
                )
            )
        targets = [_of("penstock", EACH_SYNCED, at_least)]
    return Row(
        name=name,
        title=f"{title}, {connections} connections",
        unit="jobs/s",
        contenders=contenders,
        targets=targets,
    )


def _of(name: str, to: str, at_least: float) -> Target:
    def judge(one: Round) -> float:
        return one[name]["rate"] / one[to]["rate"]

    return Target(says=f"{name} of {to}, at least {at_least:g}", judge=judge, at_least=at_least)


def versions() -> dict[str, str]:
    found: dict[str, Callable[[str], str | None]] = {
        "penstock": version_of,
        "uvloop": version_of,
        "beanstalkd": version_of_program,
    }
    return {name: version(name) or "not installed" for name, version in found.items()}


BENCHMARK = Benchmark(
    name="beanstalk",
    title="The beanstalk protocol",
    workloads=HERE / "beanstalk_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=0,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
