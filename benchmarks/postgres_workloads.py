"""What the PostgreSQL benchmark times, one workload a process: the load comes from here.

Publishers and consumers work at the same time, for a fixed time, after a second to warm up. The
queue has messages in it from the start, so that consumers do not wait for publishers.
"""

import asyncio
import json
import os
import statistics
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from time import perf_counter
from typing import Any

import uvloop
from measure import Figures, run_workload
from postgres_peers import PEERS, Peer
from server_load import HttpLine, Talk, connect, http_post
from server_peers import penstock, postgres, postgres_standby, postgres_url

from penstock.broker.store import Settlement, Store
from penstock.broker.stores import open_store
from penstock.names import QueueName
from penstock.queue.settings import QueueSettings

SIZE = 256
PAYLOAD = os.urandom(SIZE // 2).hex().encode()  # text, as some peers take nothing else
SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB"}
NAME = QueueName("bench", "q")
QUEUE = "/api/v1/namespaces/bench/queues/q"
ONE = b'{"payload":"%s"}' % PAYLOAD
WARM_S = 1.0
PREFILLED = 20_000
EMPTY_PAUSE_S = 0.002


def _run(main: Coroutine[Any, Any, Figures]) -> Figures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


@contextmanager
def _location(on: str, directory: str) -> Iterator[str]:
    """Start what a store needs. Return its location: files, postgres or pair."""
    if on == "files":
        yield f"{directory}/data"
        return
    replicated = {"synchronous_commit": "remote_apply", "wal_keep_size": "1GB"}
    settings = {**SETTINGS, **(replicated if on == "pair" else {})}
    with ExitStack() as stack:
        port = stack.enter_context(postgres(directory, checksums=True, **settings))
        if on == "pair":
            stack.enter_context(postgres_standby(directory, port))
            _require_standby(postgres_url(port))
        yield postgres_url(port)


def _require_standby(url: str) -> None:
    """From now on, commits wait for the standby."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("alter system set synchronous_standby_names = '*'")
        connection.execute("select pg_reload_conf()")


# -- tasks that call a queue -----------------------------------------------------------------------


async def _rates(
    publish: Callable[[], Awaitable[int]],
    take: Callable[[], Awaitable[int]],
    clients: int,
    seconds: float,
) -> Figures:
    """Run publishers and consumers, `clients` of each, at the same time."""
    published = taken = 0
    is_over = False

    async def publisher() -> None:
        nonlocal published
        while not is_over:
            count = await publish()
            published += count

    async def consumer() -> None:
        nonlocal taken
        while not is_over:
            count = await take()
            taken += count
            if not count:
                await asyncio.sleep(EMPTY_PAUSE_S)

    tasks = [
        asyncio.ensure_future(work()) for work in (publisher, consumer) for _ in range(clients)
    ]
    await asyncio.sleep(WARM_S)
    before, start = (published, taken), perf_counter()
    await asyncio.sleep(seconds)
    counts, took = (published - before[0], taken - before[1]), perf_counter() - start
    is_over = True
    await asyncio.gather(*tasks)
    return {"publish_per_s": counts[0] / took, "lease_per_s": counts[1] / took}


class _Listener:
    """A store tells of changes; the load does not need them."""

    def on_catalogue(self, *arguments: Any) -> None: ...

    on_queue = on_namespace = on_document = on_ready = on_catalogue


@asynccontextmanager
async def _opened(location: str, **settings: Any) -> AsyncIterator[Store]:
    opened = open_store(location)
    listener: Any = _Listener()
    await opened.open(listener)
    try:
        await opened.create(NAME, QueueSettings.of({"sync": "always", **settings}))
        yield opened
    finally:
        await opened.close()


def store(directory: str, on: str, clients: int, batch: int, seconds: int) -> Figures:
    """The store of a broker, without its server."""

    async def main(location: str) -> Figures:
        async with _opened(location) as opened:

            async def publish() -> int:
                await opened.publish(NAME, [PAYLOAD] * batch)
                return batch

            async def take() -> int:
                found = await opened.lease(NAME, batch)
                if found:
                    await opened.settle(NAME, [Settlement("ack", one.receipt) for one in found])
                return len(found)

            for _ in range(PREFILLED // 1000):
                await opened.publish(NAME, [PAYLOAD] * 1000)
            return await _rates(publish, take, clients, seconds)

    with _location(on, directory) as location:
        return _run(main(location))


def peer(directory: str, peer: str, clients: int, batch: int, seconds: int) -> Figures:
    async def main(port: int) -> Figures:
        async with PEERS[peer](port, 2 * clients) as queue:
            await _prefill(queue)
            await asyncio.to_thread(_analyze, postgres_url(port))

            async def publish() -> int:
                await queue.publish([PAYLOAD] * batch)
                return batch

            return await _rates(publish, lambda: queue.take(batch), clients, seconds)

    with postgres(directory, checksums=True, **SETTINGS) as port:
        return _run(main(port))


def _analyze(url: str) -> None:
    """Give the planner statistics, as autovacuum does for a table that is not new."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze")


