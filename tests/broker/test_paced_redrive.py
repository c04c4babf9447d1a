"""Redriving at a limited rate, on a virtual clock."""

import asyncio
from typing import Any

import pytest

from penstock.broker.access import Caller
from penstock.broker.broker import Broker
from penstock.broker.store import Settlement, save_document
from penstock.errors import (
    CorruptLedger,
    DiskFull,
    InvalidInput,
    LedgerError,
    NoSuchQueue,
    NoSuchRedrive,
    Overloaded,
)
from penstock.names import QueueName
from penstock.operations import CreateGroup, DeleteGroup, Discard, GetStats, Redrive
from tests.broker.conftest import OpenBroker
from tests.broker.test_several_brokers import two_brokers
from tests.harness.virtual_loop import LoopClock

ANN = Caller("ann")
QUEUE = QueueName("shop", "orders")


async def kill(broker: Broker, count: int) -> list[str]:
    published = await broker.publish(ANN, QUEUE, [b"x"] * count)
    leased = await broker.lease(ANN, QUEUE, n=count)
    await broker.settle(ANN, [Settlement("nack", one.receipt, dead=True) for one in leased])
    return [one.id for one in published]


async def ready(broker: Broker) -> int:
    return (await broker.run(ANN, GetStats(), QUEUE)).ready


