"""The nouns that every layer shares.

Public times are Unix seconds (float); fields that end in `_ns` are exact nanoseconds.
"""

import binascii
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypedDict

from penstock.checking import Duration, Time, as_seconds, as_unix_s, did_you_mean
from penstock.errors import InvalidInput, PenstockError, ReceiptInvalid

MAIN_GROUP_NAME = "main"
NS = 1_000_000_000
NO_LEASED = "give a leased message, its receipt, or several of them"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_RECEIPT = struct.Struct("<IHHQQ")
_RECEIPT_CHARACTERS = _RECEIPT.size * 4 // 3
_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_FROM_URL_SAFE = bytes.maketrans(b"-_+/", b"+/--")  # only the safe alphabet is read

Json = dict[str, Any] | list[Any]
_JSON_TYPES = (dict, list)
Payload = bytes | bytearray | memoryview | str | Json
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class NewMessage:
    """A message to be published, with its options, all of them optional.

    A payload is bytes, or text (stored as UTF-8), or a dict or list (stored as JSON, with the
    content type `application/json` unless another is given). Durations are seconds or a
    `timedelta`; times are Unix seconds or a `datetime` with a time zone.

    >>> from datetime import timedelta
    >>> message = NewMessage(payload={"order": 7}, delay=timedelta(minutes=1))
    >>> message.payload, message.content_type, message.delay
    (b'{"order":7}', 'application/json', 60.0)
    """

    payload: Payload
    priority: int | None = None
    delay: Duration | None = None
    deliver_at: Time | None = None
    ttl: Duration | None = None
    headers: Mapping[str, str] | None = None
    key: str | None = None
    dedup_id: str | None = None
    dedup_window_s: Duration | None = None
    max_attempts: int | None = None
    content_type: str | None = None
    compression: str | None = None
    after: Sequence[str | int] | None = None  # ids, or indexes of earlier items of the batch
    after_failed: str | None = None  # "dead" (the default) or "run"
    tenant: str | None = None  # whom it is for: counts for limits and fair share

    # By hand, because one generated for a frozen dataclass takes more than twice as long.
    def __init__(
        self,
        *,
        payload: Payload,
        priority: int | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        ttl: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
        dedup_window_s: Duration | None = None,
        max_attempts: int | None = None,
        content_type: str | None = None,
        compression: str | None = None,
        after: Sequence[str | int] | None = None,
        after_failed: str | None = None,
        tenant: str | None = None,
    ) -> None:
        if isinstance(payload, _JSON_TYPES):
            payload = json_bytes(payload)
            if content_type is None:
                content_type = JSON
        _set_payload(self, payload)
        _set_priority(self, priority)
        _set_delay(self, None if delay is None else as_seconds(delay))
        _set_deliver_at(self, None if deliver_at is None else as_unix_s("deliver_at", deliver_at))
        _set_ttl(self, None if ttl is None else as_seconds(ttl))
        _set_headers(self, headers)
        _set_key(self, key)
        _set_dedup_id(self, dedup_id)
        if dedup_window_s is not None:
            dedup_window_s = as_seconds(dedup_window_s)  # type: ignore[assignment]
            if dedup_id is None:
                raise InvalidInput(
                    "dedup_window_s says how long a dedup_id is remembered: give one, or neither"
                )
        _set_dedup_window_s(self, dedup_window_s)
        _set_max_attempts(self, max_attempts)
        _set_content_type(self, content_type)
        _set_compression(self, compression)
        _set_after(self, after)
        _set_after_failed(self, after_failed)
        _set_tenant(self, tenant)


# Setting a slot of a frozen dataclass by its descriptor is faster than by `object.__setattr__`.
(
    _set_payload,
    _set_priority,
    _set_delay,
    _set_deliver_at,
    _set_ttl,
    _set_headers,
    _set_key,
    _set_dedup_id,
    _set_dedup_window_s,
    _set_max_attempts,
    _set_content_type,
    _set_compression,
    _set_after,
    _set_after_failed,
    _set_tenant,
) = [getattr(NewMessage, field.name).__set__ for field in fields(NewMessage)]


class PublishOptions(TypedDict, total=False):
    """What `enqueue` takes beside the payload, all by name: the options of `NewMessage`."""

    priority: int | None
    delay: Duration | None
    deliver_at: Time | None
    ttl: Duration | None
    headers: Mapping[str, str] | None
    key: str | None
    dedup_id: str | None
    dedup_window_s: Duration | None
    max_attempts: int | None
    content_type: str | None
    compression: str | None
    after: Sequence[str | int] | None
    after_failed: str | None
    tenant: str | None


