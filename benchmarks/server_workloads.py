"""Workloads of the server benchmark. Each runs in its own process, which generates the load."""

import asyncio
import json
import os
import statistics
from collections.abc import Awaitable, Callable, Coroutine
from time import perf_counter, sleep
from typing import Any

import uvloop
from measure import Figures, run_workload
from server_load import (
    BeanstalkLine,
    HttpLine,
    RedisLine,
    Talk,
    connect,
    http_post,
    rate_of_tasks,
    rate_over,
    redis_command,
)
from server_peers import beanstalkd, cpu_s, penstock, postgres, redis, resident_mb

TEXT = "x" * 98
PAYLOAD = b'"%s"' % TEXT.encode()  # 100 bytes, and a JSON value
QUEUE = "/api/v1/namespaces/bench/queues/q"
ONE = b'{"payload":%s}' % PAYLOAD
PAUSE_S = 0.002
BATCH = b"[" + b",".join([ONE] * 100) + b"]"


def _run(main: Coroutine[Any, Any, Figures]) -> Figures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


# -- penstock --------------------------------------------------------------------------------------


def penstock_publish(directory: str, connections: int, each: int, sync: str, batch: int) -> Figures:
    request = http_post(f"{QUEUE}/messages", ONE if batch == 1 else BATCH)

    def step(line: HttpLine) -> Talk:
        yield request
        return batch

    async def main(port: int) -> Figures:
        return {"rate": await rate_over(await connect(HttpLine, port, connections), each, step)}

    with penstock(directory, sync) as (port, _):
        return _run(main(port))


async def _fill(port: int, queue: str, count: int) -> None:
    (line,) = await connect(HttpLine, port, 1)
    big = http_post(f"{queue}/messages", b"[" + b",".join([ONE] * 1000) + b"]")
    for _ in range(0, count, 1000):
        await line.ask(big)
    line.transport.close()


def _lease_step(queue: str, batch: int) -> Callable[[HttpLine], Talk]:
    lease = http_post(f"{queue}/lease", b'{"max":%d}' % batch)

    def step(line: HttpLine) -> Talk:
        found = json.loads((yield lease))["messages"]
        receipts = json.dumps({"ack": [one["receipt"] for one in found]}).encode()
        yield http_post("/api/v1/settle", receipts)
        return len(found)

    return step


def penstock_lease(directory: str, connections: int, each: int, sync: str, batch: int) -> Figures:
    async def main(port: int) -> Figures:
        await _fill(port, QUEUE, connections * (each + 20) * batch)
        lines = await connect(HttpLine, port, connections)
        return {"rate": await rate_over(lines, each, _lease_step(QUEUE, batch))}

    with penstock(directory, sync) as (port, _):
        return _run(main(port))


def penstock_latency(directory: str, count: int, sync: str) -> Figures:
    """From before the publish is sent until a waiting long poll has the message."""

    async def main(port: int) -> Figures:
        waiter, publisher = await connect(HttpLine, port, 2)
        lease = http_post(f"{QUEUE}/lease", b'{"max":1,"wait_s":10}')
        publish = http_post(f"{QUEUE}/messages", ONE)
        took = []
        for _ in range(count + 20):
            waiting = waiter.ask(lease)
            await asyncio.sleep(PAUSE_S)  # so that it waits
            start = perf_counter()
            published = publisher.ask(publish)
            found = json.loads(await waiting)["messages"]
            took.append((perf_counter() - start) * 1e3)
            await published
            receipts = json.dumps({"ack": [found[0]["receipt"]]}).encode()
            await publisher.ask(http_post("/api/v1/settle", receipts))
        percent = statistics.quantiles(took[20:], n=100)
        return {"p50_ms": percent[49], "p99_ms": percent[98]}

    with penstock(directory, sync) as (port, _):
        return _run(main(port))


