"""Subscriptions: which queue is pushed to which URL, and how they are stored."""

import logging
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from penstock.broker.store import Store, update_document
from penstock.errors import CorruptLedger, PenstockError, QuotaExceeded, Unavailable
from penstock.model import MAIN_GROUP_NAME, NS
from penstock.names import QueueName

OVERLAP_S = 24 * 3600.0  # how long the old secret signs as well after a rotation
MAX_SECRETS = 3
MAX_SUBSCRIPTIONS = 1000
DOCUMENT = "webhooks.json"
_VERSION = 1

log = logging.getLogger("penstock.webhooks")


def warn(event: str, webhook: str, reason: object) -> None:
    """Log an event of a webhook that an operator may want to look into."""
    log.warning(event, extra={"fields": {"webhook": webhook, "reason": str(reason)}})


class Style(StrEnum):
    """The format of deliveries, and the meaning of an endpoint's answers."""

    STANDARD = "standard"  # Standard Webhooks
    EPOCHQUEUE = "epochqueue"


class Secret(NamedTuple):
    """A key that signs deliveries."""

    value: str
    until_ns: int = 0  # when it expires; 0: the current secret


class Subscription(NamedTuple):
    """A queue whose messages are pushed to a URL. Immutable: a change makes a new value."""

    id: str
    queue: QueueName
    url: str
    style: Style
    group: str
    owns_group: bool  # created for this subscription, and deleted with it
    secrets: tuple[Secret, ...]  # the current one first; empty: unsigned (EpochQueue only)
    retry_s: tuple[float, ...]  # the waits after the first, second … failure; the last one repeats
    created_at_ns: int
    enabled: bool = True
    disabled_because: str = ""

    @property
    def holder(self) -> str:
        """Return the holder name of its leases."""
        return f"webhook:{self.id}"

    def secrets_at(self, now_ns: int) -> list[str]:
        """Return the secrets to sign with, the current one first."""
        return [one.value for one in self.secrets if not one.until_ns or one.until_ns > now_ns]

    def with_secret(self, value: str, now_ns: int) -> "Subscription":
        """Return a copy with a new current secret. The old one signs as well for a day."""
        if self.secrets and self.secrets[0].value == value:
            return self
        until_ns = now_ns + round(OVERLAP_S * NS)
        old = [
            Secret(one.value, one.until_ns or until_ns)
            for one in self.secrets
            if one.until_ns == 0 or one.until_ns > now_ns
        ]
        return self._replace(secrets=(Secret(value), *old[: MAX_SECRETS - 1]))


def dump(subscriptions: Sequence[Subscription]) -> bytes:
    """Return the document that stores all subscriptions."""
    stored = [
        {
            **one._asdict(),
            "queue": list(one.queue),
            "secrets": [list(secret) for secret in one.secrets],
        }
        for one in subscriptions
    ]
    return msgspec.json.encode({"version": _VERSION, "webhooks": stored})


def load(document: bytes) -> list[Subscription]:
    """Return the subscriptions of a document that `dump` wrote."""
    return [_load_one(one) for one in msgspec.json.decode(document)["webhooks"]]


def _load_one(stored: dict[str, Any]) -> Subscription:
    known = {name: stored[name] for name in Subscription._fields if name in stored}
    return Subscription(
        **{
            **known,
            "queue": QueueName.checked(*stored["queue"]),
            "style": Style(stored["style"]),
            "group": stored.get("group", MAIN_GROUP_NAME),
            "secrets": tuple(Secret(*one) for one in stored["secrets"]),
            "retry_s": tuple(stored["retry_s"]),
        }
    )


class Register:
    """All subscriptions by id, as the store has them. Other brokers change them as well.

    If the document cannot be read, there are no subscriptions and changes are refused, so that
    the document is not overwritten before someone repairs it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_id: dict[str, Subscription] = {}
        self._is_loaded = False
        self._damage = ""

    async def load(self) -> None:
        """Read the document. Damage is logged, and refuses changes later."""
        document = await self._store.load_document(DOCUMENT)
        try:
            self._by_id, self._damage = _by_id(document), ""
        except CorruptLedger as error:
            self._by_id, self._damage = {}, str(error)
            log.error("webhooks unreadable", extra={"fields": {"reason": self._damage}})
        self._is_loaded = True

    def check(self) -> None:
        """Raise an error if the subscriptions cannot be changed now."""
        if not self._is_loaded:
            raise Unavailable("the webhooks are not read yet: try again in a moment")
        if self._damage:
            raise CorruptLedger(self._damage)

    @property
    def is_used(self) -> bool:
        return bool(self._by_id or self._damage)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_id.values())

    def get(self, id: str) -> Subscription | None:
        return self._by_id.get(id)

    async def add(self, subscription: Subscription) -> None:
        """Raise QuotaExceeded if there are too many."""

        def add(by_id: dict[str, Subscription]) -> None:
            if len(by_id) >= MAX_SUBSCRIPTIONS:
                raise QuotaExceeded(f"there are {MAX_SUBSCRIPTIONS} webhooks: delete some first")
            by_id[subscription.id] = subscription

        await self._change(add)

    async def replace(self, id: str, change: Callable[[Subscription], Subscription]) -> None:
        """Change a subscription. Do nothing if it was deleted in the meantime."""

        def replace(by_id: dict[str, Subscription]) -> None:
            if id in by_id:
                by_id[id] = change(by_id[id])

        await self._change(replace)

    async def remove(self, id: str) -> None:
        await self._change(lambda by_id: by_id.pop(id, None))

    async def _change(self, change: Callable[[dict[str, Subscription]], object]) -> None:
        """Change what the store has now. The change is stored before it is visible here."""
        self.check()
        by_id: dict[str, Subscription] = {}

        def changed(document: bytes | None) -> bytes:
            nonlocal by_id
            by_id = _by_id(document)
            change(by_id)
            return dump(list(by_id.values()))

        await update_document(self._store, DOCUMENT, changed)
        self._by_id = by_id


def _by_id(document: bytes | None) -> dict[str, Subscription]:
    try:
        return {one.id: one for one in load(document)} if document else {}
    except (ValueError, TypeError, KeyError, AttributeError, PenstockError) as error:
        raise CorruptLedger(
            f"the broker's document {DOCUMENT} cannot be read ({type(error).__name__}: {error}): "
            f"repair it, or move it away to start without webhooks, and restart"
        ) from None
