"""A lease waits for the disk only if its messages are not on disk yet."""

import asyncio
import shutil
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker import Broker, EmbeddedStore, QueueName, Settlement
from penstock.broker.access import INSIDE
from penstock.broker.embedded.commit_loop import Done, Work
from penstock.errors import ReceiptInvalid
from penstock.ledger.memory_files import MemoryFiles
from penstock.operations import GetMessage
from penstock.queue.events import EventType
from tests.harness.virtual_loop import LoopClock, LoopThreads

ORDERS = QueueName("default", "orders")


class HeldThreads:
    """Syncs that run when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: deque[tuple[Work, Done]] = deque()
        self.is_holding = False
        self.count = 0

    def run(self, work: Work, done: Done) -> None:
        self.count += 1
        if self.is_holding:
            self._held.append((work, done))
        else:
            self._loop.call_soon(self._end, work, done)

    def close(self) -> None:
        pass

    def release(self) -> None:
        """End the syncs that wait, and hold those that follow."""
        for _ in range(len(self._held)):
            self._end(*self._held.popleft())

    def _end(self, work: Work, done: Done) -> None:
        done(work())


class Told:
    """A pending call of a transport."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def succeed(self, result: Any) -> None:
        self.results.append(result)

    def fail(self, error: BaseException) -> None:
        raise error


@asynccontextmanager
async def opened(clock: LoopClock) -> AsyncIterator[tuple[Broker, HeldThreads]]:
    made: list[HeldThreads] = []

    def threads(loop: asyncio.AbstractEventLoop) -> HeldThreads:
        made.append(HeldThreads(loop))
        return made[-1]

    store = EmbeddedStore("/data", clock=clock, files=MemoryFiles(), sync_threads=threads)
    broker = Broker(store, clock=clock)
    await broker.start()
    try:
        await broker.create_queue(INSIDE, ORDERS, {"sync": "always"})
        yield broker, made[0]
    finally:
        made[0].is_holding = False
        made[0].release()
        await broker.stop()


async def test_a_lease_of_messages_on_disk_does_not_wait_for_the_disk(clock: LoopClock) -> None:
    async with opened(clock) as (broker, threads):
        await broker.publish(INSIDE, ORDERS, [b"a", b"b", b"c"])
        threads.is_holding = True
        assert broker.lease(INSIDE, ORDERS).done()
        assert broker.lease(INSIDE, ORDERS, pending=Told())
        (leased,) = await broker.lease(INSIDE, ORDERS, holder="worker")
        acking = broker.settle(INSIDE, [Settlement("ack", leased.receipt)])
        await asyncio.sleep(1)
        assert not acking.done()  # an ack waits
        threads.release()
        assert (await acking)[0].ok


async def test_a_lease_of_messages_that_are_not_on_disk_waits_for_their_round(
    clock: LoopClock,
) -> None:
    async with opened(clock) as (broker, threads):
        threads.is_holding = True
        publishing = broker.publish(INSIDE, ORDERS, [b"a", b"b"])
        await asyncio.sleep(0)  # the round begins
        before = threads.count
        leasing = broker.lease(INSIDE, ORDERS)
        told = Told()
        assert broker.lease(INSIDE, ORDERS, pending=told) is None
        later = broker.publish(INSIDE, ORDERS, [b"c"])
        await asyncio.sleep(1)
        assert not (publishing.done() or leasing.done() or told.results)
        assert threads.count == before
        threads.release()  # one round is enough
        assert publishing.done() and leasing.done() and len(told.results) == 1
        assert not later.done()
        await asyncio.sleep(0)
        threads.release()
        await later


