"""A bad call makes no queue: what is refused changes nothing. Nor does one that only looks."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.access import Caller
from penstock.broker.broker import Broker
from penstock.errors import (
    InvalidInput,
    NoSuchGroup,
    NoSuchQueue,
    PayloadTooLarge,
    PenstockError,
    QuotaExceeded,
)
from penstock.model import NewMessage
from penstock.names import QueueName
from tests.broker.conftest import OpenBroker

ANN = Caller("ann")
NEW = QueueName("shop", "new")

BAD: dict[str, tuple[type[PenstockError], Callable[[Broker], Any]]] = {
    "priority": (
        InvalidInput,
        lambda broker: broker.publish(ANN, NEW, [b"good", NewMessage(payload=b"x", priority=10)]),
    ),
    "no messages": (InvalidInput, lambda broker: broker.publish(ANN, NEW, [])),
    "size": (PayloadTooLarge, lambda broker: broker.publish(ANN, NEW, [b"x" * 2000])),
    "lease_s": (InvalidInput, lambda broker: broker.lease(ANN, NEW, lease_s=1e308)),
    "n": (InvalidInput, lambda broker: broker.lease(ANN, NEW, n=0)),
    "group": (NoSuchGroup, lambda broker: broker.lease(ANN, NEW, group="none", wait_s=5)),
    "quota": (
        QuotaExceeded,
        lambda broker: broker.publish(ANN, QueueName("full", "new"), [b"x"]),
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_first_use_that_is_refused_makes_no_queue(
    open_broker: OpenBroker, case: str
) -> None:
    error, call = BAD[case]
    async with open_broker(queues={"max_payload_bytes": 1024}) as broker:
        await broker.namespaces.create(ANN, "full", max_bytes=1)
        await broker.publish(ANN, QueueName("full", "old"), [b"x"])
        before = broker.queues(ANN), broker.namespaces.list(ANN)
        with pytest.raises(error):
            await call(broker)
        assert (broker.queues(ANN), broker.namespaces.list(ANN)) == before


async def test_the_settings_of_the_namespace_decide_what_is_bad(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await broker.namespaces.create(ANN, "shop", defaults={"max_payload_bytes": 10})
        with pytest.raises(PayloadTooLarge):
            await broker.publish(ANN, NEW, [b"x" * 11])
        assert broker.queues(ANN) == []
        await broker.publish(ANN, NEW, [b"x" * 10])


async def test_a_lease_that_does_not_wait_finds_nothing_and_makes_no_queue(
    open_broker: OpenBroker,
) -> None:
    async with open_broker() as broker:
        assert await broker.lease(ANN, NEW) == []
        assert broker.queues(ANN) == []
        assert broker.namespaces.list(ANN) == []
    async with open_broker(create_on_use=False) as broker:
        with pytest.raises(NoSuchQueue):
            await broker.lease(ANN, NEW)
