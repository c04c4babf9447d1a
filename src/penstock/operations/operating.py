"""Operations on a queue as a whole: positions, groups, pausing, dead letters, disk space."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, ClassVar

from penstock.checking import Time
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME, LeasedMessage
from penstock.operations.answers import Answer, always, for_brokers_only, in_field, nothing
from penstock.operations.operation import (
    MAX_SEQ,
    Between,
    Flag,
    GroupName,
    Ids,
    MessageOperation,
    Moment,
    Operation,
    Route,
    Runs,
    Verb,
    Words,
)

MAX_LIMIT = 1 << 60


# -- positions and groups --------------------------------------------------------------------------


def check_position(operation: Any) -> None:
    """Raise InvalidInput unless an operation names exactly one position."""
    given = [operation.to, operation.seq, operation.id, operation.time]
    if sum(value is not None for value in given) != 1:
        raise InvalidInput("give one position: to ('beginning' or 'end'), seq, id or time")
    if operation.to not in (None, "beginning", "end"):
        raise InvalidInput(f"to is {operation.to!r}; it must be 'beginning' or 'end'")


@dataclass(frozen=True, slots=True)
class Seek(Operation[int]):
    """Deliver from a position on, again if necessary: "beginning", "end", a seq, an id or a time.

    Return the seq that is delivered next.
    """

    verb = Verb.CONSUME
    route = Route("POST", "/seek")
    answer = in_field("next_seq", int)
    runs = Runs.ALONE
    writes = True

    to: str | None = None
    _: KW_ONLY
    seq: Annotated[int, Between(1, MAX_SEQ)] | None = None
    id: str | None = None
    time: Annotated[Time, Moment()] | None = None
    group: GroupName = MAIN_GROUP_NAME

    def __post_init__(self) -> None:
        Operation.__post_init__(self)
        check_position(self)


@dataclass(frozen=True, slots=True)
class ListGroups(Operation[list[str]]):
    """Return the names of the consumer groups, sorted."""

    verb = Verb.READ
    route = Route("GET", "/groups")
    answer = in_field("groups", list[str])
    runs = Runs.LOOP


@dataclass(frozen=True, slots=True)
class CreateGroup(Operation[bool]):
    """Create a group that starts at the beginning (the default), the end, a seq, an id or a time.

    Return False if a group of that name exists. It is not changed.
    """

    verb = Verb.CONSUME
    route = Route("PUT", "/groups/{name}", 201)
    answer = in_field("created", bool)
    writes = True
    creates_queue = True

    name: GroupName
    _: KW_ONLY
    to: str | None = None
    seq: Annotated[int, Between(1, MAX_SEQ)] | None = None
    id: str | None = None
    time: Annotated[Time, Moment()] | None = None

    def __post_init__(self) -> None:
        Operation.__post_init__(self)
        if self.to is None and self.seq is None and self.id is None and self.time is None:
            object.__setattr__(self, "to", "beginning")
        check_position(self)


@dataclass(frozen=True, slots=True)
class DeleteGroup(Operation[None]):
    """Delete a group with its state. The group `main` cannot be deleted."""

    verb = Verb.MANAGE
    route = Route("DELETE", "/groups/{name}", 204)
    answer = nothing()
    runs = Runs.LOOP
    writes = True
    idempotent = False

    name: GroupName


# -- messages --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cancel(MessageOperation[bool]):
    """Remove a message from every group. Return False if it was done already."""

    verb = Verb.MANAGE
    route = Route("DELETE", "")
    answer = in_field("cancelled", bool)
    runs = Runs.LOOP
    writes = True

    id: str


@dataclass(frozen=True, slots=True)
class Purge(Operation[int]):
    """Remove all waiting messages, in one group or in all. Return the number of deliveries."""

    verb = Verb.MANAGE
    route = Route("POST", "/purge")
    answer = in_field("purged", int)
    runs = Runs.LOOP
    writes = True
    idempotent = False

    _: KW_ONLY
    group: GroupName | None = None


@dataclass(frozen=True, slots=True)
class CancelDeliverable(Operation[int]):
    """Cancel messages that group `main` has ready, parked, blocked or leased. Return how many.

    Scheduled messages and dead letters stay.
    """

    verb = Verb.MANAGE
    instead = "cancel() or purge()"
    answer = in_field("cancelled", int)
    runs = Runs.LOOP
    writes = True
    idempotent = False

    limit: Annotated[int, Between(1, MAX_LIMIT)]


@dataclass(frozen=True, slots=True)
class ReleaseHolder(Operation[int]):
    """Release all messages of a holder that no longer exists. Return their number.

    They are ready again at once, and the attempt does not count.
    """

    verb = Verb.CONSUME
    instead = "release()"
    answer = in_field("released", int)
    runs = Runs.LOOP
    writes = True

    holder: Annotated[str, Words()]
    _: KW_ONLY
    group: GroupName = MAIN_GROUP_NAME


@dataclass(frozen=True, slots=True)
class LeaseMessage(Operation[list[LeasedMessage]]):
    """Lease one message by its seq, also one that is scheduled or a dead letter.

    Return nothing if there is none, or if it is leased, parked, blocked or done. A pause does not
    prevent it. A dead letter stays dead after anything but an ack, see `Redrive`.
    """

    verb = Verb.CONSUME
    instead = "lease()"
    answer: ClassVar[Answer[list[LeasedMessage]]] = for_brokers_only(list)
    runs = Runs.LOOP
    writes = True
    idempotent = False

    seq: Annotated[int, Between(1, MAX_SEQ)]
    _: KW_ONLY
    lease_s: Annotated[float, Between(0.001, 7 * 86400.0)] | None = None  # None: as the queue says
    group: GroupName = MAIN_GROUP_NAME
    holder: Annotated[str, Words()] = ""


# -- dead letters ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Redrive(Operation[int]):
    """Make dead letters ready again, attempts reset: those named, those that match, or all.

    Return how many. With `dry_run`, only count them.
    """

    verb = Verb.MANAGE
    route = Route("POST", "/redrive")
    answer = in_field("redriven", int)
    runs = Runs.ALONE
    writes = True
    idempotent = False

    ids: Annotated[str | Sequence[str], Ids()] | None = None
    _: KW_ONLY
    reason: Annotated[str, Words()] | None = None  # a part of it
    reason_group: Annotated[str, Words()] | None = None  # one that `ListDeadReasons` names
    since: Annotated[Time, Moment()] | None = None  # of the last failure
    until: Annotated[Time, Moment()] | None = None
    limit: Annotated[int, Between(0, MAX_LIMIT)] | None = None
    group: GroupName = MAIN_GROUP_NAME
    dry_run: Annotated[bool, Flag()] = False


@dataclass(frozen=True, slots=True)
class Discard(Operation[int]):
    """Remove dead letters: those named, those that match, or all. Return how many.

    With `dry_run`, only count them.
    """

    verb = Verb.MANAGE
    route = Route("POST", "/discard")
    answer = in_field("discarded", int)
    runs = Runs.ALONE
    writes = True
    idempotent = False

    ids: Annotated[str | Sequence[str], Ids()] | None = None
    _: KW_ONLY
    reason: Annotated[str, Words()] | None = None
    reason_group: Annotated[str, Words()] | None = None
    since: Annotated[Time, Moment()] | None = None
    until: Annotated[Time, Moment()] | None = None
    limit: Annotated[int, Between(0, MAX_LIMIT)] | None = None
    group: GroupName = MAIN_GROUP_NAME
    dry_run: Annotated[bool, Flag()] = False


# -- the queue -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pause(Operation[None]):
    """Deliver nothing until the queue is resumed. Publishing and settling go on."""

    verb = Verb.MANAGE
    route = Route("POST", "/pause")
    answer = always("paused", True)
    runs = Runs.LOOP
    writes = True


@dataclass(frozen=True, slots=True)
class Resume(Operation[None]):
    """Deliver messages again."""

    verb = Verb.MANAGE
    route = Route("POST", "/resume")
    answer = always("paused", False)
    runs = Runs.LOOP
    writes = True


@dataclass(frozen=True, slots=True)
class Compact(Operation[int]):
    """Free disk space that no group and no retention setting needs. Return the bytes freed.

    With `seal`, the last segment is removed as well if none of its messages is needed.
    """

    verb = Verb.MANAGE
    route = Route("POST", "/compact")
    answer = in_field("freed_bytes", int)
    writes = True

    seal: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class Sync(Operation[None]):
    """Return when everything so far is on disk, whatever the sync policy."""

    verb = Verb.PUBLISH
    route = Route("POST", "/sync", 204)
    answer = nothing()
    runs = Runs.LOOP


def position_fields(operation: Any) -> dict[str, Any]:
    """Return the position that an operation names, as keyword arguments."""
    return {
        "to": operation.to,
        "seq": operation.seq,
        "id": operation.id,
        "time": operation.time,
    }
