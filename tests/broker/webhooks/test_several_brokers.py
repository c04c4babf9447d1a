"""Two brokers on one store: one of them delivers a webhook; the other takes over if it dies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from penstock.broker import Broker, BrokerSettings, EmbeddedStore
from penstock.broker.access import INSIDE
from penstock.broker.ownership import LOCK_S, RENEW_S
from penstock.broker.webhooks import Circuit, Webhooks
from penstock.errors import LedgerError, NoSuchWebhook
from penstock.ledger.memory_files import MemoryFiles
from penstock.model import Stats
from penstock.names import QueueName
from penstock.operations import GetStats
from tests.broker.test_several_brokers import SeenFrom, seen_from
from tests.broker.webhooks.scripted import DOWN, Scripted
from tests.harness.virtual_loop import LoopClock, LoopThreads, run_virtually

__all__ = ["seen_from"]

ORDERS = QueueName("default", "orders")
URL = "https://hooks.example.com/in"
OTHER_URL = "https://hooks.example.com/other"


class One(NamedTuple):
    """A broker with its webhooks and its endpoint."""

    broker: Broker
    webhooks: Webhooks
    end: Scripted

    async def publish(self, *payloads: bytes) -> None:
        await self.broker.publish(INSIDE, ORDERS, list(payloads))

    async def stats(self) -> Stats:
        return await self.broker.run(INSIDE, GetStats(), ORDERS)

    def lose_the_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let it renew nothing and read no documents, as if its connection were gone."""

        def fail(*_: object) -> object:
            raise LedgerError("no connection to the store")

        for name in ("acquire_lock", "release_lock", "load_document", "replace_document"):
            monkeypatch.setattr(self.broker.store, name, fail)


@asynccontextmanager
async def started(store: Any, clock: LoopClock) -> AsyncIterator[One]:
    broker = Broker(store, BrokerSettings(webhook_allow_private=True), clock=clock)
    await broker.start()
    end = Scripted(clock)
    webhooks = Webhooks(broker, sender=end)
    await webhooks.start()
    try:
        yield One(broker, webhooks, end)
    finally:
        await webhooks.stop(grace_s=0)
        await broker.stop()


def new_store(clock: LoopClock) -> EmbeddedStore:
    return EmbeddedStore("/data", files=MemoryFiles(), clock=clock, sync_threads=LoopThreads)


def test_a_second_broker_neither_releases_nor_sends_what_the_first_is_delivering(
    seen_from: SeenFrom,
) -> None:
    async def main(clock: LoopClock) -> None:
        store = new_store(clock)
        async with started(seen_from(store), clock) as first:
            first.end.takes_s = 9.0
            await first.webhooks.create(INSIDE, ORDERS, URL, group="main")
            await first.publish(b"x")
            await asyncio.sleep(1)
            assert len(first.end.calls) == 1
            async with started(seen_from(store.for_another()), clock) as second:
                await second.publish(b"y")
                await asyncio.sleep(5 * LOCK_S)
                assert (len(first.end.calls), len(second.end.calls)) == (2, 0)
                assert (await second.stats()).acked == 2

    run_virtually(main)


def test_a_stopped_broker_hands_over_and_nothing_is_sent_twice(seen_from: SeenFrom) -> None:
    async def main(clock: LoopClock) -> None:
        store = new_store(clock)
        async with started(seen_from(store.for_another()), clock) as second:
            async with started(seen_from(store), clock) as first:
                await first.webhooks.create(INSIDE, ORDERS, URL, group="main")
                await first.publish(b"x")
                await asyncio.sleep(1)
                assert (len(first.end.calls), len(second.end.calls)) == (1, 0)
            await second.publish(b"y")
            await asyncio.sleep(RENEW_S + 1)
            assert (len(first.end.calls), len(second.end.calls)) == (1, 1)
            assert (await second.stats()).acked == 2

    run_virtually(main)


def test_another_takes_over_when_the_lock_of_the_owner_has_ended_and_not_before(
    monkeypatch: pytest.MonkeyPatch, seen_from: SeenFrom
) -> None:
    async def main(clock: LoopClock) -> None:
        store = new_store(clock)
        async with (
            started(seen_from(store), clock) as first,
            started(seen_from(store.for_another()), clock) as second,
        ):
            first.end.takes_s = 300.0
            await first.webhooks.create(INSIDE, ORDERS, URL, group="main")
            await first.publish(b"x")
            await asyncio.sleep(1)
            first.lose_the_store(monkeypatch)
            await asyncio.sleep(LOCK_S - 12)
            assert (len(first.end.calls), len(second.end.calls)) == (1, 0)
            assert (await second.stats()).leased == 1
            await asyncio.sleep(2 * RENEW_S + 2)
            (call,) = second.end.calls
            assert call.attempt == 1  # the delivery that was cut off spent none
            assert (await second.stats()).acked == 1
            await second.publish(b"y")
            await asyncio.sleep(300)
            assert (len(first.end.calls), len(second.end.calls)) == (1, 2)
            monkeypatch.undo()

    run_virtually(main)