async def test_no_more_than_so_many_a_second_are_ready_again(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await kill(broker, 50)
        assert await broker.redrives.start(ANN, QUEUE, Redrive(), 10) == 50
        for second in range(1, 5):
            await asyncio.sleep(1)
            assert 10 * second <= await ready(broker) <= 10 * second + 1
        await asyncio.sleep(2)
        assert await ready(broker) == 50


@pytest.mark.parametrize("rate", [2, 25])
async def test_those_named_are_redriven_but_for_what_is_dead_no_more(
    open_broker: OpenBroker, rate: float
) -> None:
    async with open_broker() as broker:
        ids = await kill(broker, 9)
        assert await broker.redrives.start(ANN, QUEUE, Redrive(ids[:6]), rate) == 6
        await broker.run(ANN, Discard(ids=ids[4:5]), QUEUE)
        await asyncio.sleep(60)
        stats = await broker.run(ANN, GetStats(), QUEUE)
        assert (stats.ready, stats.dead, stats.redriven) == (5, 3, 5)


async def test_a_dry_run_and_a_bad_rate_change_nothing(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await kill(broker, 3)
        assert await broker.run(ANN, Redrive(dry_run=True), QUEUE) == 3
        for rate in (-1, 0, 1e10, float("nan")):
            with pytest.raises(InvalidInput):
                await broker.redrives.start(ANN, QUEUE, Redrive(), rate)
        await asyncio.sleep(10)
        assert await ready(broker) == 0


async def test_a_deleted_queue_ends_it(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await kill(broker, 10)
        await broker.redrives.start(ANN, QUEUE, Redrive(), 1)
        await broker.delete_queue(ANN, QUEUE)
        await asyncio.sleep(20)
        with pytest.raises(NoSuchQueue):
            await broker.run(ANN, GetStats(), QUEUE)
        assert await broker.store.load_document("redrives.json") is None


@pytest.mark.parametrize("named", [False, True])
async def test_a_restart_goes_on_with_it_and_redrives_none_that_died_since(
    open_broker: OpenBroker, named: bool
) -> None:
    async with open_broker() as broker:
        ids = await kill(broker, 10)
        await broker.redrives.start(ANN, QUEUE, Redrive(ids if named else None), 1)
        await asyncio.sleep(3)
        (again,) = await broker.lease(ANN, QUEUE)
        await broker.settle(ANN, [Settlement("nack", again.receipt, dead=True)])
    async with open_broker() as broker:
        await asyncio.sleep(2)
        assert 4 <= await ready(broker) <= 6
        await asyncio.sleep(20)
        stats = await broker.run(ANN, GetStats(), QUEUE)
        assert (stats.ready, stats.dead, stats.redriven) == (9, 1, 10)
        assert await broker.store.load_document("redrives.json") is None


async def test_a_limit_holds_over_a_restart(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await kill(broker, 10)
        assert await broker.redrives.start(ANN, QUEUE, Redrive(limit=6), 1) == 6
        await asyncio.sleep(3.5)
    async with open_broker() as broker:
        await asyncio.sleep(20)
        stats = await broker.run(ANN, GetStats(), QUEUE)
        assert (stats.ready, stats.dead) == (6, 4)


@pytest.mark.parametrize(
    "damaged",
    [
        b"{",
        b'["\xff"]',
        b'[{"id": "1", "queue": ["shop", "orders"], "rate_per_s": 1, "redrive": {"nope": 1}}]',
        b'[{"id": "1", "queue": ["../", "orders"], "rate_per_s": 1, "redrive": {}}]',
        b'[{"id": "1", "queue": ["shop", "orders"], "rate_per_s": 0, "redrive": {}}]',
    ],
)
async def test_a_damaged_document_refuses_new_redrives_and_is_not_overwritten(
    open_broker: OpenBroker, damaged: bytes
) -> None:
    async with open_broker() as broker:
        await kill(broker, 3)
        await broker.redrives.start(ANN, QUEUE, Redrive(), 1)
        await asyncio.sleep(0.5)
        await save_document(broker.store, "redrives.json", damaged)
        await asyncio.sleep(20)  # the end of the running redrive changes nothing either
        assert await ready(broker) == 3
        assert await broker.store.load_document("redrives.json") == damaged
        await kill(broker, 1)
    async with open_broker() as broker:
        with pytest.raises(CorruptLedger, match=r"redrives\.json cannot be read"):
            await broker.redrives.start(ANN, QUEUE, Redrive(), 1)
        await asyncio.sleep(20)
        assert await ready(broker) == 3
        assert await broker.store.load_document("redrives.json") == damaged
        await save_document(broker.store, "redrives.json", None)  # as if moved away
        assert await broker.redrives.start(ANN, QUEUE, Redrive(), 1) == 1
        await asyncio.sleep(20)
        assert await ready(broker) == 4


@pytest.mark.parametrize("limit", [None, 8])
@pytest.mark.parametrize(
    "error",
    [DiskFull("no room"), Overloaded("too much"), LedgerError("no answer"), OSError(5, "io")],
)
async def test_an_error_that_passes_is_retried_and_shown_meanwhile(
    open_broker: OpenBroker,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    limit: int | None,
) -> None:
    async with open_broker() as broker:
        await kill(broker, 8)
        await broker.redrives.start(ANN, QUEUE, Redrive(limit=limit), 1)
        await asyncio.sleep(2.5)
        run, failures = broker.store.run, [0]

        def fail(queue: QueueName, operation: Any) -> Any:
            if isinstance(operation, Redrive):
                failures[0] += 1
                raise error
            return run(queue, operation)

        monkeypatch.setattr(broker.store, "run", fail)
        await asyncio.sleep(1000)
        assert 15 <= failures[0] <= 25  # with backoff
        (shown,) = await broker.redrives.list(ANN, QUEUE)
        assert (shown.state, shown.reason) == ("retrying", str(error))
        monkeypatch.undo()
        await asyncio.sleep(61)
        assert await ready(broker) == 8
        assert await broker.redrives.list(ANN, QUEUE) == []
        assert await broker.store.load_document("redrives.json") is None


async def test_an_error_is_shown_while_the_document_cannot_be_written_and_gone_after_success(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker() as broker:
        await kill(broker, 20)
        await broker.redrives.start(ANN, QUEUE, Redrive(limit=20), 1)
        await asyncio.sleep(2.5)

        def full(*_: object) -> object:
            raise DiskFull("no room")

        monkeypatch.setattr(broker.store, "replace_document", full)
        await asyncio.sleep(10)
        (shown,) = await broker.redrives.list(ANN, QUEUE)
        assert (shown.state, shown.reason) == ("retrying", "no room")
        monkeypatch.undo()
        await asyncio.sleep(12)
        (shown,) = await broker.redrives.list(ANN, QUEUE)
        assert (shown.state, shown.reason) == ("running", "")
        await asyncio.sleep(30)
        assert await ready(broker) == 20


async def test_a_redrive_that_failed_is_shown_until_it_is_cancelled(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        await broker.run(ANN, CreateGroup("mails"), QUEUE)
        await broker.publish(ANN, QUEUE, [b"x"] * 5)
        leased = await broker.lease(ANN, QUEUE, n=5, group="mails")
        await broker.settle(ANN, [Settlement("nack", one.receipt, dead=True) for one in leased])
        await broker.redrives.start(ANN, QUEUE, Redrive(group="mails"), 1)
        await asyncio.sleep(1.5)
        await broker.run(ANN, DeleteGroup("mails"), QUEUE)
        await asyncio.sleep(60)
        (before,) = await broker.redrives.list(ANN, QUEUE)
        assert (before.state, before.group) == ("failed", "mails")
        assert "mails" in before.reason
    async with open_broker() as broker:
        await asyncio.sleep(60)
        assert await broker.redrives.list(ANN, QUEUE) == [before]
        other = QueueName("shop", "other")
        with pytest.raises(NoSuchQueue):
            await broker.redrives.cancel(ANN, other, before.id)
        await broker.redrives.cancel(ANN, QUEUE, before.id)
        with pytest.raises(NoSuchRedrive):
            await broker.redrives.cancel(ANN, QUEUE, before.id)
        assert await broker.redrives.list(ANN, QUEUE) == []
        assert await broker.store.load_document("redrives.json") is None
        with pytest.raises(NoSuchQueue):
            await broker.redrives.list(ANN, other)


@pytest.mark.parametrize("limit", [None, 50])
async def test_a_cancelled_redrive_stops_whichever_broker_runs_it(
    clock: LoopClock, limit: int | None
) -> None:
    async with two_brokers(clock) as (first, second):
        await kill(first, 50)
        await first.redrives.start(ANN, QUEUE, Redrive(limit=limit), 1)
        await asyncio.sleep(5)
        (running,) = await second.redrives.list(ANN, QUEUE)
        assert (running.state, running.rate_per_s, running.reason) == ("running", 1, "")
        await second.redrives.cancel(ANN, QUEUE, running.id)
        await asyncio.sleep(100)
        assert 5 <= await ready(second) <= 7
        assert await first.redrives.list(ANN, QUEUE) == []


async def test_one_broker_runs_it_and_another_goes_on_when_the_first_is_gone(
    clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_brokers(clock) as (first, second):
        await kill(first, 100)
        assert await first.redrives.start(ANN, QUEUE, Redrive(), 1) == 100
        for passed in (10, 20):  # not twice as fast
            await asyncio.sleep(10)
            assert passed <= await ready(second) <= passed + 1

        def fail(*_: object) -> object:
            raise LedgerError("no connection to the store")

        for name in ("acquire_lock", "release_lock", "load_document", "replace_document"):
            monkeypatch.setattr(first.store, name, fail)
        await asyncio.sleep(60)
        assert 60 <= await ready(second) <= 81  # with a pause until the lock ended
        await asyncio.sleep(60)
        assert await ready(second) == 100
        monkeypatch.undo()


async def test_a_stopped_broker_hands_it_over(clock: LoopClock) -> None:
    async with two_brokers(clock) as (first, second):
        await kill(first, 20)
        await first.redrives.start(ANN, QUEUE, Redrive(), 1)
        await asyncio.sleep(2)
        await first.stop()
        await asyncio.sleep(35)
        assert await ready(second) == 20
