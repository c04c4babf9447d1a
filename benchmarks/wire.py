"""Single requests over HTTP, as ratios to a bare loop: `make bench-wire`.

`wrk` sends the requests. See README.md, and wire_workloads.py for the bare loop.
"""

import sys
from collections.abc import Callable, Mapping

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target, version_of
from server_peers import is_there, version_of_program

BARE = "bare loop"


def rows(*, quick: bool) -> list[Row]:
    """Return all rows. A quick run shows that all of them work."""
    seconds = 1 if quick else 3
    connections = 8 if quick else 64
    return [
        _publish_row("publish", connections, "interval", seconds, 0.50),
        _durable_row(connections, seconds),
        _publish_row("publish-durable-256", connections * 4, "always", seconds, 0.45),
        _other_requests_row(connections, seconds),
        _lease_row("lease", connections, "interval", seconds, 0.40),
        _lease_row("lease-durable", connections, "always", seconds, 0.32),
    ]


def _of(name: str, to: str, at_least: float) -> Target:
    def judge(one: Round) -> float:
        return one[name]["rate"] / one[to]["rate"]

    return Target(says=f"{name} of {to}, at least {at_least:g}", judge=judge, at_least=at_least)


def _bare(connections: int, seconds: int) -> Contender:
    return Contender(
        name=BARE,
        workload="wire_bare",
        arguments={"connections": connections, "seconds": seconds},
        does="parse, decode, fixed reply",
    )


def _penstock(name: str, request: str, does: str, arguments: Mapping[str, int | str]) -> Contender:
    return Contender(
        name=name,
        workload="wire_penstock",
        arguments={"request": request, **arguments},
        does=does,
    )


def _publish_row(name: str, connections: int, sync: str, seconds: int, at_least: float) -> Row:
    arguments = {"connections": connections, "sync": sync, "seconds": seconds}
    return Row(
        name=name,
        title=f"publish, {connections} connections, sync={sync}",
        unit="requests/s",
        contenders=[
            _bare(connections, seconds),
            _penstock("penstock", "publish", "one message a request", arguments),
        ],
        targets=[_of("penstock", BARE, at_least)],
    )


def _durable_row(connections: int, seconds: int) -> Row:
    """The same with peers that are as durable."""
    row = _publish_row("publish-durable", connections, "always", seconds, 0.35)
    contenders, targets = list(row.contenders), list(row.targets)
    if is_there("postgres"):
        contenders.append(
            Contender(
                name="PostgreSQL",
                workload="postgres_inserts",
                arguments={"connections": connections, "seconds": seconds},
                does="single inserts by pgbench, prepared; commits that wait share a sync",
            )
        )
        targets.append(_of("penstock", "PostgreSQL", 2))
    if is_there("beanstalkd"):
        contenders.append(
            Contender(
                name="beanstalkd -f0",
                workload="beanstalkd_publish",
                arguments={"connections": connections, "each": 400 * seconds, "sync_ms": 0},
                does="put with binlog; a sync each",
            )
        )
        targets.append(_of("penstock", "beanstalkd -f0", 5))
    return Row(
        name=row.name, title=row.title, unit=row.unit, contenders=contenders, targets=targets
    )


def _other_requests_row(connections: int, seconds: int) -> Row:
    arguments = {"connections": connections, "sync": "interval", "seconds": seconds}
    publish = "publish"
    others = {
        "rivetq": ("RivetQ's enqueue", 0.85),
        "epochqueue": ("EpochQueue's publish", 0.85),
        "stats": ("statistics of a queue", 0.5),
        "browse": ("the first ten messages", 0.5),
        "settle": ("ack one message", 0.5),
    }
    return Row(
        name="others",
        title=f"other requests, {connections} connections, sync=interval",
        unit="requests/s",
        contenders=[
            _penstock(publish, publish, "one message a request", arguments),
            *[_penstock(name, name, does, arguments) for name, (does, _) in others.items()],
        ],
        targets=[_of(name, publish, at_least) for name, (_, at_least) in others.items()],
    )


def _lease_row(name: str, connections: int, sync: str, seconds: int, at_least: float) -> Row:
    arguments = {"connections": connections, "sync": sync, "seconds": seconds}
    busy = "busy queue"
    return Row(
        name=name,
        title=f"lease, then ack, {connections} connections, sync={sync}",
        unit="requests/s",
        contenders=[
            _bare(connections, seconds),
            _penstock("penstock", "lease", "one message a request", arguments),
            _penstock(
                busy,
                "lease",
                "beside 1,000 abandoned leases and 10,000 delayed messages",
                {**arguments, "busy": True},
            ),
        ],
        targets=[_of("penstock", BARE, at_least), _of(busy, "penstock", 0.8)],
    )


def versions() -> dict[str, str]:
    packages = ("penstock", "uvloop", "httptools", "msgspec")
    found: dict[str, Callable[[str], str | None]] = dict.fromkeys(packages, version_of)
    found |= dict.fromkeys(("wrk", "postgres", "beanstalkd"), version_of_program)
    return {name: version(name) or "not installed" for name, version in found.items()}


BENCHMARK = Benchmark(
    name="wire",
    title="Single requests over HTTP",
    workloads=HERE / "wire_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=0,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
