"""Answers are bounded by bytes as well as by count, and what does not fit stays where it was."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker import Broker, EmbeddedStore, QueueName, Settlement
from penstock.broker.access import INSIDE
from penstock.broker.consumers import Consumer
from penstock.errors import Overloaded
from penstock.model import LeasedMessage, NewMessage
from penstock.operations import Browse, GetStats, ListDead, Peek
from penstock.queue.messages import size_of
from tests.broker.conftest import OpenBroker
from tests.harness.virtual_loop import LoopClock, LoopThreads, run_virtually

ON_DISK = True

ORDERS = QueueName("default", "orders")
KIB = 1024

sizes = st.lists(st.sampled_from([0, 10, 500, 5 * KIB, 70 * KIB, 300 * KIB]), max_size=25)
options = st.lists(
    st.sampled_from(
        [{}, {"priority": 7}, {"compression": "gzip"}, {"headers": {"k": "v" * 300}}, {"ttl": 60}]
    ),
    min_size=25,
    max_size=25,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes, options, st.integers(1, 400 * KIB), st.integers(1, 12))
def test_a_lease_has_as_many_as_fit_and_leaves_the_rest_ready(
    tmp_path_factory: pytest.TempPathFactory,
    payload_sizes: list[int],
    given_options: list[dict[str, Any]],
    max_bytes: int,
    count: int,
) -> None:
    async def main(clock: LoopClock) -> None:
        async with _broker(tmp_path_factory.mktemp("bytes"), clock) as broker:
            new = [
                NewMessage(payload=bytes([n]) * size, **more)
                for n, (size, more) in enumerate(
                    zip(payload_sizes, given_options, strict=False), start=1
                )
            ]
            for one in new:
                await broker.publish(INSIDE, ORDERS, [one])
            expected = (
                [row.message for row in await broker.run(INSIDE, Peek(n=100), ORDERS)]
                if new
                else []
            )
            got = []
            while expected:
                leased = await broker.store.lease(ORDERS, count, max_bytes=lambda: max_bytes)
                found = [one.message for one in leased]
                got += found
                assert found == expected[: len(found)]
                assert len(found) == _fitting(expected, max_bytes, count)
                del expected[: len(found)]
                stats = await broker.run(INSIDE, GetStats(), ORDERS)
                assert (stats.ready, stats.leased) == (len(expected), len(got))

    run_virtually(main)


def _fitting(messages: list[Any], max_bytes: int, count: int) -> int:
    fitting = size = 0
    for one in messages[:count]:
        size += size_of(one)
        if fitting and size > max_bytes:
            break
        fitting += 1
    return fitting


@asynccontextmanager
async def _broker(path: Path, clock: LoopClock) -> AsyncIterator[Broker]:
    store = EmbeddedStore(str(path / "data"), clock=clock, sync_threads=LoopThreads)
    broker = Broker(store, clock=clock)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def test_dead_letters_are_leased_as_many_as_fit(open_broker: OpenBroker) -> None:
    async with open_broker(max_answer_bytes=25 * KIB) as broker:
        await _publish(broker, 5, 10 * KIB)
        await _kill_all(broker)
        counts = []
        while leased := await broker.lease_dead(INSIDE, ORDERS, n=100):
            counts.append(len(leased))
        assert counts == [2, 2, 1]


async def test_pages_end_where_the_next_message_does_not_fit(open_broker: OpenBroker) -> None:
    async with open_broker(max_answer_bytes=25 * KIB) as broker:
        await _publish(broker, 4, 10 * KIB)
        await _publish(broker, 1, 90 * KIB)
        seqs, after = [], 0
        while True:
            page = await broker.run(INSIDE, Browse(after_seq=after, limit=1000), ORDERS)
            seqs.append([row.message.seq for row in page.rows])
            after = page.next_seq
            if not after:
                break
        assert seqs == [[1, 2], [3, 4], [5]]
        assert len(await broker.run(INSIDE, Peek(n=100), ORDERS)) == 2
        await _kill_all(broker)
        seqs, after = [], 0
        while True:
            found = await broker.run(INSIDE, ListDead(after_seq=after, limit=1000), ORDERS)
            seqs.append([letter.message.seq for letter in found.letters])
            after = found.next_seq
            if not after:
                break
        assert seqs == [[1, 2], [3, 4], [5]]


async def test_a_waiting_call_gets_as_many_as_fit(open_broker: OpenBroker) -> None:
    async with open_broker(max_answer_bytes=25 * KIB) as broker:
        asked = broker.lease(INSIDE, ORDERS, n=100, wait_s=10)
        await asyncio.sleep(1)
        await _publish(broker, 5, 10 * KIB)
        assert len(await asked) == 2


async def test_leases_that_wait_for_the_disk_count_against_the_bytes_of_all(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        broker.held.max_bytes = 34 * KIB  # as base64: 25 KiB
        await _publish(broker, 5, 10 * KIB)
        first = broker.lease(INSIDE, ORDERS, n=2)
        second = broker.lease(INSIDE, ORDERS, n=2)  # one fits, nearly
        with pytest.raises(Overloaded):
            broker.lease(INSIDE, ORDERS)
        assert [len(one) for one in await asyncio.gather(first, second)] == [2, 1]
        assert len(await broker.lease(INSIDE, ORDERS, n=5)) == 2


@pytest.mark.parametrize("wait_s", [0.0, 10.0])
async def test_leases_of_a_busy_queue_stay_below_the_bytes_of_all(
    open_broker: OpenBroker, wait_s: float
) -> None:
    """They find room when they are called, but not any more when it is their turn."""
    size, answers = 300 * KIB, 4
    held: list[int] = []

    def hold(leasing: "asyncio.Future[list[LeasedMessage]]") -> None:
        if leasing.exception() is None:
            broker.held.bytes += sum(len(one.payload) * 4 // 3 for one in leasing.result())
        held.append(broker.held.bytes + broker.store.unanswered_bytes)

    async with open_broker(max_answer_bytes=size + KIB) as broker:
        for _ in range(12):
            await _publish(broker, 1, size)
        await broker.lease(INSIDE, ORDERS)  # from now on, leases are read in a thread
        broker.held.max_bytes = answers * size * 4 // 3
        asked = [broker.lease(INSIDE, ORDERS)]
        await asyncio.sleep(0)
        asked += [broker.lease(INSIDE, ORDERS, wait_s=wait_s) for _ in range(10)]
        for one in asked:
            one.add_done_callback(hold)
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert len([one for one in found if isinstance(one, list)]) >= answers
        assert [one for one in found if isinstance(one, Overloaded)]
        assert max(held) <= (answers + 1) * (size + KIB) * 4 // 3
        broker.held.bytes = 0
        assert broker.store.unanswered_bytes == 0
        assert await broker.lease(INSIDE, ORDERS)


async def test_a_lease_counts_until_it_is_handed_over(open_broker: OpenBroker) -> None:
    """Also in the moment between the disk's answer and the caller's next step."""
    size = 300 * KIB
    counted: list[int] = []

    async with open_broker() as broker:
        for _ in range(5):
            await _publish(broker, 1, size)
        for wait_s in (0.0, 0.0, 10.0):  # read at once, in a thread, and after a wait
            leasing = broker.lease(INSIDE, ORDERS, wait_s=wait_s)
            taking = asyncio.ensure_future(_take(leasing))
            while not taking.done():
                if leasing.done():
                    counted.append(broker.held.bytes + broker.store.unanswered_bytes)
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert broker.held.bytes + broker.store.unanswered_bytes == 0
        assert len(counted) >= 3 and min(counted) >= size


async def _take(leasing: "asyncio.Future[list[LeasedMessage]]") -> None:
    await leasing


async def test_a_consumer_gets_nothing_while_it_holds_as_many_bytes_as_it_may(
    open_broker: OpenBroker,
) -> None:
    async with open_broker(max_unsettled_bytes=25 * KIB) as broker:
        await _publish(broker, 5, 10 * KIB)
        consumer = Consumer(broker, INSIDE, ORDERS, credit=100)
        held = await consumer.next()
        assert len(held) == 2
        held += await consumer.next()  # there was room, so one more, though it is too large for it
        assert (len(held), consumer.unsettled_bytes > 25 * KIB) == (3, True)
        more = asyncio.ensure_future(consumer.next())
        await asyncio.sleep(1)
        assert not more.done()
        await consumer.settle([Settlement("ack", held[0].receipt)])
        assert len(await more) == 1
        consumer.close()
        assert (consumer.unsettled, consumer.unsettled_bytes) == (0, 0)


async def test_a_consumer_waits_while_the_server_holds_too_much(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await _publish(broker, 1, 10)
        broker.held.bytes = broker.held.max_bytes
        consumer = Consumer(broker, INSIDE, ORDERS, credit=1)
        asked = asyncio.ensure_future(consumer.next())
        await asyncio.sleep(5)
        assert not asked.done()
        broker.held.bytes = 0
        assert len(await asked) == 1
        consumer.close()


async def _publish(broker: Broker, count: int, size: int) -> None:
    await broker.publish(INSIDE, ORDERS, [bytes(size)] * count)


async def _kill_all(broker: Broker) -> None:
    while leased := await broker.lease(INSIDE, ORDERS, n=100):
        await broker.settle(INSIDE, [Settlement("nack", one.receipt, dead=True) for one in leased])
