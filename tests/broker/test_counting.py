"""Every series is counted where the thing happens: a life in which everything does."""

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.broker.access import INSIDE, Caller
from penstock.broker.broker import Broker
from penstock.broker.store import Settlement
from penstock.errors import (
    InvalidInput,
    NotAllowed,
    PenstockError,
    QueueFull,
    QuotaExceeded,
    TooManyRequests,
)
from penstock.model import LeasedMessage, NewMessage
from penstock.names import QueueName
from penstock.operations import Cancel, Pause, Redrive
from tests.broker.conftest import OpenBroker, in_this_process

ANN = Caller("ann")
BEN = Caller("ben")
NOBODY = Caller("nobody", verbs=frozenset())
QUEUE = QueueName("shop", "orders")
SETTINGS: dict[str, Any] = {
    "max_attempts": 2,
    "backoff_base_s": 0,
    "max_messages": 7,
    "dedup_entries": 1,
}

OF_THE_QUEUE = {
    "published_total": 10,
    "deduplicated_total": 1,
    "dedup_evicted_total": 1,
    "dedup_entries": 1,
    "segments": 2,
    "damaged": 0,
    "paused": 1,
}
OF_THE_GROUP = {
    "delivered_total": 7,
    "acked_total": 2,
    "nacked_total": 1,
    "timed_out_total": 1,
    "dead_lettered_total": 2,
    "redriven_total": 1,
    "discarded_total": 0,
    "expired_total": 1,
    "cancelled_total": 1,
    "ready": 1,
    "scheduled": 1,
    "in_flight": 1,
    "parked": 1,
    "blocked": 1,
    "dead": 1,
    "retrying": 0,
    "read_position": 9,
    "oldest_ready_age_seconds": 3,
}


async def live(broker: Broker) -> None:
    """Messages are named by what happens to them."""

    async def publish(*new: NewMessage) -> list[str]:
        return [one.id for one in await broker.publish(ANN, QUEUE, list(new))]

    async def lease() -> LeasedMessage:
        (leased,) = await broker.lease(ANN, QUEUE, lease_s=10)
        return leased

    async def settle(verdict: Any, leased: LeasedMessage) -> None:
        await broker.settle(ANN, [Settlement(verdict, leased.receipt)])

    await publish(NewMessage(payload=b"acked", dedup_id="a"))
    await publish(NewMessage(payload=b"a duplicate", dedup_id="a"))
    await settle("ack", await lease())
    await publish(NewMessage(payload=b"fails twice", dedup_id="b"))
    await settle("nack", await lease())
    await settle("nack", await lease())
    await broker.run(ANN, Redrive(), QUEUE)
    await lease()
    await asyncio.sleep(11)  # it times out
    await settle("ack", await lease())
    await publish(NewMessage(payload=b"dead", max_attempts=1))
    await settle("nack", await lease())
    await publish(NewMessage(payload=b"expired", ttl=1))
    await asyncio.sleep(2)
    assert not await broker.lease(ANN, QUEUE)
    (cancelled,) = await publish(NewMessage(payload=b"cancelled"))
    await broker.run(ANN, Cancel(cancelled))
    await publish(
        NewMessage(payload=b"leased", key="k", priority=9), NewMessage(payload=b"parked", key="k")
    )
    await lease()
    await publish(
        NewMessage(payload=b"scheduled", delay=100),
        NewMessage(payload=b"ready"),
        NewMessage(payload=b"blocked", after=[1]),
    )
    await asyncio.sleep(3)
    await broker.run(ANN, Pause(), QUEUE)


async def page(broker: Broker) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    text = (await broker.survey.metrics_page()).decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("penstock_")
            found.setdefault(name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@in_this_process
async def test_every_series_of_a_queue_is_counted(open_broker: OpenBroker) -> None:
    async with open_broker(queues=SETTINGS) as broker:
        await live(broker)
        found = await page(broker)
    of_queue = (("namespace", "shop"), ("queue", "orders"))
    of_group = (("group", "main"), *of_queue)
    assert {name: found[name][of_queue] for name in OF_THE_QUEUE} == OF_THE_QUEUE
    assert {name: found[name][of_group] for name in OF_THE_GROUP} == OF_THE_GROUP
    sizes = {"message_log_bytes", "event_log_bytes"}
    assert all(found[name][of_queue] > 500 for name in sizes)
    named = {*OF_THE_QUEUE, *OF_THE_GROUP, *sizes}
    assert {
        name for name, values in found.items() if of_queue in values or of_group in values
    } == named


async def test_every_refusal_is_counted_by_its_cause(open_broker: OpenBroker) -> None:
    async with open_broker(client_rate_per_s=0.001, client_burst=3.0, queues=SETTINGS) as broker:
        await broker.namespaces.create(INSIDE, "tiny", max_bytes=1)
        calls: list[tuple[str, type[PenstockError], Caller, QueueName, list[Any]]] = [
            ("not_allowed", NotAllowed, NOBODY, QUEUE, [b"x"]),
            ("queue_full", QueueFull, ANN, QUEUE, [b"x"] * 9),
            ("invalid", InvalidInput, ANN, QUEUE, [NewMessage(payload=b"x", priority=99)]),
            ("client_rate", TooManyRequests, ANN, QUEUE, [b"x"]),
            ("quota", QuotaExceeded, BEN, QueueName("tiny", "orders"), [b"x"]),
        ]
        await broker.publish(ANN, QUEUE, [b"x"])
        await broker.publish(BEN, QueueName("tiny", "orders"), [b"x"])
        for _, error, caller, queue, messages in calls:
            with pytest.raises(error):
                await broker.publish(caller, queue, messages)
        found = (await page(broker))["rejected_total"]
    assert found == {(("cause", cause),): 1.0 for cause, *_ in calls}
