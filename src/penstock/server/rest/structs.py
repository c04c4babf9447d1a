"""Requests and answers of the native interface. Unknown fields of a request are refused.

The OpenAPI document is generated from these structs. Fields that end in `_s` are seconds; a time is
RFC 3339 text or milliseconds since 1970.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock.names import PATTERN
from penstock.operations import STATES

Time = str | int | float
Receipt = Annotated[str, Meta(min_length=1, max_length=128)]
MessageId = Annotated[str, Meta(min_length=26, max_length=26)]
# Checked by `names`: a `$` of Python's regular expressions would let a line feed through.
Name = Annotated[str, Meta(extra_json_schema={"pattern": f"^{PATTERN}$"})]
GroupName = Name
State = Annotated[str, Meta(extra_json_schema={"enum": list(STATES)})]


def _as(struct: str) -> Meta:
    """Describe an object as a struct, though it is read or sent as a mapping."""
    return Meta(extra_json_schema={"$ref": f"#/components/schemas/{struct}"})


# See `catalogue` for the structs.
SettingsChanges = Annotated[Mapping[str, Any], _as("QueueSettingsBody")]
SettingsAnswer = Annotated[Mapping[str, Any], _as("QueueSettings")]
StatsAnswer = Annotated[Mapping[str, Any], _as("QueueStats")]
GroupStatsAnswer = Annotated[Mapping[str, Any], _as("GroupStats")]

MOST_LEASED = 10_000
MOST_SETTLED = 10_000


class NewMessageBody(Struct, forbid_unknown_fields=True):
    """A message to publish: `payload` (any JSON) or `payload_b64` (bytes, base64), and options."""

    payload: Raw | UnsetType = UNSET
    payload_b64: str | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    delay_s: Annotated[float, Meta(ge=0)] | None = None
    deliver_at: Time | None = None
    ttl_s: Annotated[float, Meta(ge=0)] | None = None
    headers: dict[str, str] | None = None
    key: str | None = None
    dedup_id: str | None = None
    dedup_window_s: Annotated[float, Meta(gt=0)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=65535)] | None = None
    content_type: str | None = None
    compression: Literal["none", "gzip", "zstd"] | None = None
    # Ids, and indexes of earlier items of the batch.
    after: Annotated[list[str | int], Meta(max_length=10_000)] | None = None
    after_failed: Literal["dead", "run"] | None = None
    tenant: str | None = None


class PlainMessageBody(Struct, forbid_unknown_fields=True):
    """A message without options but perhaps a content type. Tried first, because it is faster."""

    payload: Raw
    content_type: str | None = None


class LeaseBody(Struct, forbid_unknown_fields=True):
    """The number of messages, the duration of the lease, and the wait for the first message."""

    max: Annotated[int, Meta(ge=1, le=MOST_LEASED)] = 1
    lease_s: Annotated[float, Meta(gt=0)] | None = None
    wait_s: Annotated[float, Meta(ge=0)] = 0.0
    group: Name = "main"
    holder: Annotated[str, Meta(max_length=256)] = ""
    dead: bool = False  # dead letters instead: an ack settles them, anything else leaves them dead


class AckItem(Struct, forbid_unknown_fields=True):
    """An ack that publishes messages to the same queue, in the same write."""

    receipt: Receipt
    emit: list[NewMessageBody] = []


class NackItem(Struct, forbid_unknown_fields=True):
    """A failure: `delay_s` instead of the queue's backoff, or `dead` at once."""

    receipt: Receipt
    reason: Annotated[str, Meta(max_length=4096)] = ""
    delay_s: Annotated[float, Meta(ge=0)] | None = None
    dead: bool = False


class ExtendItem(Struct, forbid_unknown_fields=True):
    """An extension: the lease ends `lease_s` from now; by default, the queue's `lease_s`.

    `progress` and `note` say how far the work is.
    """

    receipt: Receipt
    lease_s: Annotated[float, Meta(gt=0)] | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    note: Annotated[str, Meta(max_length=4096)] = ""


class ReleaseItem(Struct, forbid_unknown_fields=True):
    """A released message: ready again at once, and the attempt does not count."""

    receipt: Receipt


class SettleBody(Struct, forbid_unknown_fields=True):
    """Settlements of leased messages. In each list, a receipt is text, or an object with options.
    `release` does not count the attempt."""

    ack: list[Receipt | AckItem] = []
    nack: list[Receipt | NackItem] = []
    extend: list[Receipt | ExtendItem] = []
    release: list[Receipt | ReleaseItem] = []


