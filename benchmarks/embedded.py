"""The embedded queue compared with other libraries: `make bench-embedded`. See README.md."""

import sys
from collections.abc import Callable

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target, version_of

MANY = 10_000_000
FEW = 10_000
SETTLE_MIB = 512

# package, name here, and what it does and does not do
PEERS = {
    "queuelib": (
        "queuelib",
        "a write a message; no checksum, id, time or ack; saved at close only",
    ),
    "persist-queue file": ("persist-queue", "pickle; fsync and a renamed info file at each put"),
    "persist-queue SQLite": (
        "persist-queue",
        "pickle; its own settings: WAL, a synced commit each",
    ),
    "persist-queue ack": ("persist-queue", "the same with states: ready, unack, acked"),
    "litequeue": ("litequeue", "SQLite, WAL, synchronous=NORMAL; text only; a get is pop and done"),
    "diskcache": ("diskcache", "Deque: a row a message, SQLite, WAL, synchronous=OFF"),
    "huey SQLite": ("huey", "SqliteStorage with fsync=False: priorities; no ack"),
    "SQLite by hand": (None, "one table, a statement a call, WAL, synchronous=OFF"),
    "LMDB by hand": ("lmdb", "seq as key, no sync, writemap; one transaction a call; no checksum"),
}
SLOW = {"persist-queue file": 500, "persist-queue SQLite": 500, "persist-queue ack": 300}


def ratio(name: str, to: str, figure: str = "rate") -> Callable[[Round], float]:
    return lambda one: one[name][figure] / one[to][figure]


def value(name: str, figure: str = "rate") -> Callable[[Round], float]:
    return lambda one: one[name][figure]


def peers(workload: str, count: int, *names: str) -> list[Contender]:
    """The peers that can do it, each with as much work as it gets done in about a second."""
    return [
        Contender(
            name=name,
            workload=workload,
            arguments={"peer": name, "count": min(count, SLOW.get(name, count))},
            peer=PEERS[name][0],
            does=PEERS[name][1],
        )
        for name in names
    ]


