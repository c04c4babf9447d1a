"""Workloads of the worker benchmark. Each runs in its own process, started by `measure.Runner`.

Messages of 100 bytes are published before the timing starts. The bare loop leases one message and
acks it, repeatedly. The worker calls a handler that does nothing, with concurrency 1 and default
options. Queues do not sync. Over HTTP, the broker runs in its own process.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import Figures, rate_of, run_workload
from server_peers import penstock as broker

import penstock
from penstock.worker import Worker, WorkerOptions

PAYLOAD = bytes(range(28, 128))
FILL_BATCH = 1000
UNTIL_EMPTY = WorkerOptions(idle_s=0)


@contextmanager
def _filled(directory: str, count: int, over_http: bool) -> Iterator[penstock.AnyQueue]:
    """A queue with `count` messages."""
    if over_http:
        with (
            broker(directory, "never") as (port, _),
            penstock.connect(f"http://127.0.0.1:{port}/bench/queue") as remote,
        ):
            _fill(remote, count)
            yield remote
    else:
        with penstock.open(Path(directory), sync="never") as queue:
            _fill(queue, count)
            yield queue


def _fill(queue: penstock.AnyQueue, count: int) -> None:
    for start in range(0, count, FILL_BATCH):
        queue.enqueue_batch([PAYLOAD] * min(FILL_BATCH, count - start))


def bare_threads(directory: str, count: int, over_http: bool) -> Figures:
    with _filled(directory, count, over_http) as queue:

        def loop() -> None:
            for _ in range(count):
                (job,) = queue.lease()
                queue.ack(job)

        return rate_of(count, loop)


def bare_tasks(directory: str, count: int, over_http: bool) -> Figures:
    async def loop(queue: Any) -> None:
        for _ in range(count):
            (job,) = await queue.lease()
            await queue.ack(job)
        if over_http:
            await queue.close()

    with _filled(directory, count, over_http) as queue:
        return rate_of(count, lambda: asyncio.run(loop(queue.for_tasks())))


def worker_threads(directory: str, count: int, over_http: bool) -> Figures:
    return _worker(directory, count, over_http, lambda job: None)


def worker_tasks(directory: str, count: int, over_http: bool) -> Figures:
    async def handle(job: penstock.LeasedMessage) -> None: ...

    return _worker(directory, count, over_http, handle)


def _worker(
    directory: str, count: int, over_http: bool, handler: Callable[[Any], object]
) -> Figures:
    with _filled(directory, count, over_http) as queue:

        def work() -> None:
            done = Worker(queue, handler, options=UNTIL_EMPTY).run().done
            if done != count:
                raise RuntimeError(f"{done} of {count} messages were done")

        return rate_of(count, work)


WORKLOADS = {
    work.__name__: work for work in (bare_tasks, bare_threads, worker_tasks, worker_threads)
}

if __name__ == "__main__":
    run_workload(WORKLOADS)
