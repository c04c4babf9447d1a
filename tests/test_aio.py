"""The asyncio face: the same methods, awaitable; nothing is lost when a task is cancelled."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.aio import AsyncQueue
from penstock.errors import InvalidInput, LedgerClosed, NoSuchGroup, QueueFull, ReceiptInvalid
from penstock.ledger.compaction import CompactionResult
from penstock.model import LeasedMessage, NewMessage
from penstock.queue.queue import Queue

Story = Callable[[AsyncQueue], Awaitable[None]]


def play(path: Path, story: Story, **settings: Any) -> None:
    async def main() -> None:
        async with await penstock.aio.open(path / "queue", **settings) as queue:
            async with asyncio.timeout(60):
                await story(queue)

    asyncio.run(main())


def public(cls: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(value)
        for name, value in inspect.getmembers(cls, callable)
        if not name.startswith("_")
    }


def test_closing_a_view_ends_the_waits_of_its_tasks(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "queue", min_free_bytes=0) as queue:

        async def main() -> None:
            view = queue.for_tasks()
            waiting = asyncio.create_task(view.lease(wait_s=60))
            while not queue.core.listeners:
                await asyncio.sleep(0)
            await view.close()
            with pytest.raises(LedgerClosed):
                await waiting

        asyncio.run(main())
        assert queue.enqueue(b"x")


def test_it_has_every_method_of_the_queue_with_the_same_parameters() -> None:
    threads, tasks = public(Queue), public(AsyncQueue)
    assert set(threads) - set(tasks) == {"for_tasks"}
    for name, signature in tasks.items():
        assert list(signature.parameters) == list(threads[name].parameters), name


def test_publish_lease_and_settle(tmp_path: Path) -> None:
    async def story(queue: AsyncQueue) -> None:
        ids = await queue.enqueue_batch([b"a", b"b", b"c"])
        await queue.enqueue(b"urgent", priority=9, headers={"kind": "x"})
        first, second = await queue.lease(2)
        assert (first.payload, second.payload, second.id) == (b"urgent", b"a", ids[0])
        assert await queue.ack(first, emit=[b"follow-up"])
        await queue.nack(second, "no", delay=0)
        assert [message.payload for message in await queue.peek(9)][-1] == b"a"
        assert (await queue.why(ids[0])).code == "behind_others"
        assert [event.event for event in await queue.history(ids[0])][-1] == "nacked"
        assert (await queue.stats()).ready == 4
        with pytest.raises(ReceiptInvalid):
            await queue.ack(first)

    play(tmp_path, story, sync="always")


def test_a_waiting_task_is_woken_by_a_message_and_by_a_due_time(tmp_path: Path) -> None:
    async def story(queue: AsyncQueue) -> None:
        waiting = asyncio.create_task(queue.dequeue(wait_s=30))
        await asyncio.sleep(0)
        await queue.enqueue(b"now")
        message = await waiting
        assert message is not None and message.payload == b"now"
        await queue.enqueue(b"later", delay=0.01)
        message = await queue.dequeue(wait_s=30)
        assert message is not None and message.payload == b"later"
        assert await queue.dequeue(wait_s=0.01) is None

    play(tmp_path, story)


def test_the_message_of_a_cancelled_lease_goes_to_the_next(tmp_path: Path) -> None:
    async def story(queue: AsyncQueue) -> None:
        waiting = asyncio.create_task(queue.lease(wait_s=30))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await queue.enqueue(b"job")
        leasing = asyncio.create_task(queue.lease())
        await asyncio.sleep(0)  # leased by now, and waiting for the disk
        leasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leasing
        (job,) = await queue.lease()
        assert (job.payload, job.attempt) == (b"job", 1)

    play(tmp_path, story, sync="always")


def test_a_cancelled_lease_is_cancelled_also_if_some_of_it_is_no_longer_held(
    tmp_path: Path,
) -> None:
    async def story(queue: AsyncQueue) -> None:
        first, second = await queue.enqueue_batch([b"a", b"b"])
        leasing = asyncio.create_task(queue.lease(2))
        taking_back = asyncio.create_task(queue.cancel(first))
        await asyncio.sleep(0)  # leased and taken back by now, and waiting for the disk
        leasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leasing
        assert await taking_back
        assert await queue.state(second) == "ready"

    play(tmp_path, story, sync="always")


def test_a_stream_is_cancelled_also_if_its_message_is_no_longer_held(tmp_path: Path) -> None:
    async def story(queue: AsyncQueue) -> None:
        await queue.enqueue_batch([b"a", b"b"])
        seen: list[str] = []

        async def handle(job: LeasedMessage) -> None:
            seen.append(job.id)
            await queue.cancel(job.id)  # as if its lease had run out
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(0)

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(queue.stream(handle, idle_s=0))
        assert len(seen) == 1

    play(tmp_path, story)


def test_lease_one_acks_at_the_end_and_nacks_an_error(tmp_path: Path) -> None:
    async def story(queue: AsyncQueue) -> None:
        await queue.enqueue_batch([b"good", b"bad"])
        async with queue.lease_one() as job:
            assert job is not None and job.payload == b"good"
        with pytest.raises(ZeroDivisionError):
            async with queue.lease_one():
                raise ZeroDivisionError("nothing works")
        async with queue.lease_one() as nothing:
            assert nothing is None
        assert [letter.reason async for letter in queue.dead()] == [
            "ZeroDivisionError: nothing works"
        ]

    play(tmp_path, story, max_attempts=1)


def test_a_stream_with_a_handler_acks_and_nacks(tmp_path: Path) -> None:
    async def story(queue: AsyncQueue) -> None:
        await queue.enqueue_batch([b"1", b"x", b"3"])
        seen: list[int] = []

        async def handle(job: LeasedMessage) -> None:
            seen.append(int(job.payload))

        assert await queue.stream(handle, idle_s=0) == 2
        assert seen == [1, 3]
        assert (await queue.stats()).dead == 1
        assert await queue.redrive() == 1

    play(tmp_path, story, max_attempts=1)


def test_a_stream_without_a_handler_gives_back_what_it_leased_ahead(tmp_path: Path) -> None:
    async def story(queue: AsyncQueue) -> None:
        await queue.enqueue_batch([b"1", b"2", b"3"])
        jobs = queue.stream(idle_s=0)
        job = await anext(jobs)
        await queue.ack(job)
        await close(jobs)
        stats = await queue.stats()
        assert (stats.ready, stats.leased, stats.acked) == (2, 0, 1)
        assert [m.payload async for m in queue.browse("ready")] == [b"2", b"3"]

    async def close(jobs: AsyncIterator[LeasedMessage]) -> None:
        await jobs.aclose()  # type: ignore[attr-defined]

    play(tmp_path, story)


def test_groups_seek_and_the_rest_of_the_operators_work(tmp_path: Path) -> None:
    async def story(queue: AsyncQueue) -> None:
        ids = await queue.enqueue_batch([b"1", b"2"])
        await queue.groups.create("audit", to="end")
        assert await queue.groups.names() == ["audit", "main"]
        assert await queue.lease(group="audit") == []
        assert await queue.seek("beginning", group="audit") == 1
        assert len(await queue.lease(9, group="audit")) == 2
        await queue.groups.delete("audit")
        with pytest.raises(NoSuchGroup):
            await queue.lease(group="audit")
        assert await queue.cancel(ids[0])
        assert await queue.state(ids[0]) == "done"
        await queue.pause()
        assert await queue.lease() == []
        await queue.resume()
        assert await queue.purge() == 1
        await queue.compact()
        await queue.sync()
        assert (await queue.get(ids[1])).payload == b"2"
        with pytest.raises(InvalidInput):
            await queue.enqueue(b"x", priority=10)

    play(tmp_path, story)


def test_a_leased_message_says_how_it_is_settled_here(tmp_path: Path) -> None:
    async def story(queue: AsyncQueue) -> None:
        await queue.enqueue(b"x")
        (job,) = await queue.lease()
        with pytest.raises(TypeError, match="await queue"), job:
            pass

    play(tmp_path, story)


def test_a_closed_queue_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        queue = await penstock.aio.open(tmp_path / "queue")
        await queue.close()
        await queue.close()
        with pytest.raises(LedgerClosed):
            await queue.enqueue(b"x")

    asyncio.run(main())


def test_a_compaction_tells_its_progress_to_the_loop(tmp_path: Path) -> None:
    async def story(queue: AsyncQueue) -> None:
        for number in range(50):
            await queue.enqueue(b"%d" % number)
        await queue.dequeue_batch(50)
        told: list[int] = []
        loop = asyncio.get_running_loop()

        def note(so_far: CompactionResult) -> None:
            assert asyncio.get_running_loop() is loop
            told.append(so_far.bytes_freed)

        result = await queue.compact(on_progress=note)
        assert result.bytes_freed > 0
        assert told == sorted(told)
        assert told[0] < told[-1]

    play(tmp_path, story, segment_bytes=512, auto_compact=False)


def test_a_handler_that_raises_is_told_of_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(queue: AsyncQueue) -> None:
        id_ = await queue.enqueue(b"a", max_attempts=1)

        async def fail(job: LeasedMessage) -> None:
            raise RuntimeError("out of paper")

        assert await queue.stream(fail, idle_s=0) == 0
        (record,) = caplog.records
        assert id_ in record.getMessage()
        assert record.exc_info
        assert [letter.reason async for letter in queue.dead()] == ["RuntimeError: out of paper"]

    play(tmp_path, story)


def test_any_number_of_tasks_may_wait_for_room_and_the_rest_goes_on(tmp_path: Path) -> None:
    """They take no threads: what needs one is not held up by them."""

    async def story(queue: AsyncQueue) -> None:
        await queue.enqueue(b"first")
        tasks = [asyncio.create_task(queue.enqueue(b"%d" % n)) for n in range(50)]
        await queue.compact()  # in a thread
        assert not any(task.done() for task in tasks)
        for _ in range(51):
            (job,) = await queue.lease(wait_s=10)
            await queue.ack(job)
        assert len(set(await asyncio.gather(*tasks))) == 50

    play(tmp_path, story, max_messages=1, when_full="block", block_s=60)


def test_a_task_waits_for_room_as_long_as_was_set_and_not_where_there_can_be_none(
    tmp_path: Path,
) -> None:
    async def story(queue: AsyncQueue) -> None:
        await queue.enqueue(b"first")
        with pytest.raises(QueueFull):
            await queue.enqueue(b"second")
        with pytest.raises(QueueFull):
            async with asyncio.timeout(0):
                await queue.enqueue_batch([b"a", b"b"])
        assert queue.metrics()["rejected_full"] == 3

    play(tmp_path, story, max_messages=1, when_full="block", block_s=0.01)


def test_an_opening_that_is_cancelled_leaves_the_directory_free(tmp_path: Path) -> None:
    async def main() -> None:
        for patience in range(6):
            # One directory each: the thread of an opening that was cancelled goes on for a while.
            opening = asyncio.create_task(penstock.aio.open(tmp_path / str(patience)))
            for _ in range(patience):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
            if not opening.cancelled():
                await opening.result().close()

    asyncio.run(main())  # waits for the threads
    for patience in range(6):
        with penstock.open(tmp_path / str(patience)) as queue:
            queue.enqueue(b"x")


def test_operations_are_told_to_a_collector(tmp_path: Path) -> None:
    times = penstock.OperationTimes()

    async def story(queue: AsyncQueue) -> None:
        await queue.enqueue({"order": 7}, delay=timedelta(0))
        await asyncio.gather(*(queue.enqueue(b"x") for _ in range(9)))
        await queue.ack(job for job in await queue.lease(10))
        with pytest.raises(InvalidInput):
            await queue.lease(0)
        info = await queue.retry_info((await queue.publish([NewMessage(payload=b"y")]))[0].id)
        assert info.attempts == 0
        found: Any = queue.metrics()["operations"]
        assert found == times.snapshot()
        counted = {name: (one["calls"], one["messages"]) for name, one in found.items()}
        assert counted == {
            "ack": (1, 10),
            "enqueue": (10, 10),
            "lease": (2, 10),
            "publish": (1, 1),
            "retry_info": (1, 1),
        }
        assert found["lease"]["failed"] == 1

    play(tmp_path, story, metrics=times)


def test_a_url_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="a queue is a directory"):
        asyncio.run(penstock.aio.open("redis://localhost"))
    with pytest.raises(InvalidInput, match="a queue is a directory"):
        penstock.open("redis://localhost")
