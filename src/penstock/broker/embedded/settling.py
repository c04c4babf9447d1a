"""Settling several receipts of one queue, each by itself."""

from collections.abc import Callable, Sequence

from penstock.broker.store import Outcome, Settlement
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.queue.parts import as_new
from penstock.queue.settling import Settling


def settle_each(settling: Settling, settlements: Sequence[Settlement]) -> list[Outcome]:
    """The outcomes in the same order. One that is no good does not keep the others back."""
    verdict = settlements[0].verdict if settlements else "ack"
    if verdict in ("ack", "release") and all(
        one.verdict == verdict and not one.emit for one in settlements
    ):
        settle_all = settling.ack if verdict == "ack" else settling.release
        if _together(settle_all, settlements):
            return [Outcome(one.receipt, "done") for one in settlements]
    return [_settle(settling, one) for one in settlements]


def _together(settle_all: Callable[[list[str]], object], settlements: Sequence[Settlement]) -> bool:
    """All in one event, which is what they mostly are good for; False if one is not."""
    try:
        settle_all([one.receipt for one in settlements])
    except (ReceiptInvalid, InvalidInput):
        return False
    return True


def _settle(settling: Settling, one: Settlement) -> Outcome:
    receipt = one.receipt
    try:
        if one.verdict == "ack":
            return Outcome(receipt, "done", ids=settling.ack([receipt], as_new(one.emit)))
        if one.verdict == "nack":
            settling.nack([receipt], one.reason, one.delay_s, final=one.dead)
        elif one.verdict == "extend":
            settling.extend([receipt], one.lease_s)
        else:
            settling.release([receipt])
    except ReceiptInvalid as error:
        return Outcome(receipt, "gone", str(error))
    except InvalidInput as error:
        return Outcome(receipt, "invalid", str(error))
    return Outcome(receipt, "done")