def fdatasync_latency(directory: str, count: int) -> Figures:
    """Baseline of the disk: append and sync as many bytes as the other workload does."""
    os.makedirs(directory, exist_ok=True)
    fd = os.open(os.path.join(directory, "file"), os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(fd, bytes(1 << 20), 0)
    os.fdatasync(fd)
    took = []
    for number in range(count):
        sleep(PAUSE_S)  # a disk and a core that have rested take longer
        start = perf_counter()
        os.pwrite(fd, bytes(126), number * 126)
        os.fdatasync(fd)
        took.append((perf_counter() - start) * 1e3)
    os.close(fd)
    return {"p50_ms": statistics.median(took)}


def penstock_backlog(directory: str, queues: int, waiting: int, each: int) -> Figures:
    """Return rates without a backlog and with one in each queue, and the memory then."""

    async def rates(port: int, connections: int) -> tuple[float, float]:
        lines = await connect(HttpLine, port, connections)
        requests = {
            line: http_post(f"{QUEUE}{number % queues}/messages", ONE)
            for number, line in enumerate(lines)
        }
        leases = {
            line: _lease_step(f"{QUEUE}{number % queues}", 1) for number, line in enumerate(lines)
        }

        def publish(line: HttpLine) -> Talk:
            yield requests[line]
            return 1

        published = await rate_over(lines, each, publish)
        leased = await rate_over(lines, each, lambda line: leases[line](line))
        for line in lines:
            line.transport.close()
        return published, leased

    async def main(port: int, pid: int) -> Figures:
        few = await rates(port, 64)
        for number in range(queues):
            await _fill(port, f"{QUEUE}{number}", waiting)
        rss_mb = resident_mb(pid)
        many = await rates(port, 64)
        return {
            "publish_ratio": many[0] / few[0],
            "lease_ratio": many[1] / few[1],
            "publish_rate": many[0],
            "lease_rate": many[1],
            "rss_mb": rss_mb,
        }

    with penstock(directory, "always") as (port, pid):
        return _run(main(port, pid))


def penstock_idle(directory: str, polls: int, sockets: int, seconds: float) -> Figures:
    """Processor time of the server while everyone waits and nothing comes."""
    import websockets

    async def main(port: int, pid: int) -> Figures:
        (first,) = await connect(HttpLine, port, 1)
        await first.ask(http_post(f"{QUEUE}/messages", ONE))
        await first.ask(http_post(f"{QUEUE}/lease", b'{"max":1,"lease_s":3600}'))
        lease = http_post(f"{QUEUE}/lease", b'{"max":1,"wait_s":60}')
        waiting = [line.ask(lease) for line in await connect(HttpLine, port, polls)]
        url = f"ws://127.0.0.1:{port}{QUEUE}/stream?credit=10"
        streams = [await websockets.connect(url, ping_interval=None) for _ in range(sockets)]
        await asyncio.sleep(1.0)
        before = cpu_s(pid)
        await asyncio.sleep(seconds)
        used = (cpu_s(pid) - before) / seconds
        assert not any(one.done() for one in waiting)
        for stream in streams:
            stream.transport.abort()
        for one in waiting:
            one.cancel()
        return {"core_percent": used * 100}

    with penstock(directory, "always") as (port, pid):
        return _run(main(port, pid))


# -- peers -----------------------------------------------------------------------------------------


def beanstalkd_publish(directory: str, connections: int, each: int, sync_ms: int) -> Figures:
    request = b"put 0 0 60 %d\r\n%s\r\n" % (len(PAYLOAD), PAYLOAD)

    def step(line: BeanstalkLine) -> Talk:
        yield request
        return 1

    async def main(port: int) -> Figures:
        lines = await connect(BeanstalkLine, port, connections)
        return {"rate": await rate_over(lines, each, step)}

    with beanstalkd(directory, sync_ms) as port:
        return _run(main(port))


def beanstalkd_lease(directory: str, connections: int, each: int, sync_ms: int) -> Figures:
    request = b"put 0 0 60 %d\r\n%s\r\n" % (len(PAYLOAD), PAYLOAD)

    def put(line: BeanstalkLine) -> Talk:
        yield request
        return 1

    def step(line: BeanstalkLine) -> Talk:
        job = yield b"reserve\r\n"
        yield b"delete %s\r\n" % job
        return 1

    async def main(port: int) -> Figures:
        lines = await connect(BeanstalkLine, port, connections)
        await rate_over(lines, each + 20, put, warm=0)
        return {"rate": await rate_over(lines, each, step)}

    with beanstalkd(directory, sync_ms) as port:
        return _run(main(port))


def redis_publish(directory: str, connections: int, each: int, sync: str) -> Figures:
    request = redis_command(b"XADD", b"q", b"*", b"p", PAYLOAD)

    def step(line: RedisLine) -> Talk:
        yield request
        return 1

    async def main(port: int) -> Figures:
        lines = await connect(RedisLine, port, connections)
        return {"rate": await rate_over(lines, each, step)}

    with redis(directory, sync) as port:
        return _run(main(port))


def redis_lease(directory: str, connections: int, each: int, sync: str) -> Figures:
    add = redis_command(b"XADD", b"q", b"*", b"p", PAYLOAD)
    read = redis_command(*b"XREADGROUP GROUP g c COUNT 1 STREAMS q >".split())

    def put(line: RedisLine) -> Talk:
        yield add
        return 1

    def step(line: RedisLine) -> Talk:
        words = (yield read).split(b"\r\n")
        found = next(word for word in words if word[:1].isdigit() and b"-" in word)
        yield redis_command(b"XACK", b"q", b"g", found)
        return 1

    async def main(port: int) -> Figures:
        lines = await connect(RedisLine, port, connections)
        await lines[0].ask(redis_command(b"XGROUP", b"CREATE", b"q", b"g", b"0", b"MKSTREAM"))
        await rate_over(lines, each + 20, put, warm=0)
        return {"rate": await rate_over(lines, each, step)}

    with redis(directory, sync) as port:
        return _run(main(port))


_TABLE = (
    "create table q (id bigserial primary key, payload bytea not null, "
    "leased_until timestamptz not null default '-infinity')"
)
_LEASE = (
    "update q set leased_until = now() + interval '30 s' where id = (select id from q "
    "where leased_until < now() order by id limit 1 for update skip locked) returning id, payload"
)


def postgres_publish(directory: str, connections: int, each: int) -> Figures:
    async def step(line: Any) -> int:
        await line.execute("insert into q (payload) values ($1)", PAYLOAD)
        return 1

    return _postgres(directory, connections, each, step, fill=0)


def postgres_lease(directory: str, connections: int, each: int) -> Figures:
    async def step(line: Any) -> int:
        row = await line.fetchrow(_LEASE)
        await line.execute("delete from q where id = $1", row["id"])
        return 1

    return _postgres(directory, connections, each, step, fill=connections * (each + 20))


def _postgres(
    directory: str,
    connections: int,
    each: int,
    step: Callable[[Any], Awaitable[int]],
    *,
    fill: int,
) -> Figures:
    import asyncpg

    async def main(port: int) -> Figures:
        address = {"host": "127.0.0.1", "port": port, "user": "postgres", "database": "postgres"}
        lines = [await asyncpg.connect(**address) for _ in range(connections)]
        await lines[0].execute(_TABLE)
        await lines[0].execute(
            f"insert into q (payload) select '{TEXT}'::bytea from generate_series(1, {fill})"
        )
        await lines[0].execute("analyze q")
        rate = await rate_of_tasks(lines, each, step)
        for line in lines:
            await line.close()
        return {"rate": rate}

    with postgres(directory) as port:
        return _run(main(port))


WORKLOADS = {
    work.__name__: work
    for work in (
        beanstalkd_lease,
        beanstalkd_publish,
        fdatasync_latency,
        penstock_backlog,
        penstock_idle,
        penstock_latency,
        penstock_lease,
        penstock_publish,
        postgres_lease,
        postgres_publish,
        redis_lease,
        redis_publish,
    )
}

if __name__ == "__main__":
    run_workload(WORKLOADS)
