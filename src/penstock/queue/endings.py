"""How messages ended that are no longer in memory: expired and cancelled ones.

A message may end long after it was published, so a listing needs the whole event log. The endings
that were read are kept as runs of seqs, and a listing reads only the events since.
"""

import threading
from collections.abc import Iterable

from penstock.queue.core import QueueCore
from penstock.queue.delivery import State
from penstock.queue.events import ALL_GROUPS, Event, EventType
from penstock.queue.history import all_events
from penstock.queue.runs import Runs

_ENDINGS = {EventType.EXPIRED: State.EXPIRED, EventType.CANCELLED: State.CANCELLED}


class Endings:
    """The endings in the event log of a queue."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._is_whole = False
        self._next_event = 1
        self._runs: dict[tuple[int, State], Runs] = {}  # by group and state

    def of(self, group: int, seqs: Iterable[int]) -> dict[int, State]:
        """Return how each of these messages ended in a group, without those that were acked."""
        with self._lock:
            self._catch_up()
            candidates = [
                (state, runs)
                for number in (group, ALL_GROUPS)  # the first that has it is the later one
                for state in _ENDINGS.values()
                if (runs := self._runs.get((number, state)))
            ]
            found: dict[int, State] = {}
            for seq in seqs:
                for state, runs in candidates:
                    if seq in runs:
                        found[seq] = state
                        break
            return found

    def _catch_up(self) -> None:
        """Read the events since the last time. Caller holds the lock."""
        if not self._is_whole:  # never read, or an interrupt came while it was read
            self._next_event, self._runs = 1, {}
        self._is_whole = False
        ledger = self._core.ledger
        for event in all_events(ledger, self._next_event):
            if event.type in _ENDINGS:
                self._note(event, _ENDINGS[event.type])
            self._next_event = event.event_seq + 1
        for runs in self._runs.values():
            runs.discard(0, ledger.messages.first_seq)  # no listing shows them
        self._is_whole = True

    def _note(self, event: Event, ending: State) -> None:
        """A message may end again after a seek: the last ending counts."""
        for first, count in event.runs:
            for (group, _), runs in self._runs.items():
                if event.group in (group, ALL_GROUPS):
                    runs.discard(first, first + count)
            self._runs.setdefault((event.group, ending), Runs()).add(first, first + count)
