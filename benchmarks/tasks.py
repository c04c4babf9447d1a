"""Tasks compared with other task queues: jobs that do nothing, enqueued and run.

Rates are jobs per second of processor time, servers included: those of one core.
"""

import os
import sys

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target, version_of
from server_peers import version_of_program

import penstock

AHEAD, OF_HUEY = 1.0, 2.0
MAX_P50_US = 2000.0
MAX_WAIT = 2.0  # of a small tenant beside a million of another's
MANY_OF_ONE = 0.5
OTHERS = 9  # messages of others that are taken for one of a small tenant


def rows(*, quick: bool) -> list[Row]:
    durable, default, latency = (2_000, 10_000, 1_000) if not quick else (50, 100, 20)
    return [
        _throughput(durable, durable=True),
        _throughput(default, durable=False),
        _latency(latency),
        _fair(*((10_000, 1_000_000) if not quick else (20, 1_000))),
        _tenants(*((10, 200_000, 10_000) if not quick else (2, 500, 100))),
    ]


def _peer(package: str) -> str:
    """Return the package that a contender needs. Tests leave all peers out."""
    return "no peers" if "BENCH_WITHOUT_PEERS" in os.environ else package


def _throughput(count: int, *, durable: bool) -> Row:
    sync = "always" if durable else "interval"
    redis = "appendfsync always" if durable else "appendfsync everysec"
    where = {"count": count, "durable": durable}
    contenders = [
        Contender(
            name="penstock, directory",
            workload="penstock",
            arguments={"count": count, "place": "directory", "sync": sync},
            does=f"TasksWorker of 8 threads, sync={sync}",
        ),
        Contender(
            name="penstock, broker",
            workload="penstock",
            arguments={"count": count, "place": "broker", "sync": sync},
            does=f"the same over HTTP, sync={sync}",
        ),
        Contender(
            name="huey, SQLite",
            workload="huey",
            arguments={**where, "place": "sqlite"},
            peer=_peer("huey"),
            does=f"Consumer of 8 threads, fsync={durable}; a job that dies with its worker is lost",
        ),
        Contender(
            name="huey, Redis",
            workload="huey",
            arguments={**where, "place": "redis"},
            peer=_peer("huey"),
            does=f"Consumer of 8 threads, {redis}; a job that dies with its worker is lost",
        ),
        Contender(
            name="dramatiq, Redis",
            workload="dramatiq",
            arguments=where,
            peer=_peer("dramatiq"),
            does=f"Worker of 8 threads, default middleware, {redis}",
        ),
        Contender(
            name="RQ",
            workload="rq",
            arguments=where,
            peer=_peer("rq"),
            does=f"SimpleWorker, which does not fork, one job at a time, {redis}",
        ),
        Contender(
            name="Celery, Redis",
            workload="celery",
            arguments=where,
            peer=_peer("celery"),
            does=f"worker -P threads -c 8 without gossip, task_acks_late, no results, {redis}",
        ),
        Contender(
            name="taskiq, Redis",
            workload="taskiq",
            arguments=where,
            peer=_peer("taskiq"),
            does=f"RedisStreamBroker, one process, 8 jobs at a time, {redis}",
        ),
    ]
    if durable:
        contenders.append(
            Contender(
                name="procrastinate",
                workload="procrastinate",
                arguments={"count": count},
                peer=_peer("procrastinate"),
                does="PostgreSQL with its default settings, 8 jobs at a time",
            )
        )
    peers = [one.name for one in contenders if one.peer is not None]

    def of_the_best(one: Round) -> float:
        return one["penstock, directory"]["rate"] / max(one[name]["rate"] for name in peers)

    def broker_of_the_best(one: Round) -> float:
        servers = [name for name in peers if "SQLite" not in name]
        return one["penstock, broker"]["rate"] / max(one[name]["rate"] for name in servers)

    def of_huey(one: Round) -> float:
        return one["penstock, directory"]["rate"] / one["huey, SQLite"]["rate"]

    return Row(
        name="durable" if durable else "default",
        title=f"enqueue and run, {'on disk when a call returns' if durable else 'no sync a call'}",
        unit="jobs/s of one core",
        contenders=contenders,
        targets=[
            Target(says="directory, ahead of all", judge=of_the_best, at_least=AHEAD),
            Target(says="directory, of huey on SQLite", judge=of_huey, at_least=OF_HUEY),
            Target(
                says="broker, ahead of all with a server", judge=broker_of_the_best, at_least=AHEAD
            ),
        ],
    )


