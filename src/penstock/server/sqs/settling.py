"""DeleteMessage and ChangeMessageVisibility, and their batches."""

from collections.abc import Callable

from penstock.broker import Outcome, QueueName, Settlement
from penstock.broker.access import INSIDE
from penstock.errors import ReceiptInvalid
from penstock.model import Receipt
from penstock.operations import LeaseMessage
from penstock.server.replies import Reply
from penstock.server.sqs import bodies
from penstock.server.sqs.attributes import MAX_VISIBILITY_S
from penstock.server.sqs.batches import batch_answer, check_entries, failed
from penstock.server.sqs.errors import SqsError, invalid_value
from penstock.server.sqs.names import is_fifo
from penstock.server.sqs.request import Request

SettlementOf = Callable[[Request, QueueName, bodies.Handle], Settlement]
_MADE_VISIBLE = "made visible (SQS)"  # the reason that the history of a message shows


async def delete_message(request: Request, body: bodies.DeleteMessage) -> Reply:
    return await _settle(request, body, _delete)


async def change_message_visibility(
    request: Request, body: bodies.ChangeMessageVisibility
) -> Reply:
    return await _settle(request, body, _change_visibility)


async def delete_message_batch(request: Request, body: bodies.DeleteMessageBatch) -> Reply:
    return await _settle_batch(request, body, _delete)


async def change_message_visibility_batch(
    request: Request, body: bodies.ChangeMessageVisibilityBatch
) -> Reply:
    return await _settle_batch(request, body, _change_visibility)


async def _settle(
    request: Request,
    body: bodies.DeleteMessage | bodies.ChangeMessageVisibility,
    settlement_of: SettlementOf,
) -> Reply:
    queue = await request.queue(body.QueueUrl)
    settlement = settlement_of(request, queue, body)
    (outcome,) = await request.broker.settle(request.caller, [settlement])
    await _check(request, queue, settlement, outcome)
    return request.reply({})


async def _settle_batch(
    request: Request,
    body: bodies.DeleteMessageBatch | bodies.ChangeMessageVisibilityBatch,
    settlement_of: SettlementOf,
) -> Reply:
    """Settle each entry by itself."""
    queue = await request.queue(body.QueueUrl)
    check_entries(f"{type(body).__name__}RequestEntry", body.Entries)
    settlements: list[tuple[str, Settlement]] = []
    good, bad = [], []
    for entry in body.Entries:
        try:
            settlements.append((entry.Id, settlement_of(request, queue, entry)))
        except SqsError as error:
            bad.append(failed(entry.Id, error))
    if settlements:
        outcomes = await request.broker.settle(request.caller, [one for _, one in settlements])
        for (id_, settlement), outcome in zip(settlements, outcomes, strict=True):
            try:
                await _check(request, queue, settlement, outcome)
                good.append({"Id": id_})
            except SqsError as error:
                bad.append(failed(id_, error))
    return request.reply(batch_answer(good, bad))


# -- from a request to a settlement ----------------------------------------------------------------


def _delete(request: Request, queue: QueueName, entry: bodies.Handle) -> Settlement:
    _check_handle(request, queue, entry.ReceiptHandle)
    return Settlement("ack", entry.ReceiptHandle)


def _change_visibility(request: Request, queue: QueueName, entry: bodies.Handle) -> Settlement:
    """Return a longer or shorter lease. 0 ends the delivery: the message is ready at once."""
    assert isinstance(entry, bodies.Visibility)
    seconds = entry.VisibilityTimeout
    if not 0 <= seconds <= MAX_VISIBILITY_S:
        raise invalid_value(
            "VisibilityTimeout", seconds, f"VisibilityTimeout must be 0 to {MAX_VISIBILITY_S}."
        )
    _check_handle(request, queue, entry.ReceiptHandle)
    if not seconds:
        return Settlement("nack", entry.ReceiptHandle, reason=_MADE_VISIBLE, delay_s=0.0)
    return Settlement("extend", entry.ReceiptHandle, lease_s=float(seconds))


def _check_handle(request: Request, queue: QueueName, handle: str) -> None:
    """Raise ReceiptHandleIsInvalid for what is no receipt, or one of another queue.

    A dead-letter queue has receipts of its source queues.
    """
    try:
        Receipt.unpack(handle)
    except ReceiptInvalid:
        raise _not_a_handle(handle) from None
    found = request.broker.queue_of_receipt(handle)
    if found is None or (found != queue and found not in request.records.sources(queue)):
        raise _not_a_handle(handle)


def _not_a_handle(handle: str) -> SqsError:
    return SqsError(
        "ReceiptHandleIsInvalid", f'The input receipt handle "{handle[:100]}" is not valid.'
    )


async def _check(
    request: Request, queue: QueueName, settlement: Settlement, outcome: Outcome
) -> None:
    """Raise the error for a delivery that is over.

    To delete what was delivered again is no error in a standard queue, and has no effect.
    """
    if outcome.ok:
        return
    if outcome.status == "invalid":
        raise _not_a_handle(outcome.receipt)
    if settlement.verdict != "ack":
        raise SqsError("MessageNotInflight", f"The message is not in flight: {outcome.detail}.")
    if not await _deleted_late(request, outcome.receipt) and is_fifo(queue):
        raise invalid_value(
            "ReceiptHandle", outcome.receipt, f"The receipt handle has expired: {outcome.detail}."
        )


async def _deleted_late(request: Request, handle: str) -> bool:
    """Delete a message that its last receiver made visible, and that was not received since.

    It is leased first, so that no other consumer has it.
    """
    broker, receipt = request.broker, Receipt.unpack(handle)
    leased = await broker.run(INSIDE, LeaseMessage(receipt.seq), broker.queue_of_receipt(handle))
    if not leased:
        return False  # it was deleted before, or is in flight
    if leased[0].attempt != receipt.attempt + 1:
        broker.give_back(leased)
        return False
    (outcome,) = await broker.settle(INSIDE, [Settlement("ack", leased[0].receipt)])
    return outcome.ok
