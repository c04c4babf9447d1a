"""Operations that survey a queue for an operator: who works, what waits, what died, what is kept.

None changes anything. Each has a limit to what it looks at; `exhausted` says that it was reached.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, NamedTuple

from penstock.checking import Time
from penstock.model import MAIN_GROUP_NAME
from penstock.operations.answers import record
from penstock.operations.operating import check_position
from penstock.operations.operation import (
    MAX_SEQ,
    Between,
    GroupName,
    Moment,
    Operation,
    Route,
    Runs,
    Verb,
)

MAX_SURVEYED = 1000  # rows of an answer


class Holder(NamedTuple):
    """A consumer that holds leases. The name is empty for those that gave none."""

    holder: str
    leases: int
    leased_ns: int  # when the oldest of them began, or was extended
    deadline_ns: int  # when the first of them ends


class HeldLease(NamedTuple):
    """A message that is being worked on."""

    id: str
    seq: int
    holder: str
    attempt: int
    leased_ns: int
    deadline_ns: int


class Consumers(NamedTuple):
    """The consumers of a group that hold leases, and the leases that end first."""

    leases: int
    holders: Sequence[Holder]  # those with most leases first
    held: Sequence[HeldLease]
    exhausted: bool  # not all leases were looked at


@dataclass(frozen=True, slots=True)
class ListConsumers(Operation[Consumers]):
    """Return who holds leases, and the leases that end first: at most `limit` of each.

    It looks at 100,000 leases at most.
    """

    verb = Verb.READ
    route = Route("GET", "/consumers")
    answer = record(Consumers)

    _: KW_ONLY
    group: GroupName = MAIN_GROUP_NAME
    limit: Annotated[int, Between(1, MAX_SURVEYED)] = 100


class KeyBacklog(NamedTuple):
    """The unsettled messages of one key."""

    key: str
    messages: int
    id: str  # of the first: it is being worked on, or is the next


class KeyBacklogs(NamedTuple):
    """The keys with most unsettled messages."""

    keys: Sequence[KeyBacklog]
    total: int  # keys with unsettled messages
    exhausted: bool  # not all keys were looked at


@dataclass(frozen=True, slots=True)
class ListKeys(Operation[KeyBacklogs]):
    """Return the keys with most unsettled messages in a group. It looks at 100,000 keys at most."""

    verb = Verb.READ
    route = Route("GET", "/keys")
    answer = record(KeyBacklogs)

    _: KW_ONLY
    group: GroupName = MAIN_GROUP_NAME
    limit: Annotated[int, Between(1, MAX_SURVEYED)] = 20


class DeadReason(NamedTuple):
    """Dead letters that failed for the same reason, but for numbers in it."""

    reason: str  # with # in the place of numbers; give it as `reason_group`
    messages: int
    first_ns: int  # the first and the last failure
    last_ns: int
    id: str  # of one of them, the last that died
    cause: str  # of that one: "nack", "timeout" or "unreadable"


class DeadReasons(NamedTuple):
    """The dead letters of a group by their reasons, the most frequent first."""

    reasons: Sequence[DeadReason]
    total: int  # dead letters
    others: int  # of these, dead letters of reasons that are not listed
    exhausted: bool  # not all dead letters were looked at: only the ones that died last


@dataclass(frozen=True, slots=True)
class ListDeadReasons(Operation[DeadReasons]):
    """Return the dead letters by their reasons. It looks at the last 200,000 dead letters."""

    verb = Verb.READ
    route = Route("GET", "/dead_reasons")
    answer = record(DeadReasons)

    _: KW_ONLY
    group: GroupName = MAIN_GROUP_NAME
    limit: Annotated[int, Between(1, MAX_SURVEYED)] = 100


class SeekPreview(NamedTuple):
    """What a seek would do."""

    next_seq: int  # delivered next
    messages: int  # delivered from there on, as far as the log has them
    repeated: int  # of these: done or dead, so delivered again; leased ones are as well
    skipped: int  # before it and not done: not delivered any more


@dataclass(frozen=True, slots=True)
class PreviewSeek(Operation[SeekPreview]):
    """Return what `seek` to that position would mean, without doing it."""

    verb = Verb.READ
    route = Route("POST", "/seek/preview")
    answer = record(SeekPreview)
    runs = Runs.ALONE

    to: str | None = None
    _: KW_ONLY
    seq: Annotated[int, Between(1, MAX_SEQ)] | None = None
    id: str | None = None
    time: Annotated[Time, Moment()] | None = None
    group: GroupName = MAIN_GROUP_NAME

    def __post_init__(self) -> None:
        Operation.__post_init__(self)
        check_position(self)


class SegmentState(NamedTuple):
    """A segment of a log."""

    log: str  # "messages" or "events"
    base_seq: int
    entries: int
    live: int  # messages that some group needs, at most; of events: all
    size_bytes: int
    is_sealed: bool
    created_ns: int


class DamageReport(NamedTuple):
    """What recovery, or a read, found to differ from what was written."""

    file: str
    offset: int
    length: int
    lost: int  # seqs that are missing because of it
    reason: str
    is_torn: bool  # an unfinished write at the end of a log, as a crash leaves it


class QuarantineFile(NamedTuple):
    """A copy of damaged bytes."""

    name: str
    size_bytes: int


class StorageReport(NamedTuple):
    """The files of a queue."""

    segments: Sequence[SegmentState]  # the newest of each log, if there are more than the limit
    total_segments: int
    live_ratio: float  # of the messages in all segments, those that some group needs
    snapshots: int
    damage: Sequence[DamageReport]  # since the queue was opened, recovery included
    quarantine: Sequence[QuarantineFile]
    refusal: str  # why the queue takes no writes; empty: it does


@dataclass(frozen=True, slots=True)
class GetStorage(Operation[StorageReport]):
    """Return the segments of a queue, what recovery found, and what lies in quarantine."""

    verb = Verb.READ
    route = Route("GET", "/storage")
    answer = record(StorageReport)
    runs = Runs.ALONE

    _: KW_ONLY
    limit: Annotated[int, Between(1, MAX_SURVEYED)] = 200


class Limit(NamedTuple):
    """A limit of a queue, and how close it is."""

    name: str  # the setting
    used: float
    most: float
    effect: str  # what happens beyond it


class Limits(NamedTuple):
    """The limits of a queue that are set."""

    limits: Sequence[Limit]


@dataclass(frozen=True, slots=True)
class GetLimits(Operation[Limits]):
    """Return the limits that are set for a queue, and how close they are."""

    verb = Verb.READ
    route = Route("GET", "/limits")
    answer = record(Limits)
    runs = Runs.LOOP
