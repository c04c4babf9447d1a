"""Settle receipts of several queues in one call. Outcomes are in the order of the receipts."""

import asyncio
from asyncio import Future
from collections.abc import Sequence

from penstock.broker.access import Caller
from penstock.broker.catalogue import Catalogue
from penstock.broker.store import Outcome, Settlement, Store
from penstock.codec import parse_id
from penstock.errors import NoSuchQueue, PenstockError, ReceiptInvalid
from penstock.model import Receipt
from penstock.names import QueueName
from penstock.operations import Verb

_BATCH = 200  # receipts; other requests run between two batches
_SORTED = 1000  # receipts whose queues are found before other requests run
_NO_QUEUE = "the queue of the receipt does not exist"


def settle_by_queue(
    store: Store, catalogue: Catalogue, caller: Caller, settlements: Sequence[Settlement]
) -> Future[list[Outcome]]:
    """Settle each receipt. Raise NotAllowed, and settle none, if the caller may not consume one."""
    outcomes: list[Outcome | None] = [None] * len(settlements)
    by_queue: dict[QueueName, list[int]] = {}
    unknown: dict[int, list[int]] = {}  # by identity

    def sort(start: int) -> None:
        """Find the queues of one batch of receipts."""
        for index in range(start, min(start + _SORTED, len(settlements))):
            receipt = settlements[index].receipt
            try:
                identity = Receipt.unpack(receipt).identity
            except ReceiptInvalid as error:
                outcomes[index] = Outcome(receipt, "invalid", str(error))
                continue
            queue = catalogue.queue_of(identity)
            if queue is None:
                unknown.setdefault(identity, []).append(index)
            else:
                by_queue.setdefault(queue, []).append(index)

    sort(0)
    for queue in by_queue:
        caller.check(Verb.CONSUME, queue.namespace)
    if len(by_queue) == 1 and not unknown:
        ((queue, indexes),) = by_queue.items()
        if len(indexes) == len(settlements) <= _BATCH:
            return store.settle(queue, settlements)

    async def settle_all() -> list[Outcome]:
        for start in range(_SORTED, len(settlements), _SORTED):
            await asyncio.sleep(0)
            sort(start)
        for known in by_queue:
            caller.check(Verb.CONSUME, known.namespace)
        for count, (identity, indexes) in enumerate(unknown.items()):
            if count % _BATCH == 0:
                await asyncio.sleep(0)
            queue = await store.find(identity)  # of a queue that another broker just created
            if queue is None:
                for index in indexes:
                    outcomes[index] = Outcome(settlements[index].receipt, "gone", _NO_QUEUE)
            else:
                caller.check(Verb.CONSUME, queue.namespace)
                by_queue.setdefault(queue, []).extend(indexes)
        return await _settle_all(store, settlements, by_queue, outcomes)

    return asyncio.ensure_future(settle_all())


async def _settle_all(
    store: Store,
    settlements: Sequence[Settlement],
    by_queue: dict[QueueName, list[int]],
    outcomes: list[Outcome | None],
) -> list[Outcome]:
    async def settle(queue: QueueName, indexes: list[int]) -> None:
        running: list[tuple[list[int], Future[list[Outcome]]]] = []
        try:
            for at in range(0, len(indexes), _BATCH):
                batch = indexes[at : at + _BATCH]
                running.append(
                    (batch, store.settle(queue, [settlements[index] for index in batch]))
                )
                await asyncio.sleep(0)
        finally:
            found = await asyncio.gather(*(one for _, one in running), return_exceptions=True)
        for (batch, _), result in zip(running, found, strict=True):
            if isinstance(result, NoSuchQueue):  # deleted meanwhile
                result = [Outcome(settlements[i].receipt, "gone", _NO_QUEUE) for i in batch]
            elif isinstance(result, BaseException):
                raise result
            for index, outcome in zip(batch, result, strict=True):
                outcomes[index] = outcome

    await asyncio.gather(*(settle(queue, indexes) for queue, indexes in by_queue.items()))
    return [outcome for outcome in outcomes if outcome is not None]


def is_receipt_of(receipt: str, id: str) -> bool:
    """Return whether this is a receipt of the message, valid or not.

    >>> is_receipt_of("not a receipt", "01HF7YAT00000000G0000000G1")
    False
    """
    try:
        found = Receipt.unpack(receipt)
        _, identity, seq = parse_id(id)
    except (PenstockError, ValueError):
        return False
    return (found.identity, found.seq) == (identity, seq)
