"""The event loop does not wait for the database: not for a new segment, a snapshot, or a fetch."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Settlement
from penstock.names import QueueName
from penstock.operations import Browse
from tests.conformance.conftest import Heard
from tests.harness.postgres_server import PostgresServer

ORDERS = QueueName("shop", "orders")
KIB = 1024
Story = Callable[[PostgresStore], Coroutine[Any, Any, None]]


class Place:
    """A schema, whose writes or reads a test can hold up."""

    def __init__(self, server: PostgresServer, schema: str) -> None:
        # A loop that waits for a lock gets an error soon, instead of waiting for ever.
        self._url = f"{server.url}?options=-clock_timeout%3D3000"
        self._schema = schema

    def run(self, story: Story, **settings: Any) -> None:
        """Open a store, with a queue in it if that is new."""
        options = ClusterOptions(schema=self._schema, beat_s=1e9, outbox_s=1e9, rebalance_s=1e9)

        async def main() -> None:
            store = PostgresStore(self._url, options)
            heard = Heard()
            await store.open(heard)
            try:
                if ORDERS not in heard.queues:
                    await store.create(ORDERS, BrokerSettings().queue_settings(settings))
                await story(store)
            finally:
                await store.close()

        asyncio.run(main())

    @contextmanager
    def held_up(self, mode: str) -> Iterator[None]:
        """Let no transaction use the content of files: to write it, or at all."""
        with psycopg.connect(self._url) as other:
            other.execute(f"lock table {self._schema}.chunk in {mode} mode")
            yield


@pytest.fixture
def place(postgres_server: PostgresServer, new_schema: Callable[[], str]) -> Place:
    return Place(postgres_server, new_schema())


async def turns() -> None:
    """Let the loop go on a little: rounds begin."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "settings",
    [{"segment_bytes": 64 * KIB}, {"segment_entries": 1}, {"snapshot_every": 1}],
    ids=lambda settings: next(iter(settings)),
)
def test_publishes_and_acks_do_not_wait_in_the_loop(place: Place, settings: Any) -> None:
    async def story(store: PostgresStore) -> None:
        await store.publish(ORDERS, [b"first", b"second"])
        first, second = await store.lease(ORDERS, 2)
        with place.held_up("exclusive"):
            calls: list[asyncio.Future[Any]] = []
            for number in range(10):
                calls.append(store.publish(ORDERS, [b"%d" % number + bytes(20 * KIB)]))
                await turns()
            calls.append(store.settle(ORDERS, [Settlement("ack", first.receipt)]))
            calls.append(store.settle(ORDERS, [Settlement("nack", second.receipt)]))
            await turns()
            assert not any(call.done() for call in calls), "they are answered when durable"
        await asyncio.gather(*calls)

    async def after(store: PostgresStore) -> None:
        found = [one.payload.rstrip(b"\0") for one in await store.lease(ORDERS, 20)]
        found = [one for one in found if one != b"second"]  # it may be due again
        assert found == [b"%d" % number for number in range(10)]

    place.run(story, sync="always", **settings)
    place.run(after)


def test_the_first_publish_does_not_wait_in_the_loop(place: Place) -> None:
    async def story(store: PostgresStore) -> None:
        with place.held_up("exclusive"):
            call = store.publish(ORDERS, [b"first"])
            await turns()
            assert not call.done()
        await call
        (found,) = await store.lease(ORDERS, 1)
        assert found.payload == b"first"

    place.run(story, sync="always")


def test_a_queue_that_does_not_sync_keeps_little_in_memory(place: Place) -> None:
    async def story(store: PostgresStore) -> None:
        for _ in range(12):
            await store.publish(ORDERS, [os.urandom(512 * KIB)])
        await turns()

    async def after(store: PostgresStore) -> None:
        assert await store.lease(ORDERS, 20), "most was written, though no call asked for it"

    place.run(story, sync="never", min_free_bytes=0)
    place.run(after)


def test_a_lease_of_messages_that_are_far_away_does_not_wait_in_the_loop(place: Place) -> None:
    async def fill(store: PostgresStore) -> None:
        for _ in range(10):
            await store.publish(ORDERS, [os.urandom(60 * KIB)])
        await asyncio.to_thread(store.caches.tidy)

    async def story(store: PostgresStore) -> None:
        await store.lease(ORDERS, 1)
        with place.held_up("access exclusive"):
            lease = store.lease(ORDERS, 9)
            browse = store.run(ORDERS, Browse())
            await turns()
            assert not lease.done()
            assert not browse.done()
        assert [one.seq for one in await lease] == list(range(2, 11))
        assert len((await browse).rows) == 10

    place.run(fill, segment_bytes=64 * KIB)
    place.run(story)
