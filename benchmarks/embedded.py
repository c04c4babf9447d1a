"""The embedded queue against its peers: `make bench-embedded`; README.md says more."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from chart import as_svg
from measure import Contender, Outcome, Round, Row, Runner, Target, machine_facts, version_of
from report import as_dict, as_markdown, as_table

from penstock.codec import IMPLEMENTATION
from penstock.ledger.files import OsFiles

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE / "embedded_workloads.py"
RESULTS = HERE / "results"

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
                arguments={"count": size(20_000), "threads": 64},
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


def main() -> int:
    arguments = _arguments()
    os.environ["BENCH_BY"] = arguments.by
    every = rows(quick=arguments.quick)
    chosen = [row for row in every if not arguments.only or row.name in arguments.only]
    directory = Path(tempfile.mkdtemp(prefix=".work-", dir=arguments.dir))
    try:
        facts = _facts(directory, arguments.by)
        if facts["file_system"] == "tmpfs":
            print("note: this is memory, not a disk; the durable row means nothing here\n")
        outcomes = _measure(chosen, directory, arguments)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(as_table(outcomes))
    complete = len(chosen) == len(every) and not arguments.quick
    out = arguments.out or (RESULTS if complete else None)
    if out is not None:
        _write(out, facts, arguments.rounds, outcomes)
    missed = any(v.outcome == "MISSED" for outcome in outcomes for v in outcome.verdicts)
    return 1 if missed and not arguments.quick else 0


def _measure(chosen: list[Row], directory: Path, arguments: argparse.Namespace) -> list[Outcome]:
    runner = Runner(WORKLOADS, directory, settle_mib=0 if arguments.quick else SETTLE_MIB)
    outcomes = []
    for row in chosen:
        print(f"{row.name} ", end="", file=sys.stderr, flush=True)
        outcomes.append(
            runner.measure(row, arguments.rounds, patience=arguments.patience, on_round=_show_round)
        )
        print(file=sys.stderr)
    return outcomes


def _show_round() -> None:
    print(".", end="", file=sys.stderr, flush=True)


def _write(out: Path, facts: dict[str, str | int], rounds: int, outcomes: list[Outcome]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    found = as_dict("embedded", facts, rounds, outcomes)
    (out / "embedded.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    (out / "embedded.md").write_text(as_markdown("The embedded queue, measured", facts, outcomes))
    (out / "embedded.svg").write_text(as_svg("The embedded queue and its peers", outcomes))


def _facts(directory: Path, by: str) -> dict[str, str | int]:
    packages = sorted({package for package, _ in PEERS.values() if package})
    return {
        "penstock": version_of("penstock") or "not installed",
        "codec": IMPLEMENTATION,
        **{package: version_of(package) or "not installed" for package in packages},
        **machine_facts(OsFiles().file_system(str(directory))),
        "rates without sync": "by processor time" if by == "cpu" else "by the wall clock",
    }


def _arguments() -> argparse.Namespace:
    names = [row.name for row in rows(quick=True)]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names, help="these rows, not all of them")
    parser.add_argument("--rounds", type=int, default=5, help="how often each row runs (5)")
    parser.add_argument(
        "--patience", type=int, default=1, help="run up to so many times the rounds for quiet ones"
    )
    parser.add_argument(
        "--by",
        choices=("wall", "cpu"),
        default="wall",
        help="rates without sync by the wall clock, or, on a shared machine, by processor time",
    )
    parser.add_argument("--quick", action="store_true", help="little work, to see that it runs")
    parser.add_argument("--dir", type=Path, default=HERE, help="where to work: on a real disk")
    parser.add_argument(
        "--out", type=Path, help="where JSON, page and plot go (a whole run: results/)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
