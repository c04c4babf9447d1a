"""Closing a queue: its open streams end, and what they leased ahead is given back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.aio import AsyncQueue
from penstock.errors import LedgerClosed
from penstock.ledger.settings import SyncPolicy

SETTINGS: dict[str, Any] = {"max_attempts": 1, "min_free_bytes": 0}


def test_what_a_kept_iterator_leased_ahead_is_given_back_at_the_close(tmp_path: Path) -> None:
    queue = penstock.open(tmp_path / "queue", **SETTINGS)
    queue.enqueue_batch([b"a", b"b", b"c"])
    jobs = queue.stream()
    queue.ack(next(jobs))
    queue.close()
    with pytest.raises(LedgerClosed):
        next(jobs)
    with pytest.raises(StopIteration):
        next(jobs)
    assert_two_are_ready(tmp_path)


@pytest.mark.parametrize("sync", ["interval", "always"])
def test_what_an_async_stream_leased_ahead_is_given_back_after_a_break(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    async def main() -> None:
        async with await penstock.aio.open(tmp_path / "queue", sync=sync, **SETTINGS) as queue:
            await queue.enqueue_batch([b"a", b"b", b"c"])
            async for job in queue.stream():
                await queue.ack(job)
                break

    asyncio.run(main())
    assert_two_are_ready(tmp_path)


def test_what_an_async_stream_leased_ahead_is_given_back_after_a_cancel(tmp_path: Path) -> None:
    async def main() -> None:
        async with await penstock.aio.open(tmp_path / "queue", **SETTINGS) as queue:
            await queue.enqueue_batch([b"a", b"b", b"c"])
            acked = asyncio.Event()

            async def consume() -> None:
                async for job in queue.stream():
                    await queue.ack(job)
                    acked.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(consume())
            await acked.wait()
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(main())
    assert_two_are_ready(tmp_path)


def test_a_kept_async_iterator_hands_out_nothing_after_the_close(tmp_path: Path) -> None:
    async def main() -> None:
        queue = await penstock.aio.open(tmp_path / "queue", **SETTINGS)
        await queue.enqueue_batch([b"a", b"b", b"c"])
        jobs = queue.stream()
        await queue.ack(await anext(jobs))
        await queue.close()
        with pytest.raises(LedgerClosed):
            await anext(jobs)

    asyncio.run(main())
    assert_two_are_ready(tmp_path)


def assert_two_are_ready(path: Path) -> None:
    with penstock.open(path / "queue") as queue:
        stats = queue.stats()
        assert (stats.acked, stats.ready, stats.leased, stats.dead) == (1, 2, 0, 0)
        assert [job.attempt for job in queue.lease(9)] == [1, 1]


@pytest.mark.parametrize("call", ["lease", "dequeue", "stream", "enqueue"])
def test_a_task_that_waits_ends_at_once_when_the_queue_is_closed(tmp_path: Path, call: str) -> None:
    settings: dict[str, Any] = {
        "max_messages": 1,
        "when_full": "block",
        "block_s": 3600,
        **SETTINGS,
    }

    async def wait(queue: AsyncQueue) -> object:
        if call == "lease":
            return await queue.lease(wait_s=3600)
        if call == "dequeue":
            return await queue.dequeue(wait_s=3600)
        if call == "stream":
            return await queue.stream(lambda job: None)
        await queue.enqueue(b"a")
        return await queue.enqueue(b"no room")

    async def main() -> None:
        queue = await penstock.aio.open(tmp_path / "queue", **settings)
        waiting = asyncio.create_task(wait(queue))
        while not queue.core.listeners:
            await asyncio.sleep(0)
        await queue.close()
        async with asyncio.timeout(10):
            with pytest.raises(LedgerClosed):
                await waiting
        assert queue.core.listeners == []

    asyncio.run(main())