class NamespaceBody(Struct, forbid_unknown_fields=True):
    """A new namespace. `defaults` are the settings of its new queues; 0: no quota."""

    name: Name
    defaults: SettingsChanges = {}
    max_queues: Annotated[int, Meta(ge=0)] = 0
    max_bytes: Annotated[int, Meta(ge=0)] = 0


class NamespaceChanges(Struct, forbid_unknown_fields=True):
    """Changes of a namespace. Other settings and existing queues are not changed."""

    defaults: SettingsChanges | UnsetType = UNSET
    max_queues: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    max_bytes: Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class PositionBody(Struct, forbid_unknown_fields=True):
    """A position in a queue: exactly one of the fields."""

    seq: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    id: MessageId | None = None
    time: Time | None = None


class SeekBody(Struct, forbid_unknown_fields=True):
    """The position from which a group continues."""

    to: Literal["beginning", "end"] | PositionBody
    group: Name = "main"


class GroupBody(Struct, forbid_unknown_fields=True):
    """The position from which a new group starts; by default the queue's beginning."""

    at: Literal["beginning", "end"] | PositionBody = "beginning"


class RateLimitBody(Struct, forbid_unknown_fields=True):
    """A token bucket for publishes. `refill_per_s` 0: no limit."""

    refill_per_s: Annotated[float, Meta(ge=0, le=1e9)]
    capacity: Annotated[float, Meta(ge=0, le=1e9)] = 0.0


# -- answers: times are RFC 3339 in UTC ------------------------------------------------------------


class PublishedMessage(Struct, omit_defaults=True):
    """The id of a message. `duplicate`: of an earlier one with the same dedup id."""

    id: str
    duplicate: bool = False


class PublishedMessages(Struct):
    """The ids of a batch, in its order."""

    messages: list[PublishedMessage]


class MessageFields(Struct, omit_defaults=True, kw_only=True):
    """A message as it was published. Its payload is `payload` if its content type is
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
    """A message leased to one holder until `deadline`. The receipt settles it."""

    receipt: str
    attempt: int
    deadline: str


class LeasedMessages(Struct):
    """The leased messages; none if none was ready in time."""

    messages: list[Leased]


class SettledOne(Struct, omit_defaults=True):
    """The outcome of one receipt. `repeated`: the message was acked before, which is no error."""

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
    defaults: SettingsChanges
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
    stats: StatsAnswer | UnsetType = UNSET


class QueueList(Struct, omit_defaults=True):
    """A page of queues, by name; `cursor` asks for the next."""

    queues: list[QueueItem]
    cursor: str | UnsetType = UNSET


class QueueAnswer(Struct, omit_defaults=True):
    """A queue, all its settings, and (where it was asked for alone) its counts."""

    namespace: str
    name: str
    created_at: str
    settings: SettingsAnswer
    stats: StatsAnswer | UnsetType = UNSET


class Listed(MessageFields, omit_defaults=True, kw_only=True):
    """A message of a listing, and its state in the group."""

    state: State
    attempts: int


class MessageList(Struct, omit_defaults=True):
    """A page of messages. `exhausted`: the search budget ended it; the next page may have more."""

    messages: list[Listed]
    looked_at: int
    exhausted: bool = False
    cursor: str | UnsetType = UNSET
    progress: float | UnsetType = UNSET


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
    """An event in the history of a message."""

    event: str
    at: str
    group: str | UnsetType = UNSET
    attempt: int = 0
    reason: str = ""
    holder: str = ""
    retry_at: str | UnsetType = UNSET
    event_seq: int = 0


class History(Struct, omit_defaults=True):
    """The history of a message, in order; `cursor` asks for the next page."""

    id: str
    events: list[HistoryItem]
    cursor: str | UnsetType = UNSET


class GroupAnswer(Struct, omit_defaults=True):
    """A consumer group and (where it was asked for) its counts."""

    name: str
    stats: GroupStatsAnswer | UnsetType = UNSET


class SoughtTo(Struct):
    """The seq that is delivered next."""

    next_seq: int


class Redriven(Struct):
    """The number of dead letters made ready now, later (`max_rate`), or if run (`dry_run`)."""

    redriven: int


class RedriveAnswer(Struct, omit_defaults=True):
    """A paced redrive that is not finished."""

    id: str
    group: str
    max_rate: float
    state: Literal["running", "retrying", "failed"]
    reason: str | UnsetType = UNSET


class RedriveList(Struct):
    """The paced redrives of a queue that are not finished."""

    redrives: list[RedriveAnswer]


class RedriveCancelled(Struct):
    """A paced redrive was cancelled."""

    cancelled: bool


class RateLimit(Struct):
    """The token bucket of a queue's publishes. `refill_per_s` 0: no limit."""

    capacity: float
    refill_per_s: float
