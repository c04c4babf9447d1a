"""Closing a remote queue: what its open streams leased ahead is given back."""

import asyncio
from collections.abc import Iterator

import pytest

import penstock
import penstock.aio
from penstock.client import connect_broker
from penstock.errors import LedgerClosed
from tests.server.running import RunningServer


@pytest.fixture
def name(server: RunningServer, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"closing/{request.node.name[:60]}"
    with connect_broker(server.url) as broker:
        broker.create_queue(name, max_attempts=1)
    yield name
    with penstock.open(server.url, queue=name) as queue:
        stats = queue.stats()
        assert (stats.acked, stats.ready, stats.leased, stats.dead) == (1, 2, 0, 0)


def test_a_kept_iterator_gives_back(server: RunningServer, name: str) -> None:
    queue = penstock.open(server.url, queue=name)
    queue.enqueue_batch([b"a", b"b", b"c"])
    jobs = queue.stream()
    queue.ack(next(jobs))
    queue.close()
    with pytest.raises(LedgerClosed):
        next(jobs)


def test_a_broken_off_async_stream_gives_back(server: RunningServer, name: str) -> None:
    async def main() -> None:
        async with await penstock.aio.open(server.url, queue=name) as queue:
            await queue.enqueue_batch([b"a", b"b", b"c"])
            async for job in queue.stream():
                await queue.ack(job)
                break

    asyncio.run(main())


def test_a_kept_async_iterator_gives_back(server: RunningServer, name: str) -> None:
    async def main() -> None:
        queue = await penstock.aio.open(server.url, queue=name)
        await queue.enqueue_batch([b"a", b"b", b"c"])
        jobs = queue.stream()
        await queue.ack(await anext(jobs))
        await queue.close()
        with pytest.raises(LedgerClosed):
            await anext(jobs)

    asyncio.run(main())
