"""Queues in PostgreSQL: Penstock's store and its peers on one server: `make bench-postgres`.

See README.md beside this file, and postgres_peers.py for what each contender does.
"""

import sys
from collections.abc import Sequence

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target, version_of
from server_peers import version_of_program

FILES, POSTGRES, STANDBY = "penstock, files", "penstock", "penstock, standby"
PEERS = {  # by the package that is needed
    "procrastinate": "defer_async, fetch_job, finish_job with delete_job",
    "pgqueuer": "enqueue, dequeue, log_jobs; over a pool of asyncpg",
    "asyncpg": "a table, for update skip locked, prepared; leases with synchronous_commit=off",
}
TABLE = "SKIP LOCKED table"


def rows(*, quick: bool) -> list[Row]:
    """Return all rows. A quick run shows that all of them work."""
    seconds = 1 if quick else 5
    clients = 8 if quick else 64
    return [
        _singles_row(clients, seconds),
        _http_row(clients, seconds),
        _batches_row(seconds),
        _backlog_row(20_000 if quick else 1_000_000, 2 if quick else 60),
        _bloat_row(20_000 if quick else 3_600_000),
        _delivery_row(50 if quick else 500),
        _brokers_row(clients, seconds),
    ]


def _of(figure: str, name: str, others: Sequence[str], at_least: float) -> Target:
    """Compare a figure with the best of others that ran."""

    def judge(one: Round) -> float:
        ran = [one[other][figure] for other in others if other in one]
        if not ran:
            raise KeyError(others[0])  # none is installed: it is not judged
        return one[name][figure] / max(ran)

    to = others[0] if len(others) == 1 else "the best peer"
    says = f"{name} of {to}, {figure.removesuffix('_per_s')}, at least {at_least:g}"
    return Target(says=says, judge=judge, at_least=at_least)


def _rate(figure: str, at_least: float) -> Target:
    what = figure.removesuffix("_per_s")
    return Target(
        says=f"{POSTGRES}, {what} a second, at least {at_least:,.0f}",
        judge=lambda one: one[POSTGRES][figure],
        at_least=at_least,
    )


def _peers(arguments: dict[str, int]) -> list[Contender]:
    return [
        Contender(
            name=TABLE if package == "asyncpg" else package,
            workload="peer",
            arguments={"peer": package, **arguments},
            peer=package,
            does=does,
        )
        for package, does in PEERS.items()
    ]


def _singles_row(clients: int, seconds: int) -> Row:
    arguments = {"clients": clients, "batch": 1, "seconds": seconds}
    peers = _peers(arguments)
    names = [peer.name for peer in peers]
    return Row(
        name="singles",
        title=f"{clients} + {clients} tasks that call the store, one message a call",
        unit="publishes/s and leases with ack/s",
        contenders=[
            _store(FILES, "files", arguments, "the store on files, sync=always"),
            _store(POSTGRES, "postgres", arguments, "the store on PostgreSQL"),
            _store(STANDBY, "pair", arguments, "the same; a standby applies each commit first"),
            *peers,
        ],
        targets=[
            _of("publish_per_s", POSTGRES, names, 3),
            _of("lease_per_s", POSTGRES, names, 3),
            _rate("publish_per_s", 26_000),
            _rate("lease_per_s", 12_000),
        ],
    )


def _store(name: str, on: str, arguments: dict[str, int], does: str) -> Contender:
    return Contender(name=name, workload="store", arguments={"on": on, **arguments}, does=does)


def _http_row(clients: int, seconds: int) -> Row:
    def contender(name: str, on: str) -> Contender:
        return Contender(
            name=name,
            workload="http",
            arguments={"on": on, "clients": clients, "seconds": seconds},
            does="one broker over HTTP, one message a request",
        )

    return Row(
        name="http",
        title=f"{clients} + {clients} connections over HTTP, one message a request",
        unit="publishes/s and leases with ack/s",
        contenders=[contender(FILES, "files"), contender(POSTGRES, "postgres")],
        targets=[
            _of("publish_per_s", POSTGRES, [FILES], 0.6),
            _of("lease_per_s", POSTGRES, [FILES], 0.6),
        ],
    )


