"""The broker over HTTP compared with other servers: `make bench-server`. See README.md."""

import sys
from collections.abc import Callable, Mapping

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target, version_of
from server_peers import is_there, version_of_program

PROGRAMS = ("beanstalkd", "redis-server", "postgres")
CONNECTIONS = 64


def figure(name: str, what: str = "rate") -> Callable[[Round], float]:
    return lambda one: one[name][what]


def ratio(name: str, to: str) -> Callable[[Round], float]:
    return lambda one: one[name]["rate"] / one[to]["rate"]


def contender(
    name: str, workload: str, does: str, arguments: Mapping[str, int | str | bool]
) -> Contender:
    return Contender(name=name, workload=workload, does=does, arguments=arguments)


def peers(*found: tuple[str, Contender]) -> list[Contender]:
    """Those whose program is installed."""
    return [one for program, one in found if is_there(program)]


def rows(*, quick: bool) -> list[Row]:
    """Every row. A quick run does a hundredth of the work: it shows that all of it runs."""

    def size(full: int) -> int:
        return max(full // 100, 2) if quick else full

    return [
        *_publish_rows(size),
        *_lease_rows(size),
        _latency_row(size),
        _backlog_row(size, quick=quick),
        _idle_row(quick=quick),
    ]


def _publish_rows(size: Callable[[int], int]) -> list[Row]:
    many = {"connections": CONNECTIONS, "each": size(400)}
    return [
        Row(
            name="publish",
            title="durable publish, 64 connections, one message a request",
            unit="messages/s",
            contenders=[
                contender(
                    "penstock",
                    "penstock_publish",
                    "JSON over HTTP; answered after a sync that waiting requests share",
                    {**many, "sync": "always", "batch": 1},
                ),
                *peers(
                    (
                        "beanstalkd",
                        contender(
                            "beanstalkd -f0",
                            "beanstalkd_publish",
                            "put with binlog; a sync each",
                            {**many, "sync_ms": 0},
                        ),
                    ),
                    (
                        "redis-server",
                        contender(
                            "Redis always",
                            "redis_publish",
                            "XADD, appendfsync always; commands of one turn share a sync",
                            {**many, "sync": "always"},
                        ),
                    ),
                    (
                        "postgres",
                        contender(
                            "PostgreSQL",
                            "postgres_publish",
                            "single inserts, prepared; commits that wait share a sync",
                            many,
                        ),
                    ),
                ),
            ],
            targets=[
                Target(
                    says="of beanstalkd -f0, at least 2",
                    judge=ratio("penstock", "beanstalkd -f0"),
                    at_least=2,
                ),
                Target(
                    says="of PostgreSQL's single inserts, at least 2",
                    judge=ratio("penstock", "PostgreSQL"),
                    at_least=2,
                ),
            ],
        ),
        Row(
            name="publish_relaxed",
            title="publish, 64 connections, synced once a second",
            unit="messages/s",
            contenders=[
                contender(
                    "penstock",
                    "penstock_publish",
                    "sync=interval",
                    {**many, "sync": "interval", "batch": 1},
                ),
                *peers(
                    (
                        "beanstalkd",
                        contender(
                            "beanstalkd -f1000",
                            "beanstalkd_publish",
                            "binlog synced once a second",
                            {**many, "sync_ms": 1000},
                        ),
                    ),
                    (
                        "redis-server",
                        contender(
                            "Redis everysec",
                            "redis_publish",
                            "XADD, appendfsync everysec",
                            {**many, "sync": "everysec"},
                        ),
                    ),
                ),
            ],
            targets=[],
        ),
        Row(
            name="publish_batch",
            title="durable publish, 64 connections, 100 messages a request",
            unit="messages/s",
            contenders=[
                contender(
                    "penstock",
                    "penstock_publish",
                    "a JSON array a request, atomic",
                    {"connections": CONNECTIONS, "each": size(100), "sync": "always", "batch": 100},
                ),
            ],
            targets=[
                Target(says="at least 100,000/s", judge=figure("penstock"), at_least=100_000),
            ],
        ),
    ]


def _lease_rows(size: Callable[[int], int]) -> list[Row]:
    many = {"connections": CONNECTIONS, "each": size(200)}
    return [
        Row(
            name="lease",
            title="durable lease and ack, 64 connections, one message each",
            unit="messages/s",
            contenders=[
                contender(
                    "penstock",
                    "penstock_lease",
                    "two requests a message, each answered after a sync",
                    {**many, "sync": "always", "batch": 1},
                ),
                *peers(
                    (
                        "beanstalkd",
                        contender(
                            "beanstalkd -f0",
                            "beanstalkd_lease",
                            "reserve (kept in memory only) and delete",
                            {**many, "sync_ms": 0},
                        ),
                    ),
                    (
                        "redis-server",
                        contender(
                            "Redis always",
                            "redis_lease",
                            "XREADGROUP and XACK",
                            {**many, "sync": "always"},
                        ),
                    ),
                    (
                        "postgres",
                        contender(
                            "PostgreSQL",
                            "postgres_lease",
                            "update with SKIP LOCKED, then delete",
                            many,
                        ),
                    ),
                ),
            ],
            targets=[Target(says="at least 4,000/s", judge=figure("penstock"), at_least=4_000)],
        ),
        Row(
            name="lease_batch",
            title="durable lease and ack, 64 connections, 100 messages each",
            unit="messages/s",
            contenders=[
                contender(
                    "penstock",
                    "penstock_lease",
                    "two requests for a hundred messages",
                    {"connections": CONNECTIONS, "each": size(50), "sync": "always", "batch": 100},
                ),
            ],
            targets=[Target(says="at least 50,000/s", judge=figure("penstock"), at_least=50_000)],
        ),
    ]


def _latency_row(size: Callable[[int], int]) -> Row:
    count = {"count": size(1000)}
    return Row(
        name="latency",
        title="from publish to receipt by a waiting long poll, one connection",
        unit="ms",
        contenders=[
            contender("no sync", "penstock_latency", "sync=never", {**count, "sync": "never"}),
            contender(
                "durable",
                "penstock_latency",
                "sync=always: the lease is answered after a sync that covers the message",
                {**count, "sync": "always"},
            ),
            contender("fdatasync", "fdatasync_latency", "the machine's own, of 126 bytes", count),
        ],
        targets=[
            Target(
                says="no sync, p50, at most 1.5", judge=figure("no sync", "p50_ms"), at_most=1.5
            ),
            Target(says="no sync, p99, at most 10", judge=figure("no sync", "p99_ms"), at_most=10),
            Target(
                says="what the sync adds, in fdatasyncs, at most 1.5",
                judge=lambda one: (
                    (one["durable"]["p50_ms"] - one["no sync"]["p50_ms"])
                    / one["fdatasync"]["p50_ms"]
                ),
                at_most=1.5,
            ),
        ],
    )


def _backlog_row(size: Callable[[int], int], *, quick: bool) -> Row:
    return Row(
        name="backlog",
        title="1 million messages waiting in each of 10 queues",
        unit="ratio, MB",
        contenders=[
            contender(
                "penstock",
                "penstock_backlog",
                "publish, lease and ack singly over all queues, before and after filling them",
                {"queues": 10, "waiting": 2000 if quick else 1_000_000, "each": size(200)},
            ),
        ],
        targets=[
            Target(
                says="publish, at least 0.8",
                judge=figure("penstock", "publish_ratio"),
                at_least=0.8,
            ),
            Target(
                says="lease, at least 0.8", judge=figure("penstock", "lease_ratio"), at_least=0.8
            ),
            Target(says="memory, MB, at most 400", judge=figure("penstock", "rss_mb"), at_most=400),
        ],
    )


def _idle_row(*, quick: bool) -> Row:
    return Row(
        name="idle",
        title="1,000 idle long polls and 500 WebSockets",
        unit="% of a core",
        contenders=[
            contender(
                "penstock",
                "penstock_idle",
                "nothing comes for ten seconds",
                {
                    "polls": 10 if quick else 1000,
                    "sockets": 5 if quick else 500,
                    "seconds": 1 if quick else 10,
                },
            ),
        ],
        targets=[
            Target(says="less than 1 %", judge=figure("penstock", "core_percent"), at_most=1),
        ],
    )


def versions() -> dict[str, str]:
    return {
        "penstock": version_of("penstock") or "not installed",
        **{program: version_of_program(program) for program in PROGRAMS},
        "asyncpg": version_of("asyncpg") or "not installed",
        "uvloop": version_of("uvloop") or "not installed",
    }


BENCHMARK = Benchmark(
    name="server",
    title="The broker over HTTP",
    workloads=HERE / "server_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=128,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
