"""Settling receipts of any queues in one call: each goes to its queue, the outcomes come back in
the order of the call."""

import asyncio
from asyncio import Future
from collections.abc import Sequence

from penstock.broker.access import Caller, Verb
from penstock.broker.names import QueueName
from penstock.broker.store import Outcome, Settlement, Store
from penstock.errors import NoSuchQueue, ReceiptInvalid
from penstock.model import Receipt

_NOBODYS = "the receipt is of no queue that is here"


def settle_by_queue(
    store: Store, caller: Caller, settlements: Sequence[Settlement]
) -> Future[list[Outcome]]:
    """Settle each; NotAllowed, before anything is settled, if one is of a foreign namespace."""
    outcomes: list[Outcome | None] = [None] * len(settlements)
    by_queue: dict[QueueName, list[int]] = {}
    for index, settlement in enumerate(settlements):
        try:
            identity = Receipt.unpack(settlement.receipt).identity
        except ReceiptInvalid as error:
            outcomes[index] = Outcome(settlement.receipt, "invalid", str(error))
            continue
        queue = store.queue_of(identity)
        if queue is None:
            outcomes[index] = Outcome(settlement.receipt, "gone", _NOBODYS)
        else:
            by_queue.setdefault(queue, []).append(index)
    for queue in by_queue:
        caller.check(Verb.CONSUME, queue.namespace)
    if len(by_queue) == 1:
        ((queue, indexes),) = by_queue.items()
        if len(indexes) == len(settlements):
            return store.settle(queue, settlements)
    return asyncio.ensure_future(_settle_all(store, settlements, by_queue, outcomes))


async def _settle_all(
    store: Store,
    settlements: Sequence[Settlement],
    by_queue: dict[QueueName, list[int]],
    outcomes: list[Outcome | None],
) -> list[Outcome]:
    async def settle(queue: QueueName, indexes: list[int]) -> None:
        lot = [settlements[index] for index in indexes]
        try:
            found = await store.settle(queue, lot)
        except NoSuchQueue:  # deleted meanwhile
            found = [Outcome(one.receipt, "gone", _NOBODYS) for one in lot]
        for index, outcome in zip(indexes, found, strict=True):
            outcomes[index] = outcome

    await asyncio.gather(*(settle(queue, indexes) for queue, indexes in by_queue.items()))
    return [outcome for outcome in outcomes if outcome is not None]
