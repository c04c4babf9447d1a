"""Queues in PostgreSQL by other means, behind one interface.

Each has what its documentation shows: prepared statements, a pool, batches where it offers them. A
publish and an ack are durable when they return (fsync and synchronous_commit are on). The lease of
the hand-written table is not, as Penstock's is not: if it is lost, the message is delivered again.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol
from uuid import uuid4

QUEUE = "q"


class Peer(Protocol):
    """A queue."""

    async def publish(self, payloads: list[bytes]) -> None: ...

    async def take(self, n: int) -> int:
        """Lease up to `n` messages and ack them. Return their number."""


@asynccontextmanager
async def procrastinate(port: int, clients: int) -> AsyncIterator[Peer]:
    import procrastinate as library
    from procrastinate.jobs import Status

    class Procrastinate:
        """Payloads are JSON text. A job is fetched by itself: there are no batches of them."""

        async def publish(self, payloads: list[bytes]) -> None:
            if len(payloads) == 1:
                await task.defer_async(payload=payloads[0].decode("latin-1"))
            else:
                await task.batch_defer_async(*({"payload": p.decode("latin-1")} for p in payloads))

        async def take(self, n: int) -> int:
            job = await app.job_manager.fetch_job(queues=[QUEUE], worker_id=worker)
            if job is None:
                return 0
            await app.job_manager.finish_job(job, Status.SUCCEEDED, delete_job=True)
            return 1

    where = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    connector = library.PsycopgConnector(conninfo=where, min_size=clients, max_size=clients)
    app = library.App(connector=connector)

    @app.task(queue=QUEUE, name="work")
    async def task(payload: str) -> None:
        """Never run: jobs are fetched directly, as a worker fetches them."""

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        worker = await app.job_manager.register_worker()
        yield Procrastinate()


@asynccontextmanager
async def pgqueuer(port: int, clients: int) -> AsyncIterator[Peer]:
    import asyncpg
    from pgqueuer.db import AsyncpgPoolDriver
    from pgqueuer.queries import EntrypointExecutionParameter, Queries

    class PgQueuer:
        async def publish(self, payloads: list[bytes]) -> None:
            if len(payloads) == 1:
                await queries.enqueue(QUEUE, payloads[0])
            else:
                count = len(payloads)
                await queries.enqueue([QUEUE] * count, list(payloads), [0] * count)

        async def take(self, n: int) -> int:
            jobs = await queries.dequeue(n, entrypoints, manager, None, timeout)
            if jobs:
                await queries.log_jobs([(job, "successful", None) for job in jobs])
            return len(jobs)

    entrypoints: Any = {QUEUE: EntrypointExecutionParameter(concurrency_limit=0)}
    manager: Any = uuid4()
    timeout = timedelta(seconds=30)
    async with asyncpg.create_pool(**_address(port), min_size=clients, max_size=clients) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        yield PgQueuer()


_TABLE = """
create table q (
    id bigserial primary key,
    due timestamptz not null default now(),
    attempts int not null default 0,
    payload bytea not null
) with (autovacuum_vacuum_scale_factor = 0.01, fillfactor = 70);
create index q_due on q (due, id);
"""
_PUBLISH = "insert into q (payload) select unnest($1::bytea[])"
# By ctid: the plan does not depend on statistics, which are always old for such a table.
_LEASE = (
    "update q set due = now() + interval '30 s', attempts = attempts + 1 where ctid = any(array("
    "select ctid from q where due <= now() order by due, id limit $1 for update skip locked)) "
    "returning id, payload"
)
_ACK = "delete from q where id = any($1::bigint[])"


@asynccontextmanager
async def table(port: int, clients: int) -> AsyncIterator[Peer]:
    import asyncpg

    class Table:
        async def publish(self, payloads: list[bytes]) -> None:
            await durable.execute(_PUBLISH, payloads)

        async def take(self, n: int) -> int:
            rows = await leases.fetch(_LEASE, n)
            if rows:
                await durable.execute(_ACK, [row["id"] for row in rows])
            return len(rows)

    half = max(clients // 2, 1)
    sizes = {"min_size": half, "max_size": half}
    off = {"synchronous_commit": "off"}
    async with (
        asyncpg.create_pool(**_address(port), **sizes) as durable,
        asyncpg.create_pool(**_address(port), **sizes, server_settings=off) as leases,
    ):
        await durable.execute(_TABLE)
        yield Table()


def _address(port: int) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": port, "user": "postgres", "database": "postgres"}


PEERS = {"procrastinate": procrastinate, "pgqueuer": pgqueuer, "asyncpg": table}
