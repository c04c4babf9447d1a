"""Workloads of the tasks benchmark: enqueue jobs that do nothing, and run them.

Each runs in its own process, started by `measure.Runner`. A contender enqueues all jobs one by one
from one thread, and then runs them with a worker of eight threads (or eight at a time in its event
loop) in the same process. Processor time is that of this process and of all that it started,
servers included, while jobs are enqueued and run. A rate is jobs per second of processor time, so
it is that of one core.

What a contender does once is not in the rate. One more job is enqueued before the clock starts: it
opens the queue or connects, and imports what that needs. A worker that is a process of its own runs
that job, and is stopped (SIGSTOP) while the others are enqueued, so that its start is not counted.

The latency of a job is from the call that enqueues it to the first line of its function, with an
idle worker. The next job is enqueued when the one before has begun.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from time import perf_counter, process_time, sleep
from typing import Any

from measure import Figures, run_workload
from server_peers import penstock as broker
from server_peers import postgres, postgres_url, redis

from penstock import NewMessage
from penstock import open as open_queue
from penstock.tasks import Tasks, TasksWorker, TasksWorkerOptions

THREADS = 8
_TICKS = os.sysconf("SC_CLK_TCK")
_WAIT_S = 600.0
_BATCH = 10_000

Enqueue = Callable[[int], object]


class Jobs:
    """What jobs report: how many began, and when."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.expected = 0
        self.all_began = Event()

    def note(self) -> None:
        self.began.append(perf_counter())
        if len(self.began) >= self.expected:
            self.all_began.set()

    def wait(self) -> None:
        if not self.all_began.wait(_WAIT_S):
            raise RuntimeError(f"only {len(self.began)} of {self.expected} jobs began")


JOBS = Jobs()


def _cpu_s() -> float:
    """Processor time of this process and of all that it started and that still run."""
    own = os.times()
    return own.user + own.system + sum(_cpu_of(pid) for pid in _descendants(os.getpid()))


def _cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(fields[at]) for at in (11, 12, 13, 14)) / _TICKS