def new_message(payload: Payload, options: PublishOptions) -> NewMessage:
    """Return a message made of the arguments of `enqueue`."""
    for name in options:
        if name not in PublishOptions.__annotations__:
            hint = did_you_mean(name, PublishOptions.__annotations__)
            raise TypeError(f"enqueue has no option {name!r}; {hint}")
    after = options.get("after")
    if isinstance(after, list | tuple) and any(type(one) is int for one in after):
        raise InvalidInput(
            "after names an item of the batch, and enqueue publishes one message: use publish"
        )
    return NewMessage(payload=payload, **options)


def json_bytes(value: Json) -> bytes:
    """Return a payload that is JSON as bytes; InvalidInput says why it cannot be."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"the payload is a {type(value).__name__} that is not valid JSON: {error}"
        ) from None


class TypedPayload(NamedTuple):
    """Bytes to be published, with a content type and no other option."""

    payload: bytes
    content_type: str


class Published(NamedTuple):
    """The answer to a publish."""

    id: str
    duplicate: bool = False  # the id is that of an earlier message with the same dedup id


class Message(NamedTuple):
    """A message as it was published. It never changes."""

    id: str  # a ULID: time, queue and seq in 26 characters
    seq: int  # its number in the queue
    payload: bytes
    priority: int
    published_ns: int
    deliver_at_ns: int  # 0: at once
    expires_at_ns: int  # 0: never
    key: str | None
    headers: Mapping[str, str]
    content_type: str | None
    max_attempts: int  # 0: as the queue says

    @property
    def published_at(self) -> float:
        return self.published_ns / NS

    @property
    def deliver_at(self) -> float | None:
        return self.deliver_at_ns / NS if self.deliver_at_ns else None

    @property
    def expires_at(self) -> float | None:
        return self.expires_at_ns / NS if self.expires_at_ns else None


class Receipt(NamedTuple):
    """What a lease's token says. It routes itself, and fences: an old one settles nothing."""

    identity: int  # of the queue
    group: int
    attempt: int
    seq: int
    nonce: int

    def pack(self) -> str:
        """Return the receipt as opaque text.

        >>> Receipt(1, 0, 1, 42, 7).pack()
        'AQAAAAAAAQAqAAAAAAAAAAcAAAAAAAAA'
        """
        return _as_text(_RECEIPT.pack(*self))

    @staticmethod
    def unpack(text: str) -> "Receipt":
        """Read a receipt. Raise ReceiptInvalid for other text, InvalidInput for other types."""
        try:
            return _read_receipt(text)
        except (ValueError, struct.error, AttributeError, TypeError):
            if not isinstance(text, str):
                raise InvalidInput(NO_LEASED) from None
            raise ReceiptInvalid(
                "this is not a receipt: give back the one that came with the leased message"
            ) from None


@lru_cache(maxsize=1024)  # read twice: to find the queue, and by the queue
def _read_receipt(text: str) -> Receipt:
    if len(text) != _RECEIPT_CHARACTERS:
        raise ValueError  # the decoder would ignore padding after it
    data = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL_SAFE), strict_mode=True)
    return Receipt(*_RECEIPT.unpack(data))


def _as_text(receipt: bytes) -> str:
    return binascii.b2a_base64(receipt, newline=False).translate(_TO_URL_SAFE).decode()


class Settler(Protocol):
    """A queue, as leased messages know it: it takes their outcome."""

    def ack(self, leased: "LeasedMessage", /) -> object: ...

    def nack(self, leased: "LeasedMessage", /, reason: str = "") -> object: ...


class Ticket(NamedTuple):
    """What the messages of one lease call have in common."""

    identity: int
    group: int
    group_name: str
    attempt: int
    nonce: int
    deadline_ns: int
    settler: Settler


class LeasedMessage(NamedTuple):
    """A message that was handed to one holder, until a deadline.

    As a context manager it acks when the block succeeds and nacks when it raises.
    """

    message: Message
    ticket: Ticket

    @property
    def receipt(self) -> str:
        """Settles this delivery: from any thread or process, also after a restart."""
        message, (identity, group, _, attempt, nonce, _, _) = self
        packed = _RECEIPT.pack(identity, group, attempt, message[1], nonce)
        return binascii.b2a_base64(packed, newline=False).translate(_TO_URL_SAFE).decode()

    @property
    def attempt(self) -> int:
        """This delivery's number, from 1."""
        return self.ticket.attempt

    @property
    def deadline(self) -> float:
        """When the lease ends, unless it is extended."""
        return self.ticket.deadline_ns / NS

    @property
    def group(self) -> str:
        return self.ticket.group_name

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def seq(self) -> int:
        return self.message.seq

    @property
    def payload(self) -> bytes:
        return self.message.payload

    @property
    def headers(self) -> Mapping[str, str]:
        return self.message.headers

    @property
    def priority(self) -> int:
        return self.message.priority

    @property
    def key(self) -> str | None:
        return self.message.key

    @property
    def published_at(self) -> float:
        return self.message.published_at

    def __enter__(self) -> "LeasedMessage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if error is None:
            self.ticket.settler.ack(self)
        else:
            try:
                self.ticket.settler.nack(self, reason=f"{type(error).__name__}: {error}")
            except PenstockError:
                if isinstance(error, Exception):
                    raise  # an interrupt goes on as it is


