"""Workloads of the benchmark of interfaces. Each runs in its own process, with a broker beside it.

Every publish and ack is durable when it is answered. One process has all clients, as tasks or as
threads: what they cost is part of the figures, as it is in a program.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import count
from time import perf_counter, sleep
from typing import Any

import uvloop
from interfaces_clients import (
    OF_TASKS,
    OF_THREADS,
    PATH,
    Addresses,
    AsyncClient,
    BlockingClient,
    Order,
    embedded,
    orders,
)
from measure import Figures, run_workload
from server_peers import wait_until_ready

WARM_S = 0.2
PAUSE_S = 0.002  # until a waiting call has arrived at the broker
EMBEDDED = "embedded"


@contextmanager
def broker(directory: str) -> Iterator[Addresses]:
    """Serve all interfaces from one process."""
    command = [sys.executable, "-m", "penstock", "serve", directory, "--port", "0", "--json"]
    command += ["--grpc", "127.0.0.1:0", "--beanstalk", "127.0.0.1:0"]
    environment = {**os.environ, "PENSTOCK_QUEUES_SYNC": "always"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            urls = json.loads(process.stdout.readline())["urls"]
            found = {scheme: rest for scheme, _, rest in (url.partition("://") for url in urls)}
            addresses = Addresses(f"http://{found['http']}", found["grpc"], found["beanstalk"])
            wait_until_ready(addresses.port)
            _create_queue(addresses.port)  # a call that waits for messages needs it
            yield addresses
        finally:
            process.terminate()


def _create_queue(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("PUT", PATH)
    assert connection.getresponse().status == 201
    connection.close()


class Batches:
    """Messages in turn, `size` at a time."""

    def __init__(self, size: int) -> None:
        every = orders()
        self._batches = [
            [every[(start + n) % len(every)] for n in range(size)] for start in range(len(every))
        ]
        self._turn = count()

    def next(self) -> Sequence[Order]:
        return self._batches[next(self._turn) % len(self._batches)]


class Tally:
    """Counts until a deadline or a number; the rate is up to the last that was counted."""

    def __init__(self, seconds: float, most: int | None = None) -> None:
        self.began = self._last = perf_counter()
        self._until = self.began + seconds
        self._most = most
        self.total = 0

    def add(self, number: int) -> None:
        self.total += number
        if number:
            self._last = perf_counter()

    @property
    def is_over(self) -> bool:
        return perf_counter() >= self._until or (
            self._most is not None and self.total >= self._most
        )

    @property
    def left_s(self) -> float:
        return max(self._until - perf_counter(), 0.0)

    @property
    def rate(self) -> float:
        return self.total / max(self._last - self.began, 1e-9)


# -- clients of tasks ------------------------------------------------------------------------------


async def _publish_all(clients: Sequence[AsyncClient], size: int, seconds: float) -> Tally:
    tally, batches = Tally(seconds), Batches(size)

    async def work(client: AsyncClient) -> None:
        while not tally.is_over:
            await client.publish(batches.next())
            tally.add(size)

    await asyncio.gather(*(work(client) for client in clients))
    return tally


async def _consume_all(
    clients: Sequence[AsyncClient], size: int, seconds: float, most: int
) -> Tally:
    tally = Tally(seconds, most)

    async def work(client: AsyncClient) -> None:
        while not tally.is_over:
            tally.add(await client.consume(size))

    tasks = [asyncio.ensure_future(work(client)) for client in clients]
    done, waiting = await asyncio.wait(tasks, timeout=tally.left_s + 0.05)
    for task in waiting:  # streams wait for messages that do not come
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for task in done:
        task.result()
    return tally


async def _rates_of_tasks(opened: Any, size: int, seconds: float) -> Figures:
    async with opened as clients:
        warm = await _publish_all(clients, size, WARM_S)
        published = await _publish_all(clients, size, seconds)
        left = warm.total + published.total
        await asyncio.gather(*(client.prepare() for client in clients))
        consumed = await _consume_all(clients, size, seconds, left)
        return {"publish_per_s": published.rate, "consume_per_s": consumed.rate}


async def _latencies_of_tasks(opened: Any, seconds: float, deliveries: int) -> Figures:
    async with opened as (publisher, receiver):
        batches, waits = Batches(1), []
        await receiver.prepare()
        for _ in range(deliveries):  # first: the queue must be empty
            receiving = asyncio.ensure_future(_received(receiver))
            await asyncio.sleep(PAUSE_S)
            began = perf_counter()
            await publisher.publish(batches.next())
            waits.append(await receiving - began)
        await _publish_all([publisher], 1, WARM_S)
        took, tally = [], Tally(seconds)
        while not tally.is_over:
            began = perf_counter()
            await publisher.publish(batches.next())
            took.append(perf_counter() - began)
        return _latency_figures(took, waits)


async def _received(client: AsyncClient) -> float:
    await client.receive()
    return perf_counter()


# -- clients of threads ----------------------------------------------------------------------------


def _in_threads(clients: Sequence[BlockingClient], work: Callable[[BlockingClient], None]) -> None:
    errors: list[BaseException] = []

    def run(client: BlockingClient) -> None:
        try:
            work(client)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _publish_in_threads(clients: Sequence[BlockingClient], size: int, seconds: float) -> Tally:
    tally, batches, lock = Tally(seconds), Batches(size), threading.Lock()

    def work(client: BlockingClient) -> None:
        while not tally.is_over:
            client.publish(batches.next())
            with lock:
                tally.add(size)

    _in_threads(clients, work)
    return tally


def _consume_in_threads(
    clients: Sequence[BlockingClient], size: int, seconds: float, most: int
) -> Tally:
    tally, lock = Tally(seconds, most), threading.Lock()

    def work(client: BlockingClient) -> None:
        while not tally.is_over:
            found = client.consume(size)
            with lock:
                tally.add(found)

    _in_threads(clients, work)
    return tally


def _rates_of_threads(clients: Sequence[BlockingClient], size: int, seconds: float) -> Figures:
    warm = _publish_in_threads(clients, size, WARM_S)
    published = _publish_in_threads(clients, size, seconds)
    consumed = _consume_in_threads(clients, size, seconds, warm.total + published.total)
    return {"publish_per_s": published.rate, "consume_per_s": consumed.rate}


def _latencies_of_threads(
    clients: Sequence[BlockingClient], seconds: float, deliveries: int
) -> Figures:
    publisher, receiver = clients
    batches, waits = Batches(1), []
    waiting, published = threading.Semaphore(0), threading.Semaphore(0)
    sent_at = 0.0

    def receive() -> None:
        for _ in range(deliveries):
            waiting.release()  # it is about to
            receiver.receive()
            received_at = perf_counter()
            published.acquire()
            waits.append(received_at - sent_at)

    def publish() -> None:
        nonlocal sent_at
        for _ in range(deliveries):
            waiting.acquire()
            sleep(PAUSE_S)
            sent_at = perf_counter()
            publisher.publish(batches.next())
            published.release()

    works = iter((receive, publish))
    _in_threads(clients, lambda _: next(works)())
    _publish_in_threads([publisher], 1, WARM_S)
    took, tally = [], Tally(seconds)
    while not tally.is_over:
        began = perf_counter()
        publisher.publish(batches.next())
        took.append(perf_counter() - began)
    return _latency_figures(took, waits)


def _latency_figures(took: Sequence[float], waits: Sequence[float]) -> Figures:
    ordered = sorted(took)
    figures = {
        "publish_p50_us": ordered[len(ordered) // 2] * 1e6,
        "publish_p99_us": ordered[len(ordered) * 99 // 100] * 1e6,
    }
    if waits:
        figures["delivery_p50_us"] = statistics.median(waits) * 1e6
    return figures


# -- the two workloads -----------------------------------------------------------------------------


def rates(directory: str, interface: str, clients: int, size: int, seconds: float) -> Figures:
    """Return the messages a second that some clients publish, and then lease and ack."""
    if interface == EMBEDDED:
        with embedded(directory, clients) as opened:
            return _rates_of_threads(opened, size, seconds)
    with broker(directory) as addresses:
        if interface in OF_THREADS:
            with OF_THREADS[interface](addresses, clients) as opened:
                return _rates_of_threads(opened, size, seconds)
        opened_later = OF_TASKS[interface](addresses, clients)
        return _run(_rates_of_tasks(opened_later, size, seconds))


def latencies(directory: str, interface: str, seconds: float, deliveries: int) -> Figures:
    """Return how long a publish of one client takes, and the way to a client that waits."""
    if interface == EMBEDDED:
        with embedded(directory, 2) as opened:
            return _latencies_of_threads(opened, seconds, deliveries)
    with broker(directory) as addresses:
        if interface in OF_THREADS:
            with OF_THREADS[interface](addresses, 2) as opened:
                return _latencies_of_threads(opened, seconds, deliveries)
        return _run(_latencies_of_tasks(OF_TASKS[interface](addresses, 2), seconds, deliveries))


def _run(work: Any) -> Figures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures: Figures = runner.run(work)
        return figures


if __name__ == "__main__":
    run_workload({work.__name__: work for work in (rates, latencies)})
