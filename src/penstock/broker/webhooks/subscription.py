"""A subscription: which queue is pushed to which URL, and how. And how it is stored."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from penstock.model import MAIN_GROUP_NAME, NS
from penstock.names import QueueName

OVERLAP_S = 24 * 3600.0  # how long the old secret signs as well after a rotation
_MOST_SECRETS = 3
_VERSION = 1


class Style(StrEnum):
    """What deliveries look like, and what an endpoint's answers mean."""

    STANDARD = "standard"  # Standard Webhooks
    EPOCHQUEUE = "epochqueue"


class Secret(NamedTuple):
    """A key that deliveries are signed with, until some time."""

    value: str
    until_ns: int = 0  # 0: it is the current one


class Subscription(NamedTuple):
    """A queue whose messages are pushed to a URL. It never changes; a change makes another."""

    id: str
    queue: QueueName
    url: str
    style: Style
    group: str
    owns_group: bool  # made for this subscription, and deleted with it
    secrets: tuple[Secret, ...]  # the current one first; none: unsigned (EpochQueue only)
    retry_s: tuple[float, ...]  # the waits after the first, second … failure; the last one repeats
    created_at_ns: int
    enabled: bool = True
    disabled_because: str = ""

    @property
    def holder(self) -> str:
        """The name under which its messages are leased."""
        return f"webhook:{self.id}"

    def secrets_at(self, now_ns: int) -> list[str]:
        """Those to sign with, the current one first."""
        return [one.value for one in self.secrets if not one.until_ns or one.until_ns > now_ns]

    def with_secret(self, value: str, now_ns: int) -> "Subscription":
        """Another current secret; what was current signs as well for a day."""
        if self.secrets and self.secrets[0].value == value:
            return self
        until_ns = now_ns + round(OVERLAP_S * NS)
        old = [
            Secret(one.value, one.until_ns or until_ns)
            for one in self.secrets
            if one.until_ns == 0 or one.until_ns > now_ns
        ]
        return self._replace(secrets=(Secret(value), *old[: _MOST_SECRETS - 1]))


def dump(subscriptions: Sequence[Subscription]) -> bytes:
    """All of them, as the document that is stored."""
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
    """What `dump` wrote."""
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
