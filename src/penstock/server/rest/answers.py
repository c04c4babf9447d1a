"""What answers of the native interface say. Times are RFC 3339 in UTC."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType


class PublishedMessage(Struct, omit_defaults=True):
    """The id of a message. `duplicate`: of an earlier one with the same dedup id."""

    id: str
    duplicate: bool = False


class PublishedMessages(Struct):
    """The ids of a batch, in its order."""

    messages: list[PublishedMessage]


class MessageFields(Struct, omit_defaults=True, kw_only=True):
    """A message as it was published. Its payload is `payload` where its content type is
    application/json, else `payload_b64`."""

    id: str
    seq: int
    priority: int
    published_at: str
    deliver_at: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    headers: Mapping[str, str] | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET
    payload_b64: str | UnsetType = UNSET


class Leased(MessageFields, omit_defaults=True, kw_only=True):
    """A message handed to one holder until `deadline`. The receipt settles it."""

    receipt: str
    attempt: int
    deadline: str


class LeasedMessages(Struct):
    """What was leased; empty if nothing was ready in time."""

    messages: list[Leased]


class SettledOne(Struct, omit_defaults=True):
    """What became of one receipt. `repeated`: this ack was taken before, which is fine."""

    receipt: str
    status: Literal["done", "repeated", "gone", "invalid"]
    detail: str = ""
    ids: list[str] = []


class Settled(Struct):
    """The outcome of each receipt: the acks first, then nacks, extends and releases."""

    results: list[SettledOne]


class NamespaceAnswer(Struct):
    """A namespace."""

    name: str
    created_at: str
    defaults: Mapping[str, Any]
    max_queues: int
    max_bytes: int


class NamespaceList(Struct, omit_defaults=True):
    """A page of namespaces, by name; `cursor` asks for the next."""

    namespaces: list[NamespaceAnswer]
    cursor: str | UnsetType = UNSET


class QueueItem(Struct, omit_defaults=True):
    """A queue of a listing, with its counts if they were asked for."""

    namespace: str
    name: str
    stats: Mapping[str, Any] | UnsetType = UNSET


class QueueList(Struct, omit_defaults=True):
    """A page of queues, by name; `cursor` asks for the next."""

    queues: list[QueueItem]
    cursor: str | UnsetType = UNSET


class QueueAnswer(Struct, omit_defaults=True):
    """A queue, all its settings, and (where it was asked for alone) its counts."""

    namespace: str
    name: str
    created_at: str
    settings: Mapping[str, Any]
    stats: Mapping[str, Any] | UnsetType = UNSET


class Listed(MessageFields, omit_defaults=True, kw_only=True):
    """A message of a listing, and its state in the group."""

    state: str
    attempts: int


class MessageList(Struct, omit_defaults=True):
    """A page of messages. `exhausted`: the search budget ended it; the next page may have more."""

    messages: list[Listed]
    looked_at: int
    exhausted: bool = False
    cursor: str | UnsetType = UNSET


class Dead(MessageFields, omit_defaults=True, kw_only=True):
    """A dead letter."""

    attempts: int
    reason: str
    cause: str
    first_failure_at: str
    last_failure_at: str


class DeadList(Struct, omit_defaults=True):
    """A page of dead letters, oldest death first; `cursor` asks for the next."""

    messages: list[Dead]
    cursor: str | UnsetType = UNSET


class HistoryItem(Struct, omit_defaults=True):
    """One thing that happened to a message."""

    event: str
    at: str
    group: str | None = None
    attempt: int = 0
    reason: str = ""
    holder: str = ""
    retry_at: str | UnsetType = UNSET
    event_seq: int = 0


class History(Struct, omit_defaults=True):
    """What happened to a message, in order; `cursor` asks for the next page."""

    id: str
    events: list[HistoryItem]
    cursor: str | UnsetType = UNSET


class GroupAnswer(Struct, omit_defaults=True):
    """A consumer group and (where it was asked for) its counts."""

    name: str
    stats: Mapping[str, Any] | UnsetType = UNSET


class SoughtTo(Struct):
    """The seq that is delivered next."""

    next_seq: int


class Redriven(Struct):
    """How many dead letters are ready again, or would be (`dry_run`), or will be (`max_rate`)."""

    redriven: int


class RateLimit(Struct):
    """The token bucket of a queue's publishes. `refill_per_s` 0: no limit."""

    capacity: float
    refill_per_s: float
