"""Settle several receipts of one queue, each by itself."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from penstock.broker.embedded.acked_lately import Acked
from penstock.broker.store import Outcome, Settlement
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.model import Receipt
from penstock.queue.behaviours import Behaviours, as_new

_KEPT = 100_000


class Repeats:
    """The latest acked receipts: bounded, in memory.

    A client whose connection broke does not know whether its ack arrived, and repeats it. Nothing
    of the message is in memory then; only this shows that the receipt was good.
    """

    def __init__(self, most: int = _KEPT) -> None:
        self._most = most
        self._acked: OrderedDict[str, None] = OrderedDict()
        # Of earlier processes, by queue, group and seq.
        self._earlier: OrderedDict[tuple[int, int, int], Acked] = OrderedDict()

    def acked_before(self, identity: int, acked: Mapping[tuple[int, int], Acked]) -> None:
        """Note acks that are in the log of a queue that was opened; see `acked_lately`."""
        for (group, seq), one in acked.items():
            self._earlier[identity, group, seq] = one
        while len(self._earlier) > self._most:
            self._earlier.popitem(last=False)

    def acked(self, receipts: Iterable[str]) -> None:
        for receipt in receipts:
            self._acked[receipt] = None
        while len(self._acked) > self._most:
            self._acked.popitem(last=False)

    def acked_one(self, receipt: str) -> None:
        self._acked[receipt] = None
        if len(self._acked) > self._most:
            self._acked.popitem(last=False)

    def forget(self) -> None:
        """Forget all: a sync failed, and some of these acks did not happen."""
        self._acked.clear()
        self._earlier.clear()

    def __contains__(self, receipt: str) -> bool:
        if receipt in self._acked:
            return True
        identity, group, attempt, seq, nonce = Receipt.unpack(receipt)
        found = self._earlier.get((identity, group, seq))
        return found is not None and found.attempt == attempt and found.nonce in (None, nonce)


def settle_each(
    queue: Behaviours, repeats: Repeats, settlements: Sequence[Settlement]
) -> list[Outcome]:
    """Return the outcomes in the same order. A bad receipt does not affect the others."""
    if len(settlements) == 1:
        (one,) = settlements
        receipt = one.receipt
        if one.verdict == "ack" and not one.emit and _ack_one(queue, receipt):
            repeats.acked((receipt,))
            return [Outcome(receipt, "done")]
        return [_settle(queue, repeats, one)]
    if settlements and _are_alike(settlements) and _settle_together(queue, settlements):
        if settlements[0].verdict == "ack":
            repeats.acked([one.receipt for one in settlements])
        return [Outcome(one.receipt, "done") for one in settlements]
    return [_settle(queue, repeats, one) for one in settlements]


def _are_alike(settlements: Sequence[Settlement]) -> bool:
    """Return whether they differ only in their receipts, and none emits messages."""
    verdict, _, *rest = settlements[0]
    return not settlements[0].emit and all(
        one[0] == verdict and [*one[2:]] == rest for one in settlements
    )


def _settle_together(queue: Behaviours, settlements: Sequence[Settlement]) -> bool:
    """Settle all in one write. Return False, and settle none, if one of them is not good."""
    one, settling = settlements[0], queue.settling
    receipts = [each.receipt for each in settlements]
    try:
        if one.verdict == "ack":
            settling.ack(receipts)
        elif one.verdict == "release":
            settling.release(receipts)
        elif one.verdict == "nack":
            settling.nack(receipts, one.reason, one.delay_s, final=one.dead)
        else:
            _extend(queue, receipts, one)
    except (ReceiptInvalid, InvalidInput):
        return False
    return True


def _extend(queue: Behaviours, receipts: Sequence[str], one: Settlement) -> None:
    lease_s = one.lease_s or queue.core.settings.lease_s
    queue.settling.extend(receipts, lease_s, progress=one.progress, note=one.note)


def _ack_one(queue: Behaviours, receipt: str) -> bool:
    """Ack by the fast path. Return False if that does not apply."""
    try:
        return queue.fast_path.ack_receipt(*Receipt.unpack(receipt))
    except ReceiptInvalid:
        return False


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
            _extend(queue, [receipt], one)
        else:
            settling.release([receipt])
    except ReceiptInvalid as error:
        if one.verdict == "ack" and receipt in repeats:
            return Outcome(receipt, "repeated", "acked before")
        return Outcome(receipt, "gone", str(error))
    except InvalidInput as error:
        return Outcome(receipt, "invalid", str(error))
    return Outcome(receipt, "done")
