"""What requests of the native interface may say. A field that is not here is refused.

The OpenAPI document is generated from these and from `answers`. Units: `_s` is seconds; a time is
RFC 3339 text or milliseconds since 1970.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock.names import PATTERN

Time = str | int | float
Receipt = Annotated[str, Meta(min_length=1, max_length=128)]
MessageId = Annotated[str, Meta(min_length=26, max_length=26)]
# Checked by `names`: a `$` of Python's regular expressions would let a line feed through.
Name = Annotated[str, Meta(extra_json_schema={"pattern": f"^{PATTERN}$"})]
GroupName = Name

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


class PlainMessageBody(Struct, forbid_unknown_fields=True):
    """Most messages: no options but perhaps a content type. Read first, as it is quicker to."""

    payload: Raw
    content_type: str | None = None


class LeaseBody(Struct, forbid_unknown_fields=True):
    """How many messages, for how long, and how long to wait for the first."""

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
    """A failure: `delay_s` instead of the queue's backoff."""

    receipt: Receipt
    reason: Annotated[str, Meta(max_length=4096)] = ""
    delay_s: Annotated[float, Meta(ge=0)] | None = None


class ExtendItem(Struct, forbid_unknown_fields=True):
    """More time: the lease ends `lease_s` from now; without it, the queue's own `lease_s`."""

    receipt: Receipt
    lease_s: Annotated[float, Meta(gt=0)] | None = None


class ReleaseItem(Struct, forbid_unknown_fields=True):
    """A message that is given back: ready again at once, and no attempt is spent."""

    receipt: Receipt


class SettleBody(Struct, forbid_unknown_fields=True):
    """What is to become of leased messages. In each list a receipt may be text, or an object with
    options. `release` gives back without spending an attempt."""

    ack: list[Receipt | AckItem] = []
    nack: list[Receipt | NackItem] = []
    extend: list[Receipt | ExtendItem] = []
    release: list[Receipt | ReleaseItem] = []


class NamespaceBody(Struct, forbid_unknown_fields=True):
    """A new namespace. `defaults` are settings that its new queues begin with; 0: no quota."""

    name: Name
    defaults: dict[str, Any] = {}
    max_queues: Annotated[int, Meta(ge=0)] = 0
    max_bytes: Annotated[int, Meta(ge=0)] = 0


class NamespaceChanges(Struct, forbid_unknown_fields=True):
    """What is to change about a namespace; the rest stays, and so do queues that are there."""

    defaults: dict[str, Any] | UnsetType = UNSET
    max_queues: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    max_bytes: Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class PositionBody(Struct, forbid_unknown_fields=True):
    """A position in a queue: exactly one of them."""

    seq: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    id: MessageId | None = None
    time: Time | None = None


class SeekBody(Struct, forbid_unknown_fields=True):
    """Where a group goes on."""

    to: Literal["beginning", "end"] | PositionBody
    group: Name = "main"


class GroupBody(Struct, forbid_unknown_fields=True):
    """Where a new group begins; the queue's beginning if nothing is said."""

    at: Literal["beginning", "end"] | PositionBody = "beginning"


class RateLimitBody(Struct, forbid_unknown_fields=True):
    """A token bucket for publishes. `refill_per_s` 0: no limit."""

    refill_per_s: Annotated[float, Meta(ge=0, le=1e9)]
    capacity: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