def _batches_row(seconds: int) -> Row:
    arguments = {"clients": 8, "batch": 100, "seconds": seconds}
    return Row(
        name="batches",
        title="8 + 8 tasks that call the store, 100 messages a call",
        unit="publishes/s and leases with ack/s",
        contenders=[
            _store(FILES, "files", arguments, "the store on files, sync=always"),
            _store(POSTGRES, "postgres", arguments, "the store on PostgreSQL"),
            *_peers(arguments),
        ],
        targets=[_rate("publish_per_s", 60_000), _rate("lease_per_s", 40_000)],
    )


def _backlog_row(waiting: int, seconds: int) -> Row:
    return Row(
        name="backlog",
        title=f"{waiting:,} waiting, a foreign snapshot held for {seconds} s",
        unit="p50 of a lease",
        contenders=[
            Contender(
                name=POSTGRES,
                workload="backlog",
                arguments={"waiting": waiting, "seconds": seconds},
                does="8 tasks publish, lease and ack; first with an empty queue",
            )
        ],
        targets=[
            Target(
                says="p50 of a lease, of that of the empty queue, at most 2",
                judge=lambda one: one[POSTGRES]["full_p50_us"] / one[POSTGRES]["empty_p50_us"],
                at_most=2,
            )
        ],
    )


def _bloat_row(messages: int) -> Row:
    return Row(
        name="bloat",
        title=f"the table of content after {messages:,} messages: an hour at 1,000 a second",
        unit="MiB",
        contenders=[
            Contender(
                name=POSTGRES,
                workload="bloat",
                arguments={"messages": messages},
                does="8 tasks publish, lease and ack batches of 100; segments of 64 MiB",
            )
        ],
        targets=[],
    )


def _delivery_row(count: int) -> Row:
    def contender(name: str, polls_owner: bool, does: str) -> Contender:
        arguments = {"count": count, "polls_owner": polls_owner}
        return Contender(name=name, workload="delivery", arguments=arguments, does=does)

    def target(name: str) -> Target:
        return Target(
            says=f"{name}, p50 ms, at most 10",
            judge=lambda one: one[name]["p50_ms"],
            at_most=10,
        )

    to_owner, from_owner = "to the owner", "from the owner"
    return Row(
        name="delivery",
        title="publish to delivery across two brokers",
        unit="ms",
        contenders=[
            contender(to_owner, True, "the long poll waits at the broker that owns the queue"),
            contender(from_owner, False, "the publish goes to the broker that owns the queue"),
        ],
        targets=[target(to_owner), target(from_owner)],
    )


def _brokers_row(clients: int, seconds: int) -> Row:
    numbers = (1, 2, 4)

    def name(brokers: int) -> str:
        return f"{brokers} broker{'s' if brokers > 1 else ''}"

    return Row(
        name="brokers",
        title=f"publish to one queue over HTTP, {clients} connections over all brokers",
        unit="publishes/s",
        contenders=[
            Contender(
                name=name(brokers),
                workload="brokers",
                arguments={"brokers": brokers, "clients": clients, "seconds": seconds},
                does="one of them owns the queue; the others forward",
            )
            for brokers in numbers
        ],
        targets=[_of("publish_per_s", name(n), [name(1)], 0.8) for n in numbers[1:]],
    )


def versions() -> dict[str, str]:
    packages = ("penstock", "psycopg", "asyncpg", "procrastinate", "pgqueuer", "uvloop")
    found = {package: version_of(package) or "not installed" for package in packages}
    settings = "shared_buffers=256MB, max_wal_size=4GB, data checksums; the rest are defaults"
    return {**found, "postgres": version_of_program("postgres"), "database settings": settings}


BENCHMARK = Benchmark(
    name="postgres",
    title="Queues in PostgreSQL",
    workloads=HERE / "postgres_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=0,
    rounds=3,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