async def test_a_waiting_lease_is_answered_by_the_one_sync_of_its_message(
    clock: LoopClock,
) -> None:
    """The sync of the lease's own event is not waited for: see `OpenQueue._are_durable`."""
    async with opened(clock) as (broker, threads):
        waiting = broker.lease(INSIDE, ORDERS, wait_s=60)
        await asyncio.sleep(1)
        threads.is_holding = True
        before = threads.count
        publishing = broker.publish(INSIDE, ORDERS, [b"a"])
        await asyncio.sleep(1)
        assert threads.count == before + 1  # of the messages, not of the events
        assert not (publishing.done() or waiting.done())
        threads.release()
        assert publishing.done()
        await asyncio.sleep(0)  # the turn in which the future's callback is called
        assert waiting.done()


async def test_a_message_is_shown_as_timed_out_once_that_is_on_disk(clock: LoopClock) -> None:
    async with opened(clock) as (broker, threads):
        (published,) = await broker.publish(INSIDE, ORDERS, [b"a"])
        await broker.lease(INSIDE, ORDERS, lease_s=1)
        await asyncio.sleep(0.9)
        looking = GetMessage(published.id)
        assert (await broker.run(INSIDE, looking)).state == "leased"
        core = broker.store.open_queues[ORDERS].core  # type: ignore[attr-defined]
        core.clock.monotonic_ns = lambda: clock.monotonic_ns() + 10**9  # before the timer fires
        core.clock.read = lambda: (clock.now_ns(), clock.monotonic_ns() + 10**9)
        threads.is_holding = True
        answer = broker.run(INSIDE, looking)
        while not core.main.totals[EventType.TIMED_OUT]:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not answer.done()
        threads.release()
        assert (await answer).state == "scheduled"


async def test_a_lease_cancelled_while_it_waits_is_given_back(clock: LoopClock) -> None:
    async with opened(clock) as (broker, threads):
        threads.is_holding = True
        publishing = broker.publish(INSIDE, ORDERS, [b"a"])
        broker.lease(INSIDE, ORDERS).cancel()
        await asyncio.sleep(0)
        threads.is_holding = False
        threads.release()
        await publishing
        (leased,) = await broker.lease(INSIDE, ORDERS)
        assert leased.attempt == 1


async def test_a_lease_is_on_disk_soon_after_it_was_answered(clock: LoopClock) -> None:
    async with opened(clock) as (broker, threads):
        await broker.publish(INSIDE, ORDERS, [b"a"])
        await broker.lease(INSIDE, ORDERS)
        before = threads.count
        await asyncio.sleep(1)
        assert threads.count == before + 1


@pytest.mark.parametrize("sync", ["always", "interval"])
async def test_what_a_kill_leaves_of_the_newest_leases(
    clock: LoopClock, tmp_path: Path, sync: str
) -> None:
    """With `always`, events are gathered in memory until their sync, so leases of the last 10 ms
    die with the process: the receipt is refused, and the message is delivered again, once. That is
    why the ring of killed holders accepts ReceiptInvalid with `always`, and only there."""
    store = EmbeddedStore(str(tmp_path / "data"), clock=clock, sync_threads=LoopThreads)
    broker = Broker(store, clock=clock)
    await broker.start()
    await broker.create_queue(INSIDE, ORDERS, {"sync": sync})
    await broker.publish(INSIDE, ORDERS, [b"a"])
    (leased,) = await broker.lease(INSIDE, ORDERS, lease_s=3600)
    files = Path(store.open_queues[ORDERS].core.ledger.path)
    at_once, later = tmp_path / "at once", tmp_path / "later"
    shutil.copytree(files, at_once)  # what a killed process leaves
    await asyncio.sleep(0.02)
    shutil.copytree(files, later)
    await broker.stop()
    with penstock.open(at_once) as queue:
        if sync == "always":
            with pytest.raises(ReceiptInvalid):
                queue.ack(leased.receipt)
            (again,) = queue.lease(2)
            assert (again.id, again.attempt) == (leased.id, 1)
            queue.ack(again)
        else:
            queue.ack(leased.receipt)
        assert queue.stats().acked == queue.stats().published == 1
    with penstock.open(later) as queue:
        queue.ack(leased.receipt)
        assert queue.stats().acked == 1
