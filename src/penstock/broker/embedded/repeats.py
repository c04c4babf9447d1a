"""Acks that were answered not long ago, so that repeating one is answered well.

A client whose connection broke does not know whether its ack arrived, and sends it again. The
message is done by then, and nothing of it is in memory; only this says that the receipt was good.
"""

from collections import OrderedDict
from collections.abc import Iterable

_KEPT = 100_000


class Repeats:
    """The latest acked receipts; bounded, and gone with the process."""

    def __init__(self, most: int = _KEPT) -> None:
        self._most = most
        self._acked: OrderedDict[str, None] = OrderedDict()

    def acked(self, receipts: Iterable[str]) -> None:
        self._acked.update(dict.fromkeys(receipts))
        while len(self._acked) > self._most:
            self._acked.popitem(last=False)

    def __contains__(self, receipt: str) -> bool:
        return receipt in self._acked