def _descendants(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in children:
            yield int(child)
            yield from _descendants(int(child))


def _end_to_end(count: int, enqueue: Enqueue, run: Callable[[], object]) -> Figures:
    """Enqueue and run jobs; `run` returns when all are done."""
    JOBS.expected = count + 1
    enqueue(-1)
    cpu_s, start = _cpu_s(), perf_counter()
    for number in range(count):
        enqueue(number)
    enqueued_s = perf_counter() - start
    run()
    wall_s, cpu_s = perf_counter() - start, _cpu_s() - cpu_s
    if len(JOBS.began) <= count:
        raise RuntimeError(f"{len(JOBS.began)} of {count} jobs ran")
    return {
        "rate": count / cpu_s,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "enqueue_us": enqueued_s / count * 1e6,
    }


def _latency(count: int, enqueue: Enqueue) -> Figures:
    """Enqueue jobs one by one for a worker that is idle."""
    found = []
    for number in range(count + 20):
        JOBS.expected = len(JOBS.began) + 1
        JOBS.all_began.clear()
        start = perf_counter()
        enqueue(number)
        JOBS.wait()
        found.append((JOBS.began[-1] - start) * 1e6)
        sleep(0.001)  # so that the worker is idle again
    del found[:20]
    found.sort()
    return {"p50_us": statistics.median(found), "p99_us": found[int(len(found) * 0.99)]}


# -- Penstock --------------------------------------------------------------------------------------


@contextmanager
def _penstock(directory: str, place: str, sync: str) -> Iterator[Tasks]:
    if place == "directory":
        settings: Any = {"sync": sync}
        with Tasks(directory, **settings) as tasks:
            yield tasks
        return
    with broker(directory, sync) as (port, _), Tasks(f"http://127.0.0.1:{port}") as tasks:
        yield tasks


def penstock(directory: str, count: int, place: str, sync: str, latency: bool = False) -> Figures:
    with _penstock(directory, place, sync) as tasks:

        @tasks.task
        def job(n: int) -> None:
            JOBS.note()

        if not latency:
            idle_s = 0.0 if place == "directory" else 0.05
            options = TasksWorkerOptions(concurrency=THREADS, idle_s=idle_s)
            return _end_to_end(count, job.enqueue, TasksWorker(tasks, options=options).run)
        job.enqueue(0)
        worker = TasksWorker(tasks, options=TasksWorkerOptions(concurrency=THREADS))
        with _thread(worker.run, worker.stop):
            return _latency(count, job.enqueue)


def tenants(directory: str, count: int, backlog: int, tenants: int, others: int = 0) -> Figures:
    """A consumer takes messages one by one. Measure how long those of a small tenant wait, from
    publish to lease, and how many messages a second it leases and acks, of processor time.

    A message of the small tenant comes when the one before is done and the consumer has since taken
    `others` messages of the others, if there are any. It comes between two messages: the time that
    a consumer works on one is not in the wait.
    """
    with open_queue(directory, fair=True, sync="never") as queue:
        names = [f"big-{number}" for number in range(tenants)]
        for start in range(0, backlog, _BATCH):
            some = range(start, min(start + _BATCH, backlog))
            queue.publish([NewMessage(payload=b"big", tenant=names[n % tenants]) for n in some])
        queue.stats()
        waits: list[float] = []
        leased, cpu_s = 0, process_time()
        for _ in range(count):
            for other in chain.from_iterable(queue.lease() for _ in range(others)):
                leased += 1
                queue.ack(other)
            began = perf_counter()
            queue.enqueue(b"small", tenant="small")
            while True:
                (job,) = queue.lease()
                leased += 1
                if job.payload == b"small":
                    waits.append(perf_counter() - began)
                queue.ack(job)
                if job.payload == b"small":
                    break
        cpu_s = process_time() - cpu_s
    cuts = statistics.quantiles(waits, n=100)
    return {"rate": leased / cpu_s, "p50_us": cuts[49] * 1e6, "p99_us": cuts[98] * 1e6}


@contextmanager
def _thread(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()


# -- peers in this process -------------------------------------------------------------------------


@contextmanager
def _place(directory: str, place: str, *, durable: bool) -> Iterator[int]:
    """A server of Redis with an append-only file; a port of 0 for SQLite."""
    if place != "redis":
        Path(directory).mkdir(parents=True, exist_ok=True)
        yield 0
        return
    with redis(directory, "always" if durable else "everysec") as port:
        yield port


def huey(directory: str, count: int, place: str, durable: bool, latency: bool = False) -> Figures:
    from huey import RedisHuey, SqliteHuey
    from huey.consumer import Consumer

    with _place(directory, place, durable=durable) as port:
        if place == "redis":
            made = RedisHuey("bench", host="127.0.0.1", port=port, results=False)
        else:
            path = str(Path(directory) / "huey.db")
            made = SqliteHuey("bench", filename=path, fsync=durable, results=False)

        @made.task()
        def job(n: int) -> None:
            JOBS.note()

        consumer = Consumer(made, workers=THREADS, periodic=False)

        def run() -> None:
            consumer.start()
            JOBS.wait()
            consumer.stop(graceful=True)

        if not latency:
            return _end_to_end(count, job, run)
        consumer.start()
        try:
            return _latency(count, job)
        finally:
            consumer.stop(graceful=True)


def dramatiq(directory: str, count: int, durable: bool, latency: bool = False) -> Figures:
    import dramatiq as peer
    from dramatiq.brokers.redis import RedisBroker

    with _place(directory, "redis", durable=durable) as port:
        made = RedisBroker(host="127.0.0.1", port=port)
        peer.set_broker(made)

        @peer.actor
        def job(n: int) -> None:
            JOBS.note()

        worker = peer.Worker(made, worker_threads=THREADS)

        def run() -> None:
            worker.start()
            made.join("default")
            worker.join()
            worker.stop()

        if not latency:
            return _end_to_end(count, job.send, run)
        worker.start()
        try:
            return _latency(count, job.send)
        finally:
            worker.stop()


def rq_job(n: int) -> None:
    JOBS.note()


def rq(directory: str, count: int, durable: bool) -> Figures:
    import tasks_workloads
    from redis import Redis
    from rq import Queue, SimpleWorker

    tasks_workloads.JOBS = JOBS  # this script is a module of its own to the worker
    with _place(directory, "redis", durable=durable) as port, Redis(port=port) as connection:
        queue = Queue(connection=connection)
        worker = SimpleWorker([queue], connection=connection)

        def enqueue(number: int) -> None:
            queue.enqueue("tasks_workloads.rq_job", number, result_ttl=0)

        return _end_to_end(count, enqueue, lambda: worker.work(burst=True, logging_level="ERROR"))


def procrastinate(directory: str, count: int) -> Figures:
    import procrastinate as peer

    async def main(url: str) -> Figures:
        app = peer.App(connector=peer.PsycopgConnector(conninfo=url))

        @app.task
        async def job(n: int) -> None:
            JOBS.note()

        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            JOBS.expected = count + 1
            await job.defer_async(n=-1)
            cpu_s, start = _cpu_s(), perf_counter()
            for number in range(count):
                await job.defer_async(n=number)
            enqueued_s = perf_counter() - start
            await app.run_worker_async(
                wait=False, concurrency=THREADS, install_signal_handlers=False
            )
            wall_s, cpu_s = perf_counter() - start, _cpu_s() - cpu_s
            JOBS.wait()
        return {
            "rate": count / cpu_s,
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "enqueue_us": enqueued_s / count * 1e6,
        }

    with postgres(directory) as port:
        return asyncio.run(main(postgres_url(port)))


# -- peers with a worker of their own process ------------------------------------------------------


def _with_worker(
    count: int, enqueue: Enqueue, command: list[str], environment: dict[str, str], counter: Path
) -> Figures:
    """Enqueue jobs while the peer's worker is stopped, then let it run until it has written as many
    bytes as jobs."""
    enqueue(-1)
    worker = subprocess.Popen(
        command,
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that it is stopped with its children
    )

    def wait_for(jobs: int) -> None:
        until = perf_counter() + _WAIT_S
        while not counter.exists() or counter.stat().st_size < jobs:
            if perf_counter() > until or worker.poll() is not None:
                raise RuntimeError(f"{command} did not run all jobs")
            sleep(0.01)

    try:
        wait_for(1)
        os.killpg(worker.pid, signal.SIGSTOP)
        cpu_s, start = _cpu_s(), perf_counter()
        for number in range(count):
            enqueue(number)
        enqueued_s = perf_counter() - start
        os.killpg(worker.pid, signal.SIGCONT)
        wait_for(count + 1)
        wall_s, cpu_s = perf_counter() - start, _cpu_s() - cpu_s
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    return {
        "rate": count / cpu_s,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "enqueue_us": enqueued_s / count * 1e6,
    }


def celery(directory: str, count: int, durable: bool) -> Figures:
    with _place(directory, "redis", durable=durable) as port:
        counter = Path(directory) / "counter"
        environment = {"BENCH_REDIS": f"redis://127.0.0.1:{port}/0", "BENCH_COUNTER": str(counter)}
        os.environ.update(environment)
        from tasks_celery import job

        command = [sys.executable, "-m", "celery", "-A", "tasks_celery", "worker", "-P", "threads"]
        command += ["-c", str(THREADS), "--without-gossip", "--without-mingle", "-l", "ERROR"]
        return _with_worker(count, job.delay, command, environment, counter)


def taskiq(directory: str, count: int, durable: bool) -> Figures:
    with _place(directory, "redis", durable=durable) as port:
        counter = Path(directory) / "counter"
        environment = {"BENCH_REDIS": f"redis://127.0.0.1:{port}/0", "BENCH_COUNTER": str(counter)}
        os.environ.update(environment)
        from tasks_taskiq import broker as made
        from tasks_taskiq import job

        loop = asyncio.new_event_loop()
        loop.run_until_complete(made.startup())
        command = [sys.executable, "-m", "taskiq", "worker", "tasks_taskiq:broker", "-w", "1"]
        command += ["--max-async-tasks", str(THREADS), "--log-level", "ERROR"]
        try:
            return _with_worker(
                count,
                lambda number: loop.run_until_complete(job.kiq(number)),
                command,
                environment,
                counter,
            )
        finally:
            loop.run_until_complete(made.shutdown())
            loop.close()


WORKLOADS: dict[str, Callable[..., Figures]] = {
    "penstock": penstock,
    "tenants": tenants,
    "huey": huey,
    "dramatiq": dramatiq,
    "rq": rq,
    "procrastinate": procrastinate,
    "celery": celery,
    "taskiq": taskiq,
}

if __name__ == "__main__":
    run_workload(WORKLOADS)
