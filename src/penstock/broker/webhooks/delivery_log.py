"""Keep a log of the latest deliveries of each subscription.

The logs are kept in memory and saved every few seconds: a crash may lose the last entries, never a
message. Each log is one small document that is replaced as a whole. A document that cannot be read
is copied to another name before it is replaced.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.store import Documents, save_document
from penstock.broker.webhooks.outcome import Outcome
from penstock.broker.webhooks.subscription import warn
from penstock.errors import PenstockError

SAVE_AFTER_S = 5.0
MAX_ANSWERS = 1000  # deliveries that are kept with the answer of the endpoint
_MAX_REASON = 500  # characters


class Delivery(NamedTuple):
    """One attempt to push one message."""

    number: int  # counts the deliveries of the subscription, from 1
    message_id: str
    attempt: int
    at_ns: int
    took_s: float
    outcome: Outcome
    status: int  # of the answer; 0: no answer
    reason: str = ""
    retry_in_s: float | None = None
    answer: str = ""  # the beginning of what the endpoint answered
    is_resent: bool = False  # by hand: the message itself is not affected


class DeliveryCounts(NamedTuple):
    """How the deliveries of a subscription went, without those that were sent by hand."""

    delivered: int  # this and the next: since it was made
    failed: int
    recent: int  # deliveries in the log
    success_rate: float | None  # of these; None: there are none
    last_delivered_ns: int  # 0: not in the log
    last_failed_ns: int
    p50_s: float  # how long the endpoint took to answer
    p95_s: float


class DeliveryPage(NamedTuple):
    """A page of a delivery log, latest first."""

    deliveries: Sequence[Delivery]
    next_cursor: int  # 0: this was the last page
    damaged_log: str = ""  # the document that has the earlier log, which cannot be read


class _Stored(msgspec.Struct, omit_defaults=True):
    """The document of a log."""

    number: int
    deliveries: list[Delivery]
    damaged_log: str = ""
    delivered: int = 0
    failed: int = 0


class DeliveryLog:
    """The latest deliveries of one subscription."""

    def __init__(self, max_deliveries: int, document: bytes | None = None) -> None:
        """Raise msgspec.DecodeError for a document that cannot be read."""
        self.changed = False
        self.damaged: bytes | None = None  # a document to set aside before this log is saved
        self.damaged_log = ""
        self._latest: deque[Delivery] = deque(maxlen=max_deliveries)
        self._number = 0
        self._delivered = self._failed = 0
        if document is not None:
            stored = msgspec.json.decode(document, type=_Stored)
            self._number, self.damaged_log = stored.number, stored.damaged_log
            self._delivered, self._failed = stored.delivered, stored.failed
            self._latest.extend(stored.deliveries)

    def add(
        self,
        message_id: str,
        attempt: int,
        *,
        at_ns: int,
        took_s: float,
        outcome: Outcome,
        status: int,
        reason: str,
        retry_in_s: float | None,
        answer: str = "",
        is_resent: bool = False,
    ) -> Delivery:
        self._number += 1
        made = Delivery(
            self._number,
            message_id,
            attempt,
            at_ns,
            round(took_s, 6),
            outcome,
            status,
            reason[:_MAX_REASON],
            retry_in_s,
            answer,
            is_resent,
        )
        self._latest.append(made)
        if len(self._latest) > MAX_ANSWERS:
            old = self._latest[-MAX_ANSWERS - 1]
            self._latest[-MAX_ANSWERS - 1] = old._replace(answer="")
        if not is_resent:
            self._delivered += outcome == "delivered"
            self._failed += outcome != "delivered"
        self.changed = True
        return made

    def get(self, number: int) -> Delivery | None:
        """Return a delivery by its number, if the log still has it."""
        return next((one for one in self._latest if one.number == number), None)

    def counts(self) -> DeliveryCounts:
        """Return how the deliveries went."""
        own = [one for one in self._latest if not one.is_resent]
        good = [one for one in own if one.outcome == "delivered"]
        bad = [one for one in own if one.outcome != "delivered"]
        took_s = sorted(one.took_s for one in own)
        return DeliveryCounts(
            self._delivered,
            self._failed,
            len(own),
            len(good) / len(own) if own else None,
            max((one.at_ns for one in good), default=0),
            max((one.at_ns for one in bad), default=0),
            took_s[len(took_s) // 2] if own else 0.0,
            took_s[min(len(took_s) * 95 // 100, len(took_s) - 1)] if own else 0.0,
        )

    def page(self, before: int, limit: int) -> DeliveryPage:
        """Return deliveries with a lower number than `before`; 0 starts with the latest."""
        found = [one for one in reversed(self._latest) if not before or one.number < before]
        page = found[:limit]
        next_cursor = page[-1].number if len(found) > limit else 0
        return DeliveryPage(page, next_cursor, self.damaged_log)

    def dump(self) -> bytes:
        """Return the document to store."""
        stored = _Stored(
            self._number, list(self._latest), self.damaged_log, self._delivered, self._failed
        )
        return msgspec.json.encode(stored)


class DeliveryLogs:
    """The delivery logs of all subscriptions. Changed logs are saved together, after a delay."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._logs: dict[str, DeliveryLog] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None

    def of(self, id: str) -> DeliveryLog:
        """Return the log of a subscription that this broker delivers."""
        found = self._logs.get(id)
        if found is None:
            found = self._logs[id] = DeliveryLog(self._broker.settings.webhook_log)
        return found

    async def read(self, id: str) -> DeliveryLog:
        """Return the log of any subscription; of one that another broker delivers, as it saved it.

        A log that cannot be read is empty, and names the document.
        """
        found = self._logs.get(id)
        if found is not None:
            return found
        document = await self._broker.store.load_document(_document(id))
        try:
            return DeliveryLog(self._broker.settings.webhook_log, document)
        except msgspec.DecodeError as error:  # or ValidationError, which is one
            warn("webhook log unreadable", id, f"{_document(id)}: {error}")
            empty = DeliveryLog(self._broker.settings.webhook_log)
            empty.damaged, empty.damaged_log = document, _document(id)
            return empty

    async def take(self, id: str) -> None:
        """Load the log of a subscription that this broker delivers from now on."""
        self._logs[id] = found = await self.read(id)
        if found.damaged is not None:
            found.changed = True
            self.save_soon()

    def drop(self, id: str) -> None:
        """Forget the log of a subscription that another broker delivers, or that was deleted."""
        self._logs.pop(id, None)

    def save_soon(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(SAVE_AFTER_S, self._start_saving)

    async def save(self) -> None:
        """Save the logs that changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for webhook, one in list(self._logs.items()):
            if one.changed:
                one.changed = False
                try:
                    await self._save(webhook, one)
                except (PenstockError, OSError) as error:
                    one.changed = True
                    warn("webhook log not saved", webhook, error)

    async def _save(self, webhook: str, log: DeliveryLog) -> None:
        store = self._broker.store
        if log.damaged is not None:
            log.damaged_log = await _set_aside(store, _document(webhook), log.damaged)
            log.damaged = None
            warn("webhook log set aside", webhook, f"it cannot be read: {log.damaged_log}")
        await save_document(store, _document(webhook), log.dump())

    async def delete(self, id: str) -> None:
        self.drop(id)
        await save_document(self._broker.store, _document(id), None)

    def _start_saving(self) -> None:
        self._timer = None
        self._saving = asyncio.get_running_loop().create_task(self.save())


async def _set_aside(store: Documents, name: str, damaged: bytes) -> str:
    """Keep a damaged document under a free name. Return that name."""
    for number in count(1):
        kept = f"{name}.damaged-{number}"
        found = await store.load_document(kept)
        if found == damaged or (
            found is None and await store.replace_document(kept, None, damaged)
        ):
            break
    return kept


def _document(id: str) -> str:
    return f"webhook-log-{id.removeprefix('wh-')}.json"
