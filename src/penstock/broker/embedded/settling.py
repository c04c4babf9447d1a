"""Settling several receipts of one queue, each by itself."""

from collections.abc import Callable, Sequence

from penstock.broker.embedded.repeats import Repeats
from penstock.broker.store import Outcome, Settlement
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.model import Receipt
from penstock.queue.behaviours import Behaviours, as_new


def settle_each(
    queue: Behaviours, repeats: Repeats, settlements: Sequence[Settlement]
) -> list[Outcome]:
    """The outcomes in the same order. One that is no good does not keep the others back."""
    verdict = settlements[0].verdict if settlements else "ack"
    if verdict in ("ack", "release") and all(
        one.verdict == verdict and not one.emit for one in settlements
    ):
        if verdict == "release":
            together = _together(queue.settling.release, settlements)
        elif len(settlements) == 1:
            together = _ack_one(queue, settlements[0].receipt)
        else:
            together = _together(queue.settling.ack, settlements)
        if together:
            if verdict == "ack":
                repeats.acked(one.receipt for one in settlements)
            return [Outcome(one.receipt, "done") for one in settlements]
    return [_settle(queue, repeats, one) for one in settlements]


def _ack_one(queue: Behaviours, receipt: str) -> bool:
    """By the short way, which is enough for nearly all; False if it is not."""
    try:
        return queue.fast_path.ack_receipt(*Receipt.unpack(receipt))
    except ReceiptInvalid:
        return False


def _together(settle_all: Callable[[list[str]], object], settlements: Sequence[Settlement]) -> bool:
    """All in one event, which is what they mostly are good for; False if one is not."""
    try:
        settle_all([one.receipt for one in settlements])
    except (ReceiptInvalid, InvalidInput):
        return False
    return True


def _settle(queue: Behaviours, repeats: Repeats, one: Settlement) -> Outcome:
    receipt, settling = one.receipt, queue.settling
    try:
        if one.verdict == "ack":
            ids = settling.ack([receipt], as_new(one.emit))
            repeats.acked([receipt])
            return Outcome(receipt, "done", ids=ids)
        if one.verdict == "nack":
            settling.nack([receipt], one.reason, one.delay_s, final=one.dead)
        elif one.verdict == "extend":
            settling.extend([receipt], one.lease_s or queue.core.settings.lease_s)
        else:
            settling.release([receipt])
    except ReceiptInvalid as error:
        if one.verdict == "ack" and receipt in repeats:
            return Outcome(receipt, "repeated", "acked before")
        return Outcome(receipt, "gone", str(error))
    except InvalidInput as error:
        return Outcome(receipt, "invalid", str(error))
    return Outcome(receipt, "done")
