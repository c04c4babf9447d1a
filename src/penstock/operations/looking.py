"""Operations that look at messages and change nothing."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, ClassVar, NamedTuple

from penstock.checking import Time
from penstock.model import (
    MAIN_GROUP_NAME,
    DeadLetter,
    HistoryEvent,
    Message,
    RetryInfo,
    Stats,
    Why,
)
from penstock.operations.answers import Answer, encoded_by_route, in_field, record
from penstock.operations.operation import (
    MAX_SEQ,
    Between,
    GroupName,
    Ids,
    MessageOperation,
    Moment,
    OneOf,
    Operation,
    Route,
    Runs,
    Verb,
    Words,
)

STATES = (
    "ready",
    "scheduled",
    "leased",
    "parked",
    "blocked",
    "dead",
    "done",
    "expired",
    "cancelled",
)
MAX_ROWS = 1000
MAX_PEEK = 1_000_000
MAX_BUDGET = 1_000_000
NO_BYTE_LIMIT = 1 << 62


class Row(NamedTuple):
    """A message of a listing, with its state in the group."""

    message: Message
    state: str
    attempts: int


class Page(NamedTuple):
    """A page of messages."""

    rows: Sequence[Row]
    next_seq: int  # where the next page starts (its `after_seq`); 0: this was the last page
    looked_at: int  # messages that were read for it
    exhausted: bool  # the budget ended the page, not the limit: the next page may have more
    first_seq: int = 0  # of the queue; with the next, how far a search has come
    end_seq: int = 0  # one above the last message of the queue


class DeadPage(NamedTuple):
    """A page of dead letters, in the order they were published."""

    letters: Sequence[DeadLetter]
    next_seq: int  # where the next page starts (its `after_seq`); 0: this was the last page


@dataclass(frozen=True, slots=True)
class GetMessage(MessageOperation[Row]):
    """Return a message by its id, done or not, as long as its bytes are kept."""

    verb = Verb.READ
    route = Route("GET", "")
    answer: ClassVar[Answer[Row]] = encoded_by_route(Row)

    id: str
    _: KW_ONLY
    group: GroupName = MAIN_GROUP_NAME


@dataclass(frozen=True, slots=True)
class FindMessage(Operation[str]):
    """Return the id of the message that was published under a dedup id.

    It is an empty text if the queue does not remember the dedup id, or not any more.
    """

    verb = Verb.READ
    route = Route("GET", "/find")
    answer = in_field("id", str)
    runs = Runs.LOOP

    dedup_id: Annotated[str, Words()]


@dataclass(frozen=True, slots=True)
class Browse(Operation[Page]):
    """Return a page of messages by state, in the order of their seqs; all that are not done by
    default."""

    verb = Verb.READ
    instead = "browse()"
    bounded = True
    answer: ClassVar[Answer[Page]] = encoded_by_route(Page)

    state: Annotated[str, OneOf(STATES)] | None = None
    _: KW_ONLY
    group: GroupName = MAIN_GROUP_NAME
    key: Annotated[str, Words()] | None = None
    since: Annotated[Time, Moment()] | None = None  # published at or after
    until: Annotated[Time, Moment()] | None = None  # published before
    text: Annotated[str, Words()] | None = None  # in the payload, as UTF-8, or in a header
    header: Annotated[str, Words()] | None = None  # a header's name, or name=value
    priority: Annotated[int, Between(0, 9)] | None = None
    after_seq: Annotated[int, Between(0, MAX_SEQ)] = 0  # the page starts after this one
    limit: Annotated[int, Between(1, MAX_ROWS)] = 50
    budget: Annotated[int, Between(1, MAX_BUDGET)] = 10_000  # maximum number of messages read
    max_bytes: int = field(default=NO_BYTE_LIMIT, init=False)  # a page has at least one row


@dataclass(frozen=True, slots=True)
class Peek(Operation[list[Row]]):
    """Return the messages that would be delivered next, in that order."""

    verb = Verb.READ
    bounded = True
    answer: ClassVar[Answer[list[Row]]] = encoded_by_route(list)

    n: Annotated[int, Between(1, MAX_PEEK)] = 1
    _: KW_ONLY
    group: GroupName = MAIN_GROUP_NAME
    max_bytes: int = field(default=NO_BYTE_LIMIT, init=False)


@dataclass(frozen=True, slots=True)
class ListDead(Operation[DeadPage]):
    """Return a page of dead letters, in the order they were published."""

    verb = Verb.READ
    instead = "dead()"
    bounded = True
    answer: ClassVar[Answer[DeadPage]] = encoded_by_route(DeadPage)

    ids: Annotated[Sequence[str], Ids()] | None = None
    _: KW_ONLY
    reason: Annotated[str, Words()] | None = None  # a part of it
    reason_group: Annotated[str, Words()] | None = None  # one that `ListDeadReasons` names
    since: Annotated[Time, Moment()] | None = None  # of the last failure
    until: Annotated[Time, Moment()] | None = None
    group: GroupName = MAIN_GROUP_NAME
    after_seq: Annotated[int, Between(0, MAX_SEQ)] = 0
    limit: Annotated[int, Between(1, MAX_ROWS)] = 50
    max_bytes: int = field(default=NO_BYTE_LIMIT, init=False)


@dataclass(frozen=True, slots=True)
class ExplainWait(MessageOperation[Why]):
    """Return the exact reason why a message is not being delivered now."""

    verb = Verb.READ
    route = Route("GET", "/why")
    answer = record(Why)

    id: str
    _: KW_ONLY
    group: GroupName = MAIN_GROUP_NAME


@dataclass(frozen=True, slots=True)
class GetRetryInfo(MessageOperation[RetryInfo]):
    """Return how often a message was tried, why it failed last, and when it is tried next."""

    verb = Verb.READ
    route = Route("GET", "/retry_info")
    answer = record(RetryInfo)

    id: str
    _: KW_ONLY
    group: GroupName = MAIN_GROUP_NAME


@dataclass(frozen=True, slots=True)
class ListHistory(MessageOperation[list[HistoryEvent]]):
    """Return what happened to a message, oldest event first: at most `limit` events after the
    first `skip`."""

    verb = Verb.READ
    instead = "history()"
    answer: ClassVar[Answer[list[HistoryEvent]]] = encoded_by_route(list)

    id: str
    _: KW_ONLY
    group: GroupName | None = None
    skip: Annotated[int, Between(0, MAX_SEQ)] = 0
    limit: Annotated[int, Between(1, MAX_SEQ)] = MAX_ROWS


@dataclass(frozen=True, slots=True)
class GetStats(Operation[Stats]):
    """Return the counts of a queue, in constant time: they are kept up to date."""

    verb = Verb.READ
    answer: ClassVar[Answer[Stats]] = encoded_by_route(Stats)
    runs = Runs.LOOP
