"""Many leases that end together do not block the event loop."""

from threading import current_thread, main_thread
from typing import Any

import pytest

from penstock.broker import Caller, QueueName
from penstock.broker.embedded.open_queue import MOST_DUE_IN_LOOP
from penstock.queue.decisions import decide_due
from tests.broker.conftest import OpenBroker

ON_DISK = True
ANN = Caller("ip:ann")
ORDERS = QueueName("shop", "orders")
QUEUES = {"sync": "never", "backoff_base_s": 0}


@pytest.mark.parametrize("per_lease", [1, MOST_DUE_IN_LOOP + 500])
async def test_many_leases_that_end_together_are_expired_in_a_thread(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch, per_lease: int
) -> None:
    in_loop, in_threads = [0], [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        events = decide_due(*arguments, **options)
        (in_loop if current_thread() is main_thread() else in_threads).append(len(events))
        return events

    monkeypatch.setattr("penstock.queue.core.decide_due", counted)
    most = MOST_DUE_IN_LOOP + 500
    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [b"x"] * most)
        for _ in range(most // per_lease):
            await broker.lease(ANN, ORDERS, n=per_lease, lease_s=10)
        waiting = broker.lease(ANN, ORDERS, n=1, wait_s=60)
        (again,) = await waiting
        assert (again.attempt, sum(in_threads), sum(in_loop)) == (2, most, 0)


async def test_few_leases_that_end_together_are_expired_in_the_loop(
    open_broker: OpenBroker,
) -> None:
    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [b"x"] * 10)
        await broker.lease(ANN, ORDERS, n=10, lease_s=10)
        (again,) = await broker.lease(ANN, ORDERS, n=1, wait_s=60)
        assert again.attempt == 2