def _latency(count: int) -> Row:
    arguments = {"count": count, "latency": True}
    return Row(
        name="latency",
        title="from enqueue to the start of the function, idle worker",
        unit="µs",
        contenders=[
            Contender(
                name="penstock, directory",
                workload="penstock",
                arguments={**arguments, "place": "directory", "sync": "interval"},
                does="TasksWorker in a thread of the same process",
            ),
            Contender(
                name="penstock, broker",
                workload="penstock",
                arguments={**arguments, "place": "broker", "sync": "interval"},
                does="the same over HTTP",
            ),
            Contender(
                name="huey, Redis",
                workload="huey",
                arguments={**arguments, "place": "redis", "durable": False},
                peer=_peer("huey"),
                does="Consumer in the same process, with its default polling",
            ),
            Contender(
                name="dramatiq, Redis",
                workload="dramatiq",
                arguments={**arguments, "durable": False},
                peer=_peer("dramatiq"),
                does="Worker in the same process, with its default polling",
            ),
        ],
        targets=[
            Target(
                says=f"broker, the median below {MAX_P50_US:.0f} µs",
                judge=lambda one: one["penstock, broker"]["p50_us"],
                at_most=MAX_P50_US,
            )
        ],
    )


def _fair(count: int, backlog: int) -> Row:
    def ratio(one: Round) -> float:
        return one["beside a backlog"]["p99_us"] / one["alone"]["p99_us"]

    return Row(
        name="fair",
        title=f"fair share: a small tenant beside {backlog:,} messages of another, one consumer",
        unit="messages/s of one core",
        contenders=[
            Contender(
                name="alone",
                workload="tenants",
                arguments={"count": count, "backlog": 0, "tenants": 1, "others": OTHERS},
                does="wait of a message from publish to lease, by a consumer between two messages",
            ),
            Contender(
                name="beside a backlog",
                workload="tenants",
                arguments={"count": count, "backlog": backlog, "tenants": 1, "others": OTHERS},
                does=f"the same, after {OTHERS} messages of the other tenant",
            ),
            Contender(
                name="asking for more than its share",
                workload="tenants",
                arguments={"count": count, "backlog": backlog, "tenants": 1},
                does="a message whenever the one before is done: the two tenants take turns",
            ),
        ],
        targets=[Target(says="p99 of its wait, of that alone", judge=ratio, at_most=MAX_WAIT)],
    )


def _tenants(count: int, backlog: int, many: int) -> Row:
    def share(one: Round) -> float:
        return one["many tenants"]["rate"] / one["one tenant"]["rate"]

    def contender(name: str, tenants: int, count: int) -> Contender:
        return Contender(
            name=name,
            workload="tenants",
            arguments={"count": count, "backlog": backlog, "tenants": tenants},
            does=f"lease and ack one by one, a backlog of {tenants:,}",
        )

    return Row(
        name="tenants",
        title=f"fair share: lease and ack with {many:,} tenants beside one",
        unit="messages/s of one core",
        contenders=[
            contender("one tenant", 1, count * many // 2),
            contender("many tenants", many, count),
        ],
        targets=[Target(says="of the rate of one", judge=share, at_least=MANY_OF_ONE)],
    )


def versions() -> dict[str, str]:
    packages = ("huey", "dramatiq", "rq", "celery", "taskiq", "procrastinate", "redis")
    found = {name: version_of(name) or "not installed" for name in packages}
    programs = {name: version_of_program(name) for name in ("redis-server", "postgres")}
    return {"penstock": penstock.__version__, **found, **programs}


BENCHMARK = Benchmark(
    name="tasks",
    title="Tasks",
    workloads=HERE / "tasks_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=0,
    rounds=5,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
