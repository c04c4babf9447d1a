"""`penstock bench`: measure the speed of a queue."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Annotated, Any, NamedTuple

import penstock
from penstock.cli.formatting import duration
from penstock.cli.options import AsJson, argument, option
from penstock.cli.targets import open_broker
from penstock.cli.terminal import out, print_json, progress_bar, table
from penstock.client import is_url
from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.model import NS, NewMessage
from penstock.queue.facade import AnyQueue
from penstock.queue.metrics import Histogram


class Phase(NamedTuple):
    """The result of one part of a run."""

    name: str
    messages_per_s: float
    p50_s: float  # of a call
    p99_s: float


def bench(
    target: Annotated[
        str, argument("TARGET", "URL of a broker, or a directory to create a queue in.")
    ],
    messages: Annotated[int, option("Number of messages.", "--messages", "-n", min=1)] = 10_000,
    size: Annotated[int, option("Bytes per payload.", min=0)] = 100,
    concurrency: Annotated[
        int, option("Number of threads.", "--concurrency", "-c", min=1, max=1000)
    ] = 8,
    batch: Annotated[int, option("Messages per call.", min=1, max=10_000)] = 1,
    json: AsJson = False,
) -> None:
    """Measure how fast messages are published, leased and acked, in a temporary queue.

    This measures the client as much as the queue: one process with several
    threads, each of which makes one call after the other.
    """
    with _temporary_queue(target) as queue, progress_bar() as progress:
        task = progress.add_task("publishing", total=None)
        phases = [_publish(queue, messages, size, concurrency, batch)]
        progress.update(task, description="leasing and acking")
        phases.append(_consume(queue, messages, concurrency, batch))
    if json:
        document: dict[str, Any] = {"place": target, "messages": messages, "size": size}
        document |= {"concurrency": concurrency, "batch": batch}
        print_json(document | {phase.name: phase._asdict() for phase in phases})
        return
    heads = ["messages/s", "call p50", "call p99"]
    made = table("phase", *heads, right=heads)
    for name, per_s, p50_s, p99_s in phases:
        made.add_row(name.replace("_", " "), f"{per_s:,.0f}", duration(p50_s), duration(p99_s))
    out.print(made)


@contextmanager
def _temporary_queue(target: str) -> Iterator[AnyQueue]:
    """Create a queue and remove it afterwards. A local one syncs as a broker's does by default."""
    if not is_url(target):
        if not Path(target).is_dir():
            raise InvalidInput(f"{target} is not a directory; give an existing one, or a URL")
        with (
            TemporaryDirectory(dir=target, prefix="penstock-bench-") as path,
            penstock.open(path, sync="always") as queue,
        ):
            yield queue
        return
    name = f"bench-{secrets.token_hex(4)}"
    with open_broker(target) as broker:
        broker.create_queue(name)
        try:
            with penstock.open(target, queue=name) as queue:
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
