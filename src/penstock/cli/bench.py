"""`penstock bench`: how fast a queue is, here and now."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Annotated, Any, NamedTuple

import typer

import penstock
from penstock.cli.parameters import AsJson
from penstock.cli.places import remote
from penstock.cli.terminal import open_progress, show_table, table, write_json
from penstock.cli.words import span
from penstock.client import is_url
from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.model import NS, NewMessage
from penstock.queue import Queue
from penstock.queue.metrics import Histogram


class Leg(NamedTuple):
    """One part of a run."""

    name: str
    messages_per_s: float
    p50_s: float  # of a call
    p99_s: float


def bench(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="A broker's URL, or a directory to make a queue in.",
            show_default=False,
        ),
    ],
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="How many.")] = 10_000,
    size: Annotated[int, typer.Option(min=0, help="Bytes of each payload.")] = 100,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, max=1000, help="Threads.")
    ] = 8,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Messages a call.")] = 1,
    json: AsJson = False,
) -> None:
    """Publish messages, then lease and ack them, in a queue of its own that is removed at the end.

    Measures this client as much as the queue: one process, threads, one call after the other in
    each.
    """
    with _scratch_queue(place) as queue, open_progress() as progress:
        task = progress.add_task("publishing", total=None)
        legs = [_publish(queue, messages, size, concurrency, batch)]
        progress.update(task, description="leasing and acking")
        legs.append(_consume(queue, messages, concurrency, batch))
    if json:
        document: dict[str, Any] = {"place": place, "messages": messages, "size": size}
        document |= {"concurrency": concurrency, "batch": batch}
        write_json(document | {leg.name: leg._asdict() for leg in legs})
        return
    heads = ["messages/s", "call p50", "call p99"]
    made = table("what", *heads, right=heads)
    for leg in legs:
        made.add_row(
            leg.name.replace("_", " "),
            f"{leg.messages_per_s:,.0f}",
            span(leg.p50_s),
            span(leg.p99_s),
        )
    show_table(made)


@contextmanager
def _scratch_queue(place: str) -> Iterator[Queue]:
    """As durable as a broker's queues are by default, so that both are compared alike."""
    if not is_url(place):
        if not Path(place).is_dir():
            raise InvalidInput(f"{place} is not a directory: name one that is there, or a URL")
        with (
            TemporaryDirectory(dir=place, prefix="penstock-bench-") as path,
            penstock.open(path, sync="always") as queue,
        ):
            yield queue
        return
    name = f"bench-{secrets.token_hex(4)}"
    with remote(place) as broker:
        broker.create_queue(name)
        try:
            with penstock.open(place, queue=name) as queue:
                yield queue
        finally:
            broker.delete_queue(name)


def _publish(queue: Queue, messages: int, size: int, threads: int, batch: int) -> Leg:
    payload = bytes(size)

    def publish(n: int) -> int:
        queue.publish([NewMessage(payload=payload)] * n)
        return n

    return _timed("publish", messages, threads, batch, publish)


def _consume(queue: Queue, messages: int, threads: int, batch: int) -> Leg:
    def consume(n: int) -> int:
        leased = queue.lease(n)
        if leased:
            queue.ack(leased)
        return len(leased)

    return _timed("lease_and_ack", messages, threads, batch, consume)


def _timed(name: str, messages: int, threads: int, batch: int, work: Callable[[int], int]) -> Leg:
    """The work in several threads, until it was done for so many messages."""
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
    return Leg(name, done / seconds, calls.p50, calls.p99)
