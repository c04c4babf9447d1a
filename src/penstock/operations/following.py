"""Operations about the end of messages: to wait for it, and to let messages of one queue come after
messages of another.

A broker follows its own queues. In a directory of tasks each queue is by itself, so there the
workers do it, with the same operations.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, NamedTuple

from penstock.operations.answers import Answer, decode_record, encode_record, in_field
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
    how: str = ""  # of one that failed, or `forgotten`


class Endings(NamedTuple):
    """What became of messages."""

    endings: list[Ending]


def _endings() -> Answer[list[Ending]]:
    return Answer(
        Endings,
        lambda found: {"endings": [encode_record(one) for one in found]},
        lambda data: [decode_record(Ending, one) for one in data["endings"]],
    )


@dataclass(frozen=True, slots=True)
class GetEndings(Operation[list[Ending]]):
    """Return what became of messages of this queue in group `main`, durably.

    `how` of one that counts as done is `forgotten` if it may have ended in another way, too long
    ago to know. With `check`, raise NoSuchMessage if one of them was never published.
    """

    verb = Verb.READ
    route = Route("POST", "/endings")
    answer: ClassVar[Answer[list[Ending]]] = _endings()
    is_durable = True

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
    """Return what is known of messages of other queues that blocked messages wait for."""

    verb = Verb.READ
    route = Route("GET", "/awaited")
    answer: ClassVar[Answer[list[Ending]]] = _endings()
    runs = Runs.LOOP


@dataclass(frozen=True, slots=True)
class Resolve(Operation[bool]):
    """Note what became of a message of another queue. Return whether that is new."""

    verb = Verb.MANAGE
    route = Route("POST", "/resolve")
    answer = in_field("new", bool)
    runs = Runs.LOOP
    writes = True

    earlier: Annotated[str, Words()]
    outcome: Annotated[int, Between(1, 4)]
    how: Annotated[str, Words()] = ""


@dataclass(frozen=True, slots=True)
class OpenGate(MessageOperation[bool]):
    """Open a gate, so that the messages behind it run. Return whether it is open.

    False: it was cancelled, or has expired, and the messages behind it are cancelled.
    """

    verb = Verb.PUBLISH
    route = Route("POST", "/open")
    answer = in_field("open", bool)
    writes = True

    id: str
