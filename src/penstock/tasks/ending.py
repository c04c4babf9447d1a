"""How jobs ended: those whose messages are still there, and those that compaction has removed."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.operations import GetEndings
from penstock.queue.events import Outcome
from penstock.queue.facade import AnyQueue

FORGOTTEN = "forgotten"  # a state: it ended, and how is not known any more
_MOST_IDS = 1000  # of one question
# Ways to end without an ack that have no state of their own: they count as cancelled.
_REMOVED = ("discarded", "dropped", "lost", "purged")


class End(NamedTuple):
    """The state of a job that has ended, and the reason if the state does not say it."""

    state: str
    reason: str = ""


def how_it_ended(queue: AnyQueue, id: str) -> End:
    """Return how a message ended that is done. Raise NoSuchMessage if it was removed since."""
    return _end_by(str(queue.why(id).details.get("last_event")))


def how_removed_ones_ended(queue: AnyQueue, ids: Sequence[str]) -> dict[str, End]:
    """Return how messages ended that compaction has removed, by their ids.

    Raise NoSuchMessage if one of them was never published to this queue.
    """
    return {
        one.id: End(FORGOTTEN) if one.how == FORGOTTEN else _end_by(one.how)
        for at in range(0, len(ids), _MOST_IDS)
        for one in queue.run(GetEndings(ids[at : at + _MOST_IDS], check=True))
        if one.outcome in (Outcome.DONE, Outcome.GONE)
    }


def _end_by(how: str) -> End:
    if how in ("cancelled", "expired"):
        return End(how)
    return End("cancelled", how) if how in _REMOVED else End("done")