class DeadLetter(NamedTuple):
    """A message that failed too often. It stays where it is, with the same id and bytes."""

    message: Message  # its headers have the `dlq.` ones added
    attempts: int
    reason: str
    cause: str  # "nack", "timeout", "unreadable" or "dependency"
    first_failure_ns: int
    last_failure_ns: int

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def payload(self) -> bytes:
        return self.message.payload

    @property
    def headers(self) -> Mapping[str, str]:
        return self.message.headers


class GroupStats(NamedTuple):
    """The counts of one consumer group. All are kept, none is counted."""

    ready: int
    scheduled: int
    leased: int
    parked: int
    blocked: int
    dead: int
    delivered: int  # leased or taken, since the queue was made; each attempt counts
    acked: int  # settled well
    nacked: int
    timed_out: int
    expired: int
    cancelled: int
    dead_lettered: int
    redriven: int
    discarded: int  # dead letters that were thrown away: by hand, by age, or beyond a bound
    retrying: int  # failed at least once, and neither settled nor given up
    read_position: int  # the lowest seq that waits in line and was never handed out
    oldest_ready_age_s: float  # 0 if nothing is ready

    @property
    def lag(self) -> int:
        """Return the number of messages that are neither done nor dead."""
        return self.ready + self.scheduled + self.leased + self.parked + self.blocked


class StorageStats(NamedTuple):
    """The files of a queue; all 0 if its store has none."""

    message_log_bytes: int = 0
    event_log_bytes: int = 0
    segments: int = 0
    damaged: int = 0  # damaged ranges found since the queue was opened

    @property
    def log_bytes(self) -> int:
        """Return the bytes of both logs."""
        return self.message_log_bytes + self.event_log_bytes


class Stats(NamedTuple):
    """The counts of a queue; those of group `main` directly, those of the others in `groups`."""

    ready: int
    scheduled: int
    leased: int
    parked: int
    blocked: int
    dead: int
    published: int
    acked: int
    nacked: int
    timed_out: int
    expired: int
    cancelled: int
    dead_lettered: int
    redriven: int
    discarded: int
    retrying: int
    read_position: int
    deduplicated: int
    dedup_entries: int  # dedup ids that are remembered now
    dedup_evicted: int
    oldest_ready_age_s: float
    paused: bool
    next_seq: int
    first_seq: int
    storage: StorageStats
    groups: Mapping[str, GroupStats]

    @property
    def unfinished(self) -> int:
        """Messages that some group is not done with; one of several groups counts in each."""
        return sum(group.lag + group.dead for group in self.groups.values())


class Why(NamedTuple):
    """Why a message is not being delivered now."""

    id: str
    group: str
    state: str
    code: str  # stable, for programs
    sentence: str  # for people
    details: Mapping[str, object]


class RetryInfo(NamedTuple):
    """How often a message was tried, and when it is tried next."""

    id: str
    group: str
    state: str
    attempts: int  # deliveries so far, the one that is under way included
    max_attempts: int  # then it is dead
    next_attempt_ns: int  # when it may be delivered again; 0: now, or never
    reason: str  # of the last failure
    first_failure_ns: int  # 0: it has not failed
    last_failure_ns: int

    @property
    def next_attempt_at(self) -> float | None:
        return self.next_attempt_ns / NS if self.next_attempt_ns else None

    @property
    def first_failure_at(self) -> float | None:
        return self.first_failure_ns / NS if self.first_failure_ns else None

    @property
    def last_failure_at(self) -> float | None:
        return self.last_failure_ns / NS if self.last_failure_ns else None


class HistoryEvent(NamedTuple):
    """One thing that happened to a message."""

    event: str  # "published", "leased", "acked", …
    at_ns: int
    group: str | None
    attempt: int
    reason: str
    holder: str
    retry_at_ns: int
    event_seq: int

    @property
    def at(self) -> float:
        return self.at_ns / NS
