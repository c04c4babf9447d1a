"""`penstock bench`: measure a machine and a queue on it, or a broker."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, NamedTuple

import penstock
from penstock.cli.bench_machine import ROW_S, measure
from penstock.cli.formatting import duration
from penstock.cli.options import AsJson, argument, option
from penstock.cli.targets import open_broker
from penstock.cli.terminal import (
    out,
    print_json,
    print_stderr,
    print_text,
    progress_bar,
    table,
)
from penstock.client import is_url
from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.model import NS, NewMessage
from penstock.queue.facade import AnyQueue
from penstock.queue.metrics import Histogram

_LIMITS = {
    "write": "write: one entry, into the page cache",
    "fdatasync": "fdatasync: one entry, on the disk",
    "disk": "disk: 1 MiB at a time, on the disk",
    "checksum": "checksum: CRC-32C, one core",
    "loopback": "loopback: request and reply of a publish",
}


class Phase(NamedTuple):
    """The result of one part of a run."""

    name: str
    messages_per_s: float
    p50_s: float  # of a call
    p99_s: float


def bench(
    target: Annotated[
        str,
        argument("TARGET", "Directory on the disk to measure (default: .), or URL of a broker."),
    ] = ".",
    size: Annotated[int, option("Bytes per payload.", min=0, max=1_000_000)] = 100,
    messages: Annotated[
        int | None, option("At a URL: number of messages; 10000.", "--messages", "-n", min=1)
    ] = None,
    concurrency: Annotated[
        int | None,
        option("At a URL: number of threads; 8.", "--concurrency", "-c", min=1, max=1000),
    ] = None,
    batch: Annotated[
        int | None, option("At a URL: messages per call; 1.", min=1, max=10_000)
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure this machine and a queue on it, or a broker.

    In a directory: what the disk, the processor and the loopback interface can
    do, and which share of it a queue and a broker reach, in ten seconds. At a
    URL: how fast one process with several threads publishes, leases and acks.
    What is created is removed.
    """
    if not is_url(target):
        given = {"--messages": messages, "--concurrency": concurrency, "--batch": batch}
        for name, value in given.items():
            if value is not None:
                raise InvalidInput(f"{name} is for the URL of a broker; leave it out")
        _bench_machine(target, size, as_json=json)
    else:
        _bench_broker(target, messages or 10_000, size, concurrency or 8, batch or 1, as_json=json)


# -- in a directory --------------------------------------------------------------------------------


def _bench_machine(directory: str, size: int, *, as_json: bool) -> None:
    if not Path(directory).is_dir():
        raise InvalidInput(f"{directory} is not a directory; give an existing one, or a URL")
    with progress_bar() as progress:
        task = progress.add_task("", total=None)
        report = measure(
            Path(directory), size, lambda name: progress.update(task, description=name), ROW_S
        )
    if as_json:
        limits = [limit._asdict() for limit in report.limits]
        rows = [row._asdict() for row in report.rows]
        print_json(report._asdict() | {"place": directory, "limits": limits, "rows": rows})
        return
    print_text(f"{report.machine}; payloads of {size} bytes in {directory}\n")
    made = table("limit of this machine", "per second", right=["per second"])
    for limit in report.limits:
        in_bytes = limit.unit == "bytes"
        per_s = f"{limit.per_s / 1e6:,.0f} MB" if in_bytes else f"{limit.per_s:,.0f}"
        made.add_row(_LIMITS[limit.name].format(size=size), per_s)
    out.print(made)
    heads = ["messages/s", "share"]
    made = table("queue", *heads, "of", right=heads)
    for row in report.rows:
        share = "" if row.share is None else f"{row.share:.0%}"
        made.add_row(row.name, f"{row.messages_per_s:,.0f}", share, row.limit)
    out.print()
    out.print(made)
    for note in report.notes:
        print_stderr(note)


# -- at a broker -----------------------------------------------------------------------------------


def _bench_broker(
    url: str, messages: int, size: int, concurrency: int, batch: int, *, as_json: bool
) -> None:
    with _temporary_queue(url) as queue, progress_bar() as progress:
        task = progress.add_task("publishing", total=None)
        phases = [_publish(queue, messages, size, concurrency, batch)]
        progress.update(task, description="leasing and acking")
        phases.append(_consume(queue, messages, concurrency, batch))
    if as_json:
        document: dict[str, Any] = {"place": url, "messages": messages, "size": size}
        document |= {"concurrency": concurrency, "batch": batch}
        print_json(document | {phase.name: phase._asdict() for phase in phases})
        return
    heads = ["messages/s", "call p50", "call p99"]
    made = table("phase", *heads, right=heads)
    for name, per_s, p50_s, p99_s in phases:
        made.add_row(name.replace("_", " "), f"{per_s:,.0f}", duration(p50_s), duration(p99_s))
    out.print(made)


@contextmanager
def _temporary_queue(url: str) -> Iterator[AnyQueue]:
    """Create a queue at a broker, and remove it afterwards."""
    name = f"bench-{secrets.token_hex(4)}"
    with open_broker(url) as broker:
        broker.create_queue(name)
        try:
            with penstock.open(url, queue=name) as queue:
                yield queue
        finally:
            broker.delete_queue(name)


def _publish(queue: AnyQueue, messages: int, size: int, threads: int, batch: int) -> Phase:
    payload = bytes(size)

    def publish(n: int) -> int:
        queue.publish([NewMessage(payload=payload)] * n)
        return n

    return _timed("publish", messages, threads, batch, publish)


def _consume(queue: AnyQueue, messages: int, threads: int, batch: int) -> Phase:
    def consume(n: int) -> int:
        leased = queue.lease(n)
        if leased:
            queue.ack(leased)
        return len(leased)

    return _timed("lease_and_ack", messages, threads, batch, consume)


def _timed(name: str, messages: int, threads: int, batch: int, work: Callable[[int], int]) -> Phase:
    """Run `work` in several threads until it has handled all messages."""
    clock = SystemClock()
    turns = count(0, batch)
    took, lock = Histogram(), Lock()

    def run(_: int) -> int:
        done = 0
        while (start := next(turns)) < messages:
            began_ns = clock.monotonic_ns()
            done += work(min(batch, messages - start))
            with lock:
                took.add(clock.monotonic_ns() - began_ns)
        return done

    began_ns = clock.monotonic_ns()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(run, range(threads)))
    seconds = (clock.monotonic_ns() - began_ns) / NS
    calls = took.percentiles()
    return Phase(name, done / seconds, calls.p50, calls.p99)
