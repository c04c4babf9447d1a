"""Operations about the end of messages: to wait for it, and to let messages of one queue come after
messages of another."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, NamedTuple

from penstock.operations.answers import Answer, for_brokers_only, in_field
from penstock.operations.operation import (
    Between,
    Flag,
    Ids,
    MessageOperation,
    Operation,
    Route,
    Runs,
    Verb,
    Words,
)

MAX_AWAIT_S = 20.0  # of one request: proxies cut idle connections


class Ending(NamedTuple):
    """What became of a message."""

    id: str
    outcome: int  # `queue.events.Outcome`
    how: str = ""  # of one that failed


@dataclass(frozen=True, slots=True)
class GetEndings(Operation[list[Ending]]):
    """Return what became of messages of this queue in group `main`, durably.

    With `check`, raise NoSuchMessage if one of them was never published.
    """

    verb = Verb.PUBLISH
    instead = "state()"
    answer: ClassVar[Answer[list[Ending]]] = for_brokers_only(list)
    writes = True  # answered when it is durable: others rely on it

    ids: Annotated[Sequence[str], Ids()]
    check: Annotated[bool, Flag()] = False


@dataclass(frozen=True, slots=True)
class AwaitEnding(MessageOperation[bool]):
    """Wait until a message is done, a dead letter or removed in group `main`, up to `wait_s`.

    Return whether it is. A broker answers when the end is durable.
    """

    verb = Verb.READ
    route = Route("GET", "/ending")
    instead = "wait_ended()"
    answer = in_field("ended", bool)
    runs = Runs.LOOP

    id: str
    _: KW_ONLY
    wait_s: Annotated[float, Between(0.0, MAX_AWAIT_S)] = 0.0


@dataclass(frozen=True, slots=True)
class ListAwaited(Operation[list[Ending]]):
    """Return the messages of other queues that blocked messages wait for, as far as it is known
    what became of them."""

    verb = Verb.READ
    instead = "why()"
    answer: ClassVar[Answer[list[Ending]]] = for_brokers_only(list)
    runs = Runs.LOOP


@dataclass(frozen=True, slots=True)
class Resolve(Operation[bool]):
    """Note what became of a message of another queue. Return whether that is new."""

    verb = Verb.PUBLISH
    instead = "publish()"
    answer = in_field("new", bool)
    runs = Runs.LOOP
    writes = True

    id: Annotated[str, Words()]
    outcome: Annotated[int, Between(1, 4)]
    how: Annotated[str, Words()] = ""