async def _prefill(queue: Peer) -> None:
    for _ in range(PREFILLED // 1000):
        await queue.publish([PAYLOAD] * 1000)


# -- over HTTP -------------------------------------------------------------------------------------


async def _fill(line: HttpLine, count: int) -> None:
    big = http_post(f"{QUEUE}/messages", b"[" + b",".join([ONE] * 1000) + b"]")
    for _ in range(0, count, 1000):
        await line.ask(big)


class _Counter:
    """Steps of connections, until the time is over."""

    def __init__(self) -> None:
        self.count = 0
        self.is_over = False

    def publish(self) -> Talk:
        request = http_post(f"{QUEUE}/messages", ONE)
        while not self.is_over:
            yield request
            self.count += 1
        return self.count

    def take(self) -> Talk:
        lease = http_post(f"{QUEUE}/lease", b'{"max":1,"wait_s":1}')
        while not self.is_over:
            found = json.loads((yield lease))["messages"]
            if found:
                receipts = json.dumps({"ack": [one["receipt"] for one in found]}).encode()
                yield http_post("/api/v1/settle", receipts)
                self.count += 1
        return self.count


async def _http_rates(
    publishers: list[HttpLine], consumers: list[HttpLine], seconds: float
) -> Figures:
    published, taken = _Counter(), _Counter()
    talks = [line.talk(published.publish()) for line in publishers]
    talks += [line.talk(taken.take()) for line in consumers]
    await asyncio.sleep(WARM_S)
    before, start = (published.count, taken.count), perf_counter()
    await asyncio.sleep(seconds)
    took = perf_counter() - start
    rates = {"publish_per_s": (published.count - before[0]) / took}
    if consumers:
        rates["lease_per_s"] = (taken.count - before[1]) / took
    published.is_over = taken.is_over = True
    await asyncio.gather(*talks)
    return rates


def http(directory: str, on: str, clients: int, seconds: int) -> Figures:
    async def main(port: int) -> Figures:
        lines = await connect(HttpLine, port, 2 * clients)
        await _fill(lines[0], PREFILLED)
        return await _http_rates(lines[:clients], lines[clients:], seconds)

    with _location(on, directory) as location, penstock(location, "always") as (port, _):
        return _run(main(port))


def brokers(directory: str, brokers: int, clients: int, seconds: int) -> Figures:
    """Publish to one queue through several brokers; the first one owns it."""

    async def main(ports: list[int]) -> Figures:
        lines = []
        for number in range(clients):
            lines += await connect(HttpLine, ports[number % brokers], 1)
        await _fill(lines[0], 1000)
        return await _http_rates(lines, [], seconds)

    with _location("postgres", directory) as url, ExitStack() as stack:
        ports = [stack.enter_context(penstock(url, "always"))[0] for _ in range(brokers)]
        return _run(main(ports))


def delivery(directory: str, count: int, polls_owner: bool) -> Figures:
    """From before the publish is sent until the long poll at the other broker has the message."""

    async def main(owner: int, other: int) -> Figures:
        (at_owner,), (at_other,) = (
            await connect(HttpLine, owner, 1),
            await connect(HttpLine, other, 1),
        )
        await _fill(at_owner, 1000)  # so that it becomes the owner
        await at_owner.ask(http_post(f"{QUEUE}/purge", b"{}"))
        publisher, waiter = (at_other, at_owner) if polls_owner else (at_owner, at_other)
        lease = http_post(f"{QUEUE}/lease", b'{"max":1,"wait_s":10}')
        publish = http_post(f"{QUEUE}/messages", ONE)
        took = []
        for _ in range(count + 20):
            waiting = waiter.ask(lease)
            await asyncio.sleep(EMPTY_PAUSE_S)  # so that it waits
            start = perf_counter()
            published = publisher.ask(publish)
            found = json.loads(await waiting)["messages"]
            took.append((perf_counter() - start) * 1e3)
            await published
            receipts = json.dumps({"ack": [found[0]["receipt"]]}).encode()
            await waiter.ask(http_post("/api/v1/settle", receipts))
        percent = statistics.quantiles(took[20:], n=100)
        return {"p50_ms": percent[49], "p99_ms": percent[98]}

    with (
        _location("postgres", directory) as url,
        penstock(url, "always") as (owner, _),
        penstock(url, "always") as (other, _),
    ):
        return _run(main(owner, other))


# -- many waiting, and a snapshot that keeps dead rows ---------------------------------------------


@contextmanager
def _foreign_snapshot(url: str) -> Iterator[None]:
    """Another session of the database looks at a state of it, and keeps it."""
    import psycopg

    is_over = threading.Event()
    has_it = threading.Event()

    def hold() -> None:
        with psycopg.connect(url) as connection:
            connection.execute("set transaction isolation level repeatable read")
            connection.execute("select count(*) from pg_class")
            has_it.set()
            is_over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    has_it.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def backlog(directory: str, waiting: int, seconds: int) -> Figures:
    """p50 of a lease: with an empty queue; with many waiting, beside a foreign snapshot."""

    async def leases(opened: Store, seconds: float) -> float:
        took: list[float] = []
        ends_at = perf_counter() + seconds

        async def client() -> None:
            while perf_counter() < ends_at:
                await opened.publish(NAME, [PAYLOAD])
                start = perf_counter()
                (found,) = await opened.lease(NAME, 1)
                took.append(perf_counter() - start)
                await opened.settle(NAME, [Settlement("ack", found.receipt)])

        await asyncio.gather(*(client() for _ in range(8)))
        return statistics.median(took) * 1e6

    async def main(url: str) -> Figures:
        async with _opened(url) as opened:
            await leases(opened, WARM_S)
            empty = await leases(opened, max(seconds / 10, 1))
            for _ in range(waiting // 1000):
                await opened.publish(NAME, [PAYLOAD] * 1000)
            with _foreign_snapshot(url):
                full = await leases(opened, seconds)
            return {"empty_p50_us": empty, "full_p50_us": full}

    with _location("postgres", directory) as url:
        return _run(main(url))


# -- bloat -----------------------------------------------------------------------------------------


class _TableSizes:
    """Looks at the table of content every half second, from a thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.largest_bytes = self.most_dead_rows = 0

    def __enter__(self) -> "_TableSizes":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        import psycopg

        query = (
            "select pg_total_relation_size(relid), n_dead_tup from pg_stat_user_tables "
            "where schemaname = 'penstock' and relname = 'chunk'"
        )
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._is_over.wait(0.5):
                row = connection.execute(query).fetchone()
                if row is not None:
                    self.largest_bytes = max(self.largest_bytes, row[0])
                    self.most_dead_rows = max(self.most_dead_rows, row[1])


def bloat(directory: str, messages: int) -> Figures:
    """Publish, lease and ack many messages in batches of 100, with vacuum as docs/scale.md says.

    The figures are those of the table that holds the content of all queues.
    """

    async def main(url: str) -> Figures:
        import psycopg

        # Finished segments are removed after a snapshot: those of single messages come as often.
        async with _opened(url, snapshot_every=5000) as opened:
            left = messages

            async def client() -> None:
                nonlocal left
                while left > 0:
                    left -= 100
                    await opened.publish(NAME, [PAYLOAD] * 100)
                    found = await opened.lease(NAME, 100)
                    acks = [Settlement("ack", one.receipt) for one in found]
                    await opened.settle(NAME, acks)

            with _TableSizes(url) as sizes, psycopg.connect(url, autocommit=True) as connection:
                await asyncio.gather(*(client() for _ in range(8)))
                wal, live = connection.execute(
                    "select pg_current_wal_lsn() - '0/0'::pg_lsn, sum(length(data)) "
                    "from penstock.chunk"
                ).fetchone()  # type: ignore[misc]
        mib = 1 << 20
        return {
            "written_mib": float(wal) / mib,
            "largest_mib": sizes.largest_bytes / mib,
            "live_mib": float(live) / mib,
            "dead_rows": float(sizes.most_dead_rows),
        }

    settings = {**SETTINGS, "autovacuum_naptime": "15s", "autovacuum_vacuum_cost_limit": "2000"}
    with postgres(directory, checksums=True, **settings) as port:
        return _run(main(postgres_url(port)))


if __name__ == "__main__":
    works = (backlog, bloat, brokers, delivery, http, peer, store)
    run_workload({work.__name__: work for work in works})