def test_changes_through_one_are_followed_by_the_one_that_delivers(seen_from: SeenFrom) -> None:
    async def main(clock: LoopClock) -> None:
        store = new_store(clock)
        async with (
            started(seen_from(store), clock) as first,
            started(seen_from(store.for_another()), clock) as second,
        ):
            webhook = await first.webhooks.create(INSIDE, ORDERS, URL)
            await asyncio.sleep(0.1)
            assert second.webhooks.list(INSIDE, ORDERS) == [webhook]
            changed = await second.webhooks.change(INSIDE, webhook.id, url=OTHER_URL)
            await asyncio.sleep(0.1)
            assert first.webhooks.get(INSIDE, webhook.id) == changed
            await first.publish(b"x")
            await asyncio.sleep(1)
            assert (len(first.end.calls), len(second.end.calls)) == (1, 0)
            await second.webhooks.change(INSIDE, webhook.id, enabled=False)
            await asyncio.sleep(0.1)
            await first.publish(b"y")
            await asyncio.sleep(100)
            assert (len(first.end.calls), len(second.end.calls)) == (1, 0)
            await second.webhooks.delete(INSIDE, webhook.id)
            await asyncio.sleep(0.1)
            with pytest.raises(NoSuchWebhook):
                first.webhooks.get(INSIDE, webhook.id)
            assert list((await first.stats()).groups) == ["main"]

    run_virtually(main)


def test_changes_of_two_brokers_at_the_same_time_are_both_kept(seen_from: SeenFrom) -> None:
    async def main(clock: LoopClock) -> None:
        store = new_store(clock)
        async with (
            started(seen_from(store), clock) as first,
            started(seen_from(store.for_another()), clock) as second,
        ):
            made = await asyncio.gather(
                *(
                    one.webhooks.create(INSIDE, ORDERS, URL)
                    for one in (first, second, first, second)
                )
            )
            await asyncio.sleep(0.1)
            for one in (first, second):
                assert {w.id for w in one.webhooks.list(INSIDE, ORDERS)} == {w.id for w in made}
            await first.publish(b"x")
            await asyncio.sleep(1)
            assert len(first.end.calls) + len(second.end.calls) == 4

    run_virtually(main)


def test_the_other_shows_the_log_and_says_that_it_does_not_know_the_circuit(
    seen_from: SeenFrom,
) -> None:
    async def main(clock: LoopClock) -> None:
        store = new_store(clock)
        async with (
            started(seen_from(store), clock) as first,
            started(seen_from(store.for_another()), clock) as second,
        ):
            first.end.otherwise = DOWN
            webhook = await first.webhooks.create(INSIDE, ORDERS, URL, retry_s=[1])
            await first.publish(b"x")
            await asyncio.sleep(20)
            assert first.webhooks.circuit(webhook.id) is Circuit.OPEN
            assert second.webhooks.circuit(webhook.id) is Circuit.UNKNOWN
            for one in (first, second):
                page = await one.webhooks.deliveries(INSIDE, webhook.id)
                assert [delivery.number for delivery in page.deliveries] == [5, 4, 3, 2, 1]

    run_virtually(main)


def test_a_webhook_goes_with_its_queue_whichever_broker_deletes_it(seen_from: SeenFrom) -> None:
    async def main(clock: LoopClock) -> None:
        store = new_store(clock)
        async with (
            started(seen_from(store), clock) as first,
            started(seen_from(store.for_another()), clock) as second,
        ):
            await first.webhooks.create(INSIDE, ORDERS, URL)
            await asyncio.sleep(0.1)
            await second.broker.delete_queue(INSIDE, ORDERS)
            await asyncio.sleep(0.1)
            await first.publish(b"x")  # creates it anew
            await asyncio.sleep(2 * LOCK_S)
            assert first.webhooks.list(INSIDE, ORDERS) == []
            assert (first.end.calls, second.end.calls) == ([], [])

    run_virtually(main)
