"""Operations that settle leased messages, as a queue's methods take them.

The broker settles by receipts of any queues in one call; see `Broker.settle`.
"""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from penstock.checking import Duration
from penstock.model import LeasedMessage
from penstock.operations.answers import nothing
from penstock.operations.operation import Flag, Operation, Runs, Verb

Leased = LeasedMessage | str  # a leased message or its receipt


@dataclass(frozen=True, slots=True)
class Nack(Operation[None]):
    """Say that the work failed.

    The message is ready again after the queue's backoff, or after `delay`. When it was delivered
    `max_attempts` times, it becomes a dead letter instead. `reason` is kept with it: `retry_info`,
    `history` and `dead` show it. Other holders are not affected. To return a message without
    counting the attempt, use `release`.

    With `dead` it becomes a dead letter at once, because another attempt makes no sense.

    `leased` is a leased message or its receipt, or several. Raise ReceiptInvalid if the lease ran
    out or was settled; then nothing is changed.
    """

    verb = Verb.CONSUME
    answer = nothing()
    runs = Runs.LOOP
    writes = True

    leased: Leased | Iterable[Leased]
    reason: str = ""
    _: KW_ONLY
    delay: Duration | None = None
    dead: Annotated[bool, Flag()] = False


@dataclass(frozen=True, slots=True)
class Extend(Operation[None]):
    """Extend a lease: it lasts `lease_s` from now (by default as long as the queue's own).

    `progress`, from 0 to 1, and `note` say how far the work is: `why` shows them.
    """

    verb = Verb.CONSUME
    answer = nothing()
    runs = Runs.LOOP
    writes = True

    leased: Leased | Iterable[Leased]
    lease_s: Duration | None = None
    _: KW_ONLY
    progress: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Release(Operation[None]):
    """Release a message unchanged: it is ready again at once, and the attempt does not count."""

    verb = Verb.CONSUME
    answer = nothing()
    runs = Runs.LOOP
    writes = True

    leased: Leased | Iterable[Leased]
