"""Streams: messages as they come, handled one by one, none lost and none spent unhandled."""

import asyncio
import os
import signal
from pathlib import Path
from threading import Thread

import pytest

import penstock.aio
from penstock.clock import ManualClock
from penstock.model import LeasedMessage
from penstock.queue import Queue
from penstock.queue.streaming import Stopper
from tests.harness.queue_clock import SteppedClock
from tests.harness.queue_store import QueueStore


def test_a_handler_is_called_for_each_and_its_errors_are_nacks(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_batch([b"%d" % number for number in range(10)])
    handled = []

    def handle(job: LeasedMessage) -> None:
        handled.append(job.payload)
        if job.payload == b"3":
            raise ValueError("three is bad")

    assert queue.stream(handle, idle_s=0, batch=4) == 9
    assert handled == [b"%d" % number for number in range(10)]
    assert (queue.stats().acked, queue.stats().nacked) == (9, 1)
    clock.advance(1)
    assert queue.stream(handle, idle_s=0) == 0
    assert handled[-1] == b"3"


def test_an_iterator_is_settled_by_its_blocks(queue: Queue) -> None:
    queue.enqueue_batch([b"a", b"b"])
    for job in queue.stream(idle_s=0):
        with job:
            pass
    assert queue.stats().acked == 2


def test_what_was_leased_ahead_is_given_back_untouched(queue: Queue) -> None:
    queue.enqueue_batch([b"a", b"b", b"c"])
    jobs = queue.stream(idle_s=0)
    queue.ack(next(jobs))
    jobs.close()  # type: ignore[attr-defined]
    assert [one.attempt for one in queue.lease(9)] == [1, 1]


def test_a_slow_handler_spends_no_attempt_of_those_that_wait_behind_it(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_batch([b"%d" % number for number in range(10)])
    attempts = []

    def slow(job: LeasedMessage) -> None:
        attempts.append(job.attempt)
        clock.advance(20)  # of a lease of 30 s

    assert queue.stream(slow, idle_s=0, lease_s=30, batch=10) == 10
    assert attempts == [1] * 10


def test_a_stream_ends_well_though_all_it_leased_ahead_ran_out(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_batch([b"a", b"b", b"c"])
    for _job in queue.stream(idle_s=0, lease_s=5):
        clock.advance(60)
        queue.stats()
        break
    assert queue.stats().leased == 0


def test_a_handler_that_outlives_its_lease_does_not_end_the_stream(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_batch([b"a", b"b"])

    def late(job: LeasedMessage) -> None:
        if job.payload == b"a" and job.attempt == 1:
            clock.advance(60)
            queue.stats()  # its lease is over
            clock.advance(1)
            queue.dequeue()  # and someone else has it
            raise RuntimeError("too late")

    assert queue.stream(late, idle_s=0, lease_s=5, batch=1) == 1
    assert queue.stats().acked == 2


def test_a_stream_waits_for_more_until_it_was_idle_long_enough() -> None:
    clock = SteppedClock()
    queue = QueueStore(clock=clock).queue
    queue.enqueue(b"first")
    handled: list[bytes] = []
    thread = Thread(target=lambda: queue.stream(lambda job: handled.append(job.payload), idle_s=5))
    thread.start()
    clock.until_waiting(1)
    clock.advance(4)
    queue.enqueue(b"second")
    clock.until_waiting(2)
    assert handled == [b"first", b"second"]
    clock.advance(5)
    thread.join()


def test_interrupting_a_handler_nacks_and_goes_out(queue: Queue) -> None:
    queue.enqueue_batch([b"a", b"b"])

    def interrupted(job: LeasedMessage) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.stream(interrupted, idle_s=0)
    stats = queue.stats()
    assert (stats.nacked, stats.leased, stats.ready) == (1, 0, 1)


def test_an_async_stream_goes_on_after_a_handler_that_outlived_its_lease(tmp_path: Path) -> None:
    async def main() -> int:
        async with await penstock.aio.open(tmp_path, sync="never", min_free_bytes=0) as queue:
            await queue.enqueue_batch([b"a", b"b"])

            async def handle(job: LeasedMessage) -> None:
                if job.payload == b"a":
                    await queue.ack(job)
                    raise RuntimeError("after it was settled")

            return await queue.stream(handle, idle_s=0, batch=1)

    assert asyncio.run(main()) == 1


def test_a_stream_that_waits_is_stopped_at_once() -> None:
    clock, stopper = SteppedClock(), Stopper()
    queue = QueueStore(clock=clock).queue
    thread = Thread(target=lambda: queue.stream(print, stopper=stopper))
    thread.start()
    clock.until_waiting(1)
    stopper.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert stopper.wakers == []  # nothing is kept of a stream that ended


def test_a_stream_is_stopped_by_a_signal_handler(queue: Queue) -> None:
    stopper = Stopper()
    before = signal.signal(signal.SIGUSR1, lambda *_: stopper.stop())
    try:
        Thread(target=lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        assert queue.stream(print, stopper=stopper) == 0
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_async_stream_is_stopped_by_another_task_or_thread(tmp_path: Path) -> None:
    async def main() -> None:
        async with await penstock.aio.open(tmp_path, sync="never", min_free_bytes=0) as queue:
            assert repr(queue) == f"<AsyncQueue {str(tmp_path)!r}>"
            for how in (Stopper.stop, lambda one: Thread(target=one.stop).start()):
                stopper = Stopper()
                await queue.enqueue_batch([{"number": 1}, {"number": 2}])
                seen: list[bytes] = []

                async def handle(job: LeasedMessage, seen: list[bytes] = seen) -> None:
                    seen.append(job.payload)

                task = asyncio.ensure_future(queue.stream(handle, stopper=stopper))
                while len(seen) < 2:
                    await asyncio.sleep(0)
                how(stopper)
                async with asyncio.timeout(60):
                    assert await task == 2
            stopper = Stopper()
            stopper.stop()
            assert [job async for job in queue.stream(stopper=stopper)] == []

    asyncio.run(main())


def test_an_interrupt_ends_a_stream_also_if_its_message_is_no_longer_held(queue: Queue) -> None:
    queue.enqueue_batch([b"a", b"b"])

    def handle(job: LeasedMessage) -> None:
        queue.cancel(job.id)  # as if its lease had run out
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.stream(handle, idle_s=0)
    assert queue.stats().ready == 1