def rows(*, quick: bool) -> list[Row]:
    """Every row. A quick run does a hundredth of the work: it shows that all of it runs."""

    def size(full: int) -> int:
        return max(full // 100, 200) if quick else full

    return [
        *_single_rows(size),
        _general_row(size),
        _publish_row(size),
        *_batch_rows(size),
        *_backlog_rows(size),
        _durable_row(size),
        _delayed_row(size, quick=quick),
    ]


def _single_rows(size: Callable[[int], int]) -> list[Row]:
    return [
        Row(
            name="enqueue",
            title="enqueue, one at a time, no sync",
            unit="messages/s",
            contenders=[
                Contender(
                    name="penstock",
                    workload="penstock_enqueue",
                    arguments={"count": size(300_000)},
                    does="checksum, id and time; safe from a kill when the call returns",
                ),
                *peers("peer_put", size(200_000), "queuelib"),
                *peers("peer_put", size(50_000), "LMDB by hand"),
                *peers("peer_put", size(10_000), "SQLite by hand", "huey SQLite", "litequeue"),
                *peers(
                    "peer_put",
                    size(10_000),
                    "diskcache",
                    "persist-queue file",
                    "persist-queue SQLite",
                ),
            ],
            targets=[
                Target(
                    says="of queuelib's push, at least 1.5",
                    judge=ratio("penstock", "queuelib"),
                    at_least=1.5,
                ),
                Target(
                    says="of persist-queue's SQLite queue, by the wall, at least 30",
                    judge=ratio("penstock", "persist-queue SQLite", "wall_rate"),
                    at_least=30,
                ),
            ],
        ),
        Row(
            name="dequeue",
            title="dequeue, one at a time, no sync",
            unit="messages/s",
            contenders=[
                Contender(
                    name="penstock",
                    workload="penstock_dequeue",
                    arguments={"count": size(200_000)},
                    does="checksum verified, an event on record; safe from a kill",
                ),
                *peers("peer_get", size(200_000), "queuelib"),
                *peers("peer_get", size(50_000), "LMDB by hand"),
                *peers("peer_get", size(5_000), "SQLite by hand", "huey SQLite", "litequeue"),
                *peers(
                    "peer_get",
                    size(5_000),
                    "diskcache",
                    "persist-queue file",
                    "persist-queue SQLite",
                ),
            ],
            targets=[
                Target(
                    says="of queuelib's pop, at least 1",
                    judge=ratio("penstock", "queuelib"),
                    at_least=1,
                ),
            ],
        ),
        Row(
            name="lease",
            title="lease and ack, one at a time, no sync",
            unit="messages/s",
            contenders=[
                Contender(
                    name="penstock",
                    workload="penstock_lease",
                    arguments={"count": size(100_000)},
                    does="two events on record, a fenced receipt, a timer for the lease's end",
                ),
                *peers("peer_lease", size(5_000), "SQLite by hand", "litequeue"),
                *peers("peer_lease", size(5_000), "persist-queue ack"),
            ],
            targets=[
                Target(says="at least 100,000/s", judge=value("penstock"), at_least=100_000),
            ],
        ),
    ]


GENERAL = {
    "beside": "beside 1,000 abandoned leases and 10,000 delayed messages",
    "limits": "each with a time to live and a number of attempts",
    "due": "each published with a delay, and due",
    "group": "of a second consumer group",
    "priorities": "of three priorities",
    "keys": "of 1,000 keys",
}


def _general_row(size: Callable[[int], int]) -> Row:
    return Row(
        name="general",
        title="lease and ack, one at a time, of more than plain messages",
        unit="messages/s",
        contenders=[
            Contender(name="plain", workload="penstock_lease", arguments={"count": size(50_000)}),
            *[
                Contender(
                    name=kind,
                    workload="penstock_general",
                    arguments={"count": size(20_000), "kind": kind},
                    does=does,
                )
                for kind, does in GENERAL.items()
            ],
        ],
        targets=[
            Target(
                says=f"{does}: of plain messages, at least 0.7",
                judge=ratio(kind, "plain"),
                at_least=0.7,
            )
            for kind, does in GENERAL.items()
        ],
    )


PUBLISHED_BESIDE = (
    "without options, into a queue with 1,000 leases, 10,000 delayed messages, ten priorities, "
    "1,000 keys and a second group"
)
PUBLISHED = {
    "priority": "of ten priorities",
    "key": "of 1,000 keys",
    "ttl": "with a time to live",
    "delay": "due in an hour",
    "headers": "with two headers",
    "attempts": "with a number of attempts",
    "dedup id": "each with a dedup id of its own",
}


def _publish_row(size: Callable[[int], int]) -> Row:
    return Row(
        name="publish",
        title="enqueue, one message at a time, without and with options, no sync",
        unit="messages/s",
        contenders=[
            Contender(
                name=kind,
                workload="penstock_publish",
                arguments={"count": size(200_000), "kind": kind},
                does=does,
            )
            for kind, does in {
                "plain": "without options",
                "beside": PUBLISHED_BESIDE,
                **PUBLISHED,
            }.items()
        ],
        targets=[
            Target(
                says=f"{PUBLISHED_BESIDE}: of plain messages, at least 0.7",
                judge=ratio("beside", "plain"),
                at_least=0.7,
            ),
        ]
        + [
            Target(
                says=f"{does}: of plain messages, at least 0.7",
                judge=ratio(kind, "plain"),
                at_least=0.7,
            )
            for kind, does in PUBLISHED.items()
            if kind != "dedup id"  # it needs the state
        ],
    )


def _batch_rows(size: Callable[[int], int]) -> list[Row]:
    by_hand = ("LMDB by hand", "SQLite by hand")
    return [
        Row(
            name="enqueue_batch",
            title="enqueue in batches of 100, no sync",
            unit="messages/s",
            contenders=[
                Contender(
                    name="penstock",
                    workload="penstock_enqueue_batch",
                    arguments={"count": size(2_000_000)},
                    does="each batch whole or not at all; an id each",
                ),
                *peers("peer_put_batch", size(1_000_000), by_hand[0]),
                *peers("peer_put_batch", size(200_000), by_hand[1]),
            ],
            targets=[
                Target(says="at least 2 M/s", judge=value("penstock"), at_least=2_000_000),
                Target(
                    says="of LMDB by hand, more than 1",
                    judge=ratio("penstock", "LMDB by hand"),
                    at_least=1,
                ),
            ],
        ),
        Row(
            name="dequeue_batch",
            title="dequeue in batches of 100, no sync",
            unit="messages/s",
            contenders=[
                Contender(
                    name="penstock",
                    workload="penstock_dequeue_batch",
                    arguments={"count": size(1_000_000)},
                    does="an event a batch",
                ),
                *peers("peer_get_batch", size(500_000), by_hand[0]),
                *peers("peer_get_batch", size(100_000), by_hand[1]),
            ],
            targets=[
                Target(says="at least 1 M/s", judge=value("penstock"), at_least=1_000_000),
            ],
        ),
        Row(
            name="lease_batch",
            title="lease and ack in batches of 100, no sync",
            unit="messages/s",
            contenders=[
                Contender(
                    name="penstock",
                    workload="penstock_lease_batch",
                    arguments={"count": size(500_000)},
                    does="two events a batch",
                ),
                *peers("peer_lease_batch", size(50_000), by_hand[1]),
            ],
            targets=[
                Target(says="at least 400,000/s", judge=value("penstock"), at_least=400_000),
            ],
        ),
    ]


def _backlog_rows(size: Callable[[int], int]) -> list[Row]:
    many = size(MANY)
    calls = (
        "enqueue",
        "enqueue_batch",
        "dequeue",
        "dequeue_batch",
        "lease_and_ack",
        "lease_and_ack_batch",
    )

    def opened(name: str, kind: str, count: int, *, die: bool, does: str) -> Contender:
        return Contender(
            name=name,
            workload="open_with_many",
            arguments={"count": count, "kind": kind, "die": die},
            does=does,
        )

    return [
        Row(
            name="backlog",
            title="speed with 10 million waiting, of that with 10 thousand",
            unit="ratio",
            prepare=Contender(name="fill", workload="fill", arguments={"count": many}),
            contenders=[
                Contender(
                    name="penstock",
                    workload="waiting_rates",
                    arguments={"few": FEW, "blocks": size(4_000) // 100, "block": 2_000},
                    does="both in one process, in turns of 2,000 messages; processor time",
                )
            ],
            targets=[
                Target(
                    says=f"{call}, at least 0.8",
                    judge=value("penstock", f"{call}_ratio"),
                    at_least=0.8,
                )
                for call in calls
            ],
        ),
        Row(
            name="open",
            title="10 million waiting: memory, and opening",
            unit="MB, s",
            contenders=[
                opened("closed", "plain", many, die=False, does="opened after a clean close"),
                opened("killed", "plain", many, die=True, does="opened after a kill -9"),
                opened(
                    "priorities, killed",
                    "priorities",
                    many // 50,
                    die=True,
                    does="a fiftieth as many, of random priorities",
                ),
                opened(
                    "keys, killed",
                    "keys",
                    many // 50,
                    die=True,
                    does="a fiftieth as many, each with a key of its own: each costs an object",
                ),
            ],
            targets=[
                Target(
                    says="the one who enqueued them, MB, at most 250",
                    judge=value("closed", "writer_mb"),
                    at_most=250,
                ),
                Target(
                    says="the one who opened, MB, at most 250",
                    judge=value("closed", "reader_mb"),
                    at_most=250,
                ),
                Target(
                    says="open after close, s, at most 2",
                    judge=value("closed", "open_s"),
                    at_most=2,
                ),
                Target(
                    says="open after kill -9, s, at most 5",
                    judge=value("killed", "open_s"),
                    at_most=5,
                ),
            ],
        ),
    ]


def _durable_row(size: Callable[[int], int]) -> Row:
    return Row(
        name="durable",
        title="enqueue, durable (sync=always)",
        unit="messages/s",
        often=3,
        contenders=[
            Contender(
                name="disk",
                workload="durable_loop",
                arguments={"count": size(2_000)},
                does="write(2) at the end of a file, fdatasync, again",
            ),
            Contender(
                name="1 thread",
                workload="durable_threads",
                arguments={"count": size(2_000), "threads": 1},
            ),
            Contender(
                name="64 threads",
                workload="durable_threads",
                arguments={"count": size(64_000), "threads": 64},
            ),
            Contender(
                name="1,000 tasks",
                workload="durable_tasks",
                arguments={"count": max(size(100_000), 2_000), "tasks": 1_000},
                does="penstock.aio, one thread",
            ),
        ],
        targets=[
            Target(
                says="1 thread, of the disk's own rate, at least 0.8",
                judge=ratio("1 thread", "disk"),
                at_least=0.8,
            ),
            Target(
                says="64 threads, of the disk's own rate, at least 7",
                judge=ratio("64 threads", "disk"),
                at_least=7,
            ),
            Target(
                says="1,000 tasks, of the disk's own rate, at least 25",
                judge=ratio("1,000 tasks", "disk"),
                at_least=25,
            ),
        ],
    )


def _delayed_row(size: Callable[[int], int], *, quick: bool) -> Row:
    return Row(
        name="delayed",
        title="delayed messages, 1 million others waiting",
        unit="ms after due",
        contenders=[
            Contender(
                name="penstock",
                workload="delayed",
                arguments={
                    "waiting": size(1_000_000),
                    "count": size(2_000),
                    "spread_s": 1 if quick else 8,
                },
                does="dequeue(wait_s=60) in one thread",
            )
        ],
        targets=[
            Target(says="p99, ms, at most 20", judge=value("penstock", "p99_ms"), at_most=20),
            Target(
                says="the earliest, ms after due, at least 0",
                judge=value("penstock", "earliest_ms"),
                at_least=0,
            ),
            Target(
                says="memory of a delayed message, bytes, at most 64",
                judge=value("penstock", "bytes_each"),
                at_most=64,
            ),
        ],
    )


def versions() -> dict[str, str]:
    packages = sorted({package for package, _ in PEERS.values() if package})
    return {one: version_of(one) or "not installed" for one in ("penstock", *packages)}


BENCHMARK = Benchmark(
    name="embedded",
    title="The embedded queue",
    workloads=HERE / "embedded_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=SETTLE_MIB,
    rounds=5,
    by_cpu=True,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))
