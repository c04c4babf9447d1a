"""What became of the latest deliveries of each subscription.

Kept in memory and written down now and then: a crash may take the last few seconds of it, never a
message. A log is one small document, replaced whole.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.broker.webhooks.judging import Fate

_LONGEST_REASON = 500


class Delivery(NamedTuple):
    """One attempt to push one message."""

    number: int  # of this subscription's, from 1
    message_id: str
    attempt: int
    at_ns: int
    took_s: float
    outcome: Fate
    status: int  # of the answer; 0: there was none
    reason: str = ""
    retry_in_s: float | None = None


class DeliveryPage(NamedTuple):
    """A page of a delivery log, latest first."""

    deliveries: Sequence[Delivery]
    next_cursor: int  # 0: this was the last


class DeliveryLog:
    """The latest deliveries of one subscription."""

    def __init__(self, most: int, document: bytes | None = None) -> None:
        self.changed = False
        self._latest: deque[Delivery] = deque(maxlen=most)
        self._number = 0
        if document:
            stored = msgspec.json.decode(document)
            self._number = stored["number"]
            self._latest.extend(Delivery(*one) for one in stored["deliveries"])

    def add(
        self,
        message_id: str,
        attempt: int,
        *,
        at_ns: int,
        took_s: float,
        outcome: Fate,
        status: int,
        reason: str,
        retry_in_s: float | None,
    ) -> None:
        self._number += 1
        self._latest.append(
            Delivery(
                self._number,
                message_id,
                attempt,
                at_ns,
                round(took_s, 6),
                outcome,
                status,
                reason[:_LONGEST_REASON],
                retry_in_s,
            )
        )
        self.changed = True

    def page(self, before: int, limit: int) -> DeliveryPage:
        """Those before a number (0: from the latest), latest first."""
        found = [one for one in reversed(self._latest) if not before or one.number < before]
        page = found[:limit]
        return DeliveryPage(page, page[-1].number if len(found) > limit else 0)

    def dump(self) -> bytes:
        """The document that is stored."""
        self.changed = False
        return msgspec.json.encode({"number": self._number, "deliveries": list(self._latest)})
