"""Workloads of the embedded benchmark. Each runs in its own process, started by `measure.Runner`.

A workload gets a directory and returns its figures. Opening and the first messages, which create
the files, are not timed. Payloads are 100 bytes. `wall_rate` is per second of wall time, `cpu_rate`
per second of processor time of the process. On an idle machine they are equal, unless the workload
waits for the disk. `rate` is the one that was requested.
"""

import asyncio
import ctypes
import json
import os
import random
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from threading import Barrier, Thread
from time import perf_counter, process_time, sleep, time
from typing import Any

from embedded_peers import PEERS
from measure import Figures, rate_of, run_workload

import penstock
from penstock import NewMessage
from penstock.aio import open as open_async

PAYLOAD = bytes(range(28, 128))
BATCH = 100
WARM_UP = 1000
FILL_BATCH = 1000
MIB = 1 << 20


def timed(count: int, work: Callable[[], object]) -> Figures:
    """How many of `count` things the work does in a second, by either clock."""
    wall, cpu = perf_counter(), process_time()
    work()
    cpu, wall = process_time() - cpu, perf_counter() - wall
    by_cpu = os.environ.get("BENCH_BY") == "cpu"
    return {
        "rate": count / max(cpu if by_cpu else wall, 1e-9),
        "wall_rate": count / wall,
        "cpu_rate": count / max(cpu, 1e-9),
    }


def _times(count: int, call: Callable[[], object]) -> None:
    for _ in repeat(None, count):
        call()


# -- without sync ----------------------------------------------------------------------------------


def penstock_enqueue(directory: str, count: int) -> Figures:
    with penstock.open(directory, sync="never") as queue:
        fill_queue(queue, WARM_UP)
        return timed(count, lambda: _times(count, lambda: queue.enqueue(PAYLOAD)))


