"""The client for asyncio: the same calls, awaitable."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

import penstock.aio
from penstock.aio import AnyAsyncQueue
from penstock.client import connect_broker_async
from penstock.errors import InvalidInput, LedgerClosed, NoSuchGroup
from penstock.model import LeasedMessage
from tests.server.running import RunningServer

_numbers = count(1)
Story = Callable[[AnyAsyncQueue], Awaitable[None]]


def play(server: RunningServer, story: Story, **settings: Any) -> None:
    async def main() -> None:
        name = f"tasks/queue-{next(_numbers)}"
        async with connect_broker_async(server.url) as broker:
            await broker.create_queue(name, **settings)
        async with await penstock.aio.open(server.url, queue=name) as queue:
            async with asyncio.timeout(60):
                await story(queue)

    asyncio.run(main())


def test_publish_lease_and_settle(server: RunningServer) -> None:
    async def story(queue: AnyAsyncQueue) -> None:
        ids = await queue.enqueue_batch([b"a", b"b", b"c"])
        await queue.enqueue(b"urgent", priority=9, headers={"kind": "x"})
        first, second = await queue.lease(2)
        assert (first.payload, second.payload, second.id) == (b"urgent", b"a", ids[0])
        assert await queue.ack(first, emit=[b"follow-up"])
        await queue.nack(second, "no", delay=0)
        await queue.extend(await queue.lease(), 60)
        assert (await queue.why(ids[0])).state == "ready"
        assert [event.event for event in await queue.history(ids[0])][-1] == "nacked"
        assert (await queue.get(ids[0])).payload == b"a"
        assert await queue.state(ids[0]) == "ready"
        assert (await queue.stats()).leased == 1
        taken = await queue.dequeue_batch(9)
        assert [message.payload for message in taken] == [b"c", b"follow-up", b"a"]
        assert await queue.dequeue() is None

    play(server, story)


def test_a_waiting_lease_is_woken_by_a_publish(server: RunningServer) -> None:
    async def story(queue: AnyAsyncQueue) -> None:
        waiting = asyncio.create_task(queue.lease(wait_s=30))
        await queue.enqueue(b"at last")
        (job,) = await waiting
        assert job.payload == b"at last"
        await queue.release(job)

    play(server, story)


def test_a_cancelled_wait_loses_nothing(server: RunningServer) -> None:
    async def story(queue: AnyAsyncQueue) -> None:
        waiting = asyncio.create_task(queue.lease(wait_s=30))
        while not len(server.server.broker.waiting):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await queue.enqueue(b"x")
        (job,) = await queue.lease(wait_s=30)
        assert job.attempt == 1

    play(server, story)


def test_one_message_for_the_length_of_a_block(server: RunningServer) -> None:
    async def story(queue: AnyAsyncQueue) -> None:
        await queue.enqueue_batch([b"1", b"2"])
        async with queue.lease_one() as job:
            assert job is not None
            with pytest.raises(TypeError, match="await queue"), job:
                pass
        with pytest.raises(ZeroDivisionError):
            async with queue.lease_one():
                raise ZeroDivisionError("no")
        assert [letter.reason async for letter in queue.dead()] == ["ZeroDivisionError: no"]
        assert await queue.redrive() == 1
        assert [message.payload async for message in queue.browse()] == [b"2"]

    play(server, story, max_attempts=1)


def test_streams(server: RunningServer) -> None:
    async def story(queue: AnyAsyncQueue) -> None:
        await queue.enqueue_batch([b"1", b"x", b"3"])
        seen: list[int] = []

        async def handle(job: LeasedMessage) -> None:
            seen.append(int(job.payload))

        assert await queue.stream(handle, idle_s=0) == 2
        assert seen == [1, 3]
        await queue.enqueue_batch([b"4", b"5"])
        jobs = queue.stream(idle_s=0)
        await queue.ack(await anext(jobs))
        await jobs.aclose()  # type: ignore[attr-defined]
        assert (await queue.stats()).ready == 1

    play(server, story, max_attempts=1)


def test_operating(server: RunningServer) -> None:
    async def story(queue: AnyAsyncQueue) -> None:
        ids = await queue.enqueue_batch([b"1", b"2"])
        await queue.groups.create("audit", to="end")
        assert set(await queue.groups.names()) == {"main", "audit"}
        assert await queue.seek("beginning", group="audit") == 1
        assert len(await queue.peek(9, group="audit")) == 2
        await queue.groups.delete("audit")
        with pytest.raises(NoSuchGroup):
            await queue.lease(group="audit")
        assert await queue.cancel(ids[0])
        await queue.pause()
        await queue.resume()
        assert await queue.purge() == 1
        assert (await queue.compact()).bytes_freed >= 0
        assert queue.metrics()["answered"]

    play(server, story)


def test_a_closed_queue_says_so(server: RunningServer) -> None:
    async def main() -> None:
        queue = await penstock.aio.open(server.url, queue="x")
        await queue.close()
        await queue.close()
        with pytest.raises(LedgerClosed):
            await queue.enqueue(b"x")

    asyncio.run(main())


def test_a_queue_is_refused_in_a_second_event_loop_before_anything_is_sent(
    server: RunningServer,
) -> None:
    async def use(queue: AnyAsyncQueue) -> int:
        await queue.enqueue(b"x")
        return (await queue.stats()).published

    async def opened() -> AnyAsyncQueue:
        queue = await penstock.aio.open(server.url, queue="second-loop")
        assert await use(queue) == 1
        return queue

    with asyncio.Runner() as first:
        queue = first.run(opened())
        with pytest.raises(InvalidInput, match="one event loop"):
            asyncio.run(use(queue))
        first.run(queue.close())
    with penstock.open(server.url, queue="second-loop") as other:
        assert other.stats().published == 1
