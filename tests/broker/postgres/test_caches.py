"""Large queues: a takeover fetches what it needs, and the copies stay within their limit."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Settlement
from penstock.names import QueueName
from penstock.operations import GetStats
from tests.conformance.conftest import Heard
from tests.harness.postgres_server import PostgresServer

ORDERS = QueueName("shop", "orders")
MIB = 1 << 20


async def fill(store: PostgresStore, mib: int, queue: QueueName = ORDERS) -> None:
    """Create a queue of segments of a MiB, with messages of 64 KiB."""
    settings = BrokerSettings().queue_settings({"segment_bytes": MIB})
    await store.create(queue, settings)
    for _ in range(mib):
        await store.publish(queue, [os.urandom(65536) for _ in range(16)])


def test_a_takeover_of_a_large_queue_fetches_little(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    options = ClusterOptions(schema=new_schema(), beat_s=1e9, outbox_s=1e9)

    async def story() -> None:
        first = PostgresStore(postgres_server.url, options)
        await first.open(Heard())
        await fill(first, 32)
        leased = await first.lease(ORDERS, 160)
        await first.settle(ORDERS, [Settlement("ack", one.receipt) for one in leased])
        await asyncio.to_thread(first.caches.tidy)
        await first.close()

        second = PostgresStore(postgres_server.url, options)
        await second.open(Heard())
        assert (await second.run(ORDERS, GetStats())).ready == 32 * 16 - 160
        # The segments that are read next, the last one, and the events.
        assert second.caches.fetched_bytes < 6 * MIB
        (one,) = await second.lease(ORDERS, 1)
        assert one.seq == 161
        assert second.caches.fetched_bytes < 6 * MIB
        left = [one]
        while leased := await second.lease(ORDERS, 100):
            left += leased
        assert [one.seq for one in left] == list(range(161, 513))
        assert second.caches.fetched_bytes < 30 * MIB
        await second.close()

    asyncio.run(story())


def test_copies_of_files_stay_within_their_limit(
    postgres_server: PostgresServer, new_schema: Callable[[], str], tmp_path: Path
) -> None:
    options = ClusterOptions(
        schema=new_schema(), beat_s=1e9, outbox_s=1e9, cache=str(tmp_path), cache_bytes=4 * MIB
    )

    def copied() -> int:
        found = [file for file in tmp_path.rglob("*") if file.is_file()]
        return sum(file.stat().st_blocks * 512 for file in found)

    async def story() -> None:
        store = PostgresStore(postgres_server.url, options)
        await store.open(Heard())
        await fill(store, 16)
        assert copied() > 12 * MIB
        await asyncio.to_thread(store.caches.tidy)
        assert copied() < 8 * MIB
        seqs = []
        while leased := await store.lease(ORDERS, 32):
            seqs += [one.seq for one in leased]
            await asyncio.to_thread(store.caches.tidy)
            assert copied() < 8 * MIB
        assert seqs == list(range(1, 257))
        await store.close()

    asyncio.run(story())


def test_copies_that_are_missing_do_not_keep_others_from_being_dropped(
    postgres_server: PostgresServer, new_schema: Callable[[], str], tmp_path: Path
) -> None:
    """As while a queue is closed, whose copies are removed."""
    options = ClusterOptions(
        schema=new_schema(), beat_s=1e9, outbox_s=1e9, cache=str(tmp_path), cache_bytes=1
    )

    def copied() -> int:
        return sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file())

    async def story() -> None:
        store = PostgresStore(postgres_server.url, options)
        await store.open(Heard())
        await fill(store, 4)
        (first,) = tmp_path.glob("penstock-cache-*/*-*")
        await fill(store, 4, QueueName("shop", "other"))
        shutil.rmtree(first)
        await asyncio.to_thread(store.caches.tidy)
        assert copied() < 3 * MIB
        await store.close()

    asyncio.run(story())


def test_counts_of_a_closed_queue_are_told_to_other_brokers_without_opening_it(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    options = ClusterOptions(schema=new_schema(), beat_s=1e9, outbox_s=1e9, rebalance_s=1e9)

    def openings(store: PostgresStore) -> int:
        query = "select sum(token) from queue"  # each opening raises it
        return int(store.database.read(lambda session: session.one(query)[0]))

    async def story() -> None:
        owner = PostgresStore(postgres_server.url, options, max_open=1)
        other = PostgresStore(postgres_server.url, options)
        await owner.open(Heard())
        await other.open(Heard())
        queues = [QueueName("shop", f"q{number}") for number in range(4)]
        for queue in queues:
            await owner.create(queue, BrokerSettings().queue_settings())
            await owner.publish(queue, [b"x"])
        before = openings(owner)
        for _ in range(2):
            for store in (owner, other):
                for queue in queues:
                    assert (await store.run(queue, GetStats())).ready == 1
        assert openings(owner) == before
        await other.publish(queues[0], [b"y"])
        assert (await other.run(queues[0], GetStats())).ready == 2
        await other.close()
        await owner.close()

    asyncio.run(story())