def penstock_enqueue_batch(directory: str, count: int) -> Figures:
    batch = [PAYLOAD] * BATCH
    with penstock.open(directory, sync="never") as queue:
        fill_queue(queue, WARM_UP)
        return timed(count, lambda: _times(count // BATCH, lambda: queue.enqueue_batch(batch)))


def penstock_dequeue(directory: str, count: int) -> Figures:
    with penstock.open(directory, sync="never") as queue:
        fill_queue(queue, count + WARM_UP)
        _times(WARM_UP // 2, queue.dequeue)
        return timed(count, lambda: _times(count, queue.dequeue))


def penstock_dequeue_batch(directory: str, count: int) -> Figures:
    with penstock.open(directory, sync="never") as queue:
        fill_queue(queue, count + WARM_UP)
        queue.dequeue_batch(BATCH)
        return timed(count, lambda: _times(count // BATCH, lambda: queue.dequeue_batch(BATCH)))


def penstock_lease(directory: str, count: int) -> Figures:
    with penstock.open(directory, sync="never") as queue:
        fill_queue(queue, count + WARM_UP)
        one = lambda: queue.ack(queue.lease()[0])  # noqa: E731
        _times(WARM_UP // 2, one)
        return timed(count, lambda: _times(count, one))


KEYS, ABANDONED, DELAYED = 1000, 1_000, 10_000
DUE_S = 5  # longer than publishing takes: otherwise they are due when they are written


def penstock_general(directory: str, count: int, kind: str) -> Figures:
    """Lease and ack one message at a time, of a kind or beside others that make it general."""
    options: Callable[[int], dict[str, Any]] = {
        "priorities": lambda number: {"priority": (3, 5, 7)[number % 3]},
        "keys": lambda number: {"key": f"key {number % KEYS}"},
        "due": lambda number: {"delay": DUE_S},
        "limits": lambda number: {"ttl": 3600, "max_attempts": 9},
    }.get(kind, lambda number: {})
    with penstock.open(directory, sync="never", lease_s=3600) as queue:
        group = "main"
        if kind == "group":
            group = "audit"
            queue.groups.create(group)
        if kind == "beside":
            fill_queue(queue, ABANDONED)
            queue.lease(ABANDONED)
            _publish(queue, DELAYED, lambda number: {"delay": 3600})
        _publish(queue, count + WARM_UP, options)
        if kind == "due":
            wait_until_due(queue)
        one = lambda: queue.ack(queue.lease(group=group)[0])  # noqa: E731
        _times(WARM_UP // 2, one)
        return timed(count, lambda: _times(count, one))


def wait_until_due(queue: Any) -> None:
    if not queue.stats().scheduled:
        raise RuntimeError(f"publishing took longer than the delay of {DUE_S} s")
    while queue.stats().scheduled:
        sleep(0.05)


def _publish(queue: Any, count: int, options: Callable[[int], dict[str, Any]]) -> None:
    for first in range(0, count, FILL_BATCH):
        numbers = range(first, min(first + FILL_BATCH, count))
        queue.publish([NewMessage(payload=PAYLOAD, **options(number)) for number in numbers])


def penstock_publish(directory: str, count: int, kind: str) -> Figures:
    """Publish one message at a time: plain, beside others that have options, or with an option."""
    keys = [f"key {number}" for number in range(KEYS)]
    headers = {"source": "benchmark", "trace": "00-1234-5678-01"}
    options: Callable[[int], dict[str, Any]] = {
        "plain": lambda number: {},
        "beside": lambda number: {},
        "priority": lambda number: {"priority": number % 10},
        "key": lambda number: {"key": keys[number % KEYS]},
        "ttl": lambda number: {"ttl": 3600},
        "delay": lambda number: {"delay": 3600},
        "headers": lambda number: {"headers": headers},
        "attempts": lambda number: {"max_attempts": 9},
        "dedup id": lambda number: {"dedup_id": str(number)},
    }[kind]
    with penstock.open(directory, sync="never", lease_s=3600) as queue:
        if kind == "beside":
            queue.groups.create("audit")
            fill_queue(queue, ABANDONED)
            queue.lease(ABANDONED)
            _publish(queue, DELAYED, lambda number: {"delay": 3600})
            _publish(queue, DELAYED, lambda number: {"priority": number % 10})
            _publish(queue, DELAYED, lambda number: {"key": keys[number % KEYS]})
        _publish(queue, WARM_UP, options)
        made = [options(number) for number in range(WARM_UP, WARM_UP + count)]

        def publish() -> None:
            for one in made:
                queue.enqueue(PAYLOAD, **one)

        return timed(count, publish)


def penstock_lease_batch(directory: str, count: int) -> Figures:
    with penstock.open(directory, sync="never") as queue:
        fill_queue(queue, count + WARM_UP)
        many = lambda: queue.ack(queue.lease(BATCH))  # noqa: E731
        many()
        return timed(count, lambda: _times(count // BATCH, many))


def peer_put(directory: str, peer: str, count: int) -> Figures:
    queue = _peer(directory, peer, WARM_UP)
    return timed(count, lambda: _times(count, lambda: queue.put(PAYLOAD)))


def peer_put_batch(directory: str, peer: str, count: int) -> Figures:
    queue, batch = _peer(directory, peer, WARM_UP), [PAYLOAD] * BATCH
    return timed(count, lambda: _times(count // BATCH, lambda: queue.put_many(batch)))


def peer_get(directory: str, peer: str, count: int) -> Figures:
    queue = _peer(directory, peer, count + 10)
    _times(10, queue.get)
    return timed(count, lambda: _times(count, queue.get))


def peer_get_batch(directory: str, peer: str, count: int) -> Figures:
    queue = _peer(directory, peer, count + BATCH)
    queue.get_many(BATCH)
    return timed(count, lambda: _times(count // BATCH, lambda: queue.get_many(BATCH)))


def peer_lease(directory: str, peer: str, count: int) -> Figures:
    queue = _peer(directory, peer, count + 10)
    _times(10, queue.lease_and_ack)
    return timed(count, lambda: _times(count, queue.lease_and_ack))


def peer_lease_batch(directory: str, peer: str, count: int) -> Figures:
    queue = _peer(directory, peer, count + BATCH)
    queue.lease_and_ack_many(BATCH)
    return timed(count, lambda: _times(count // BATCH, lambda: queue.lease_and_ack_many(BATCH)))


def _peer(directory: str, name: str, waiting: int):  # type: ignore[no-untyped-def]
    os.mkdir(directory)
    queue = PEERS[name](directory)
    if hasattr(queue, "put_many"):
        _times(waiting // BATCH, lambda: queue.put_many([PAYLOAD] * BATCH))
        waiting %= BATCH
    _times(waiting, lambda: queue.put(PAYLOAD))
    return queue


# -- with many waiting -----------------------------------------------------------------------------


def fill_queue(queue: penstock.Queue, count: int, kind: str = "plain") -> None:
    """Publish a backlog: plain messages, with random priorities, or with keys."""
    draw = random.Random(1)
    for first in range(0, count, FILL_BATCH):
        size = min(FILL_BATCH, count - first)
        if kind == "plain":
            queue.enqueue_batch([PAYLOAD] * size)
        elif kind == "priorities":
            queue.enqueue_batch(
                [NewMessage(payload=PAYLOAD, priority=draw.randrange(10)) for _ in range(size)]
            )
        else:
            queue.enqueue_batch(
                [NewMessage(payload=PAYLOAD, key=f"key {first + n}") for n in range(size)]
            )


def fill(directory: str, count: int, kind: str = "plain", die: bool = False) -> Figures:
    """A queue with messages; with `die`, of a process that was killed before it could close it."""
    with penstock.open(directory, sync="never") as queue:
        before = _rss_bytes()
        start = perf_counter()
        fill_queue(queue, count, kind)
        figures = {"fill_s": perf_counter() - start, "writer_mb": (_rss_bytes() - before) / MIB}
        if die:
            print(json.dumps(figures), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    return figures


def waiting_rates(directory: str, few: int, blocks: int, block: int) -> Figures:
    """Each call with few and with many waiting, in turns: how much of the speed is left."""
    with (
        penstock.open(directory, sync="never") as large,
        penstock.open(f"{directory}-few", sync="never") as small,
    ):
        fill_queue(small, few - small.stats().ready)
        taken: dict[str, dict[str, list[float]]] = {}
        for _ in range(blocks):
            for name, call, each in _CALLS:
                for size, queue in (("few", small), ("many", large)):
                    start = process_time()
                    _times(block // each, lambda queue=queue, call=call: call(queue))
                    used = process_time() - start
                    taken.setdefault(name, {}).setdefault(size, []).append(used)
        return {
            f"{name}_ratio": statistics.median(
                few / many for few, many in zip(used["few"], used["many"], strict=True)
            )
            for name, used in taken.items()
        }


_CALLS: list[tuple[str, Callable[[penstock.Queue], object], int]] = [
    ("enqueue", lambda queue: queue.enqueue(PAYLOAD), 1),
    ("dequeue", lambda queue: queue.dequeue(), 1),
    ("enqueue_batch", lambda queue: queue.enqueue_batch([PAYLOAD] * BATCH), BATCH),
    ("dequeue_batch", lambda queue: queue.dequeue_batch(BATCH), BATCH),
    ("refill", lambda queue: queue.enqueue_batch([PAYLOAD] * BATCH), BATCH),
    ("lease_and_ack", lambda queue: queue.ack(queue.lease()[0]), 1),
    ("refill", lambda queue: queue.enqueue_batch([PAYLOAD] * BATCH), BATCH),
    ("lease_and_ack_batch", lambda queue: queue.ack(queue.lease(BATCH)), BATCH),
]


def open_with_many(directory: str, count: int, kind: str, die: bool) -> Figures:
    """Fill a queue in another process, which closes it or is killed; then open it."""
    figures = _in_another_process("fill", directory=directory, count=count, kind=kind, die=die)
    penstock.open(f"{directory}-other").close()  # what is imported and made once is not counted
    before, start, cpu = _rss_bytes(), perf_counter(), process_time()
    queue = penstock.open(directory, sync="never")
    figures["open_s"], figures["open_cpu_s"] = perf_counter() - start, process_time() - cpu
    assert queue.stats().ready == count, queue.stats()
    figures["reader_mb"] = (_rss_bytes() - before) / MIB
    start = perf_counter()
    queue.close()
    figures["close_s"] = perf_counter() - start
    return figures


def _in_another_process(workload: str, **arguments: object) -> Figures:
    command = [sys.executable, __file__, workload, json.dumps(arguments), "0"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"{workload} failed with {done.returncode}")
    figures: Figures = json.loads(done.stdout)
    return figures


def _rss_bytes() -> int:
    """What the process holds, mapped files included."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def _own_bytes() -> int:
    """What the process holds for itself: without mapped files, and without what its allocator
    keeps for later."""
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon in /proc/self/status")


# -- durable ---------------------------------------------------------------------------------------


def durable_loop(directory: str, count: int) -> Figures:
    """The disk's own: append to a file, fdatasync, again."""
    os.mkdir(directory)
    fd = os.open(os.path.join(directory, "file"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    data = bytes(len(PAYLOAD) + 26)

    def work() -> None:
        for _ in range(count):
            os.write(fd, data)
            os.fdatasync(fd)

    return rate_of(count, work)


def durable_threads(directory: str, count: int, threads: int) -> Figures:
    """Threads, each waiting for the disk at each of its messages."""
    with penstock.open(directory, sync="always") as queue:
        _times(10, lambda: queue.enqueue(PAYLOAD))

        all_are_there = Barrier(threads + 1)

        def each() -> None:
            all_are_there.wait()
            _times(count // threads, lambda: queue.enqueue(PAYLOAD))

        running = [Thread(target=each) for _ in range(threads)]
        for thread in running:
            thread.start()

        def work() -> None:
            all_are_there.wait()
            for thread in running:
                thread.join()

        return rate_of(count, work)


def durable_tasks(directory: str, count: int, tasks: int) -> Figures:
    """Asyncio tasks in one thread, each waiting for the disk at each of its messages."""

    async def main() -> float:
        async with await open_async(directory, sync="always") as queue:

            async def each() -> None:
                for _ in range(count // tasks):
                    await queue.enqueue(PAYLOAD)

            for _ in range(10):
                await queue.enqueue(PAYLOAD)
            start = perf_counter()
            await asyncio.gather(*(each() for _ in range(tasks)))
            return perf_counter() - start

    return {"rate": count / asyncio.run(main())}


# -- delayed ---------------------------------------------------------------------------------------


def delayed(directory: str, waiting: int, count: int, spread_s: float) -> Figures:
    """Delayed messages become due while many others wait for much later; how late they come."""
    draw = random.Random(1)
    with penstock.open(directory, sync="never") as queue:
        fill_queue(queue, 1)
        queue.dequeue()
        before = _own_bytes()
        for first in range(0, waiting, FILL_BATCH):
            size = min(FILL_BATCH, waiting - first)
            queue.enqueue_batch(
                [
                    NewMessage(payload=PAYLOAD, delay=3600 + 86400 * draw.random())
                    for _ in range(size)
                ]
            )
        queue.compact()  # a snapshot that is being saved beside is done with after it
        held = _own_bytes() - before
        for _ in range(count):
            queue.enqueue(PAYLOAD, delay=0.5 + spread_s * draw.random())
        late_ms = []
        for _ in range(count):
            message = queue.dequeue(wait_s=60.0)
            now = time()
            assert message is not None
            assert message.deliver_at is not None
            late_ms.append((now - message.deliver_at) * 1e3)
        percent = statistics.quantiles(late_ms, n=100)
        return {
            "p50_ms": percent[49],
            "p99_ms": percent[98],
            "longest_ms": max(late_ms),
            "earliest_ms": min(late_ms),
            "bytes_each": held / waiting,
        }


WORKLOADS = {
    work.__name__: work
    for work in (
        delayed,
        durable_loop,
        durable_tasks,
        durable_threads,
        fill,
        open_with_many,
        peer_get,
        peer_get_batch,
        peer_lease,
        peer_lease_batch,
        peer_put,
        peer_put_batch,
        penstock_dequeue,
        penstock_dequeue_batch,
        penstock_enqueue,
        penstock_enqueue_batch,
        penstock_lease,
        penstock_general,
        penstock_publish,
        penstock_lease_batch,
        waiting_rates,
    )
}

if __name__ == "__main__":
    run_workload(WORKLOADS)
