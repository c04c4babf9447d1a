"""Which messages some group still needs, and which events, for compaction."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from penstock.ledger import Ledger
from penstock.queue.events import Event, EventType
from penstock.queue.flight import State
from penstock.queue.history import all_events
from penstock.queue.runs import Runs
from penstock.queue.state import QueueState


class LiveView:
    """As it was when it was made. What dies later goes at the next compaction. What is published
    later is needed, all of it: its segment may be sealed before the compaction comes to it."""

    def __init__(self, state: QueueState) -> None:
        self._known_upto = state.ingested_upto
        self._runs: list[Runs] = []
        others: set[int] = set()
        for group in state.groups.values():
            for lane in group.lanes:
                self._runs.append(Runs(lane.fresh.pairs()))
            others.update(group.delays)
            others.update(group.leases)
            others.update(
                seq for seq, flight in group.flights.items() if flight.state is not State.DONE
            )
        self._others = sorted(others)

    def count(self, first_seq: int, end_seq: int) -> int:
        """An upper bound: a message that two groups need counts twice."""
        others = bisect_left(self._others, end_seq) - bisect_left(self._others, first_seq)
        later = max(end_seq - max(first_seq, self._known_upto), 0)
        return later + others + sum(runs.count(first_seq, end_seq) for runs in self._runs)

    def seqs(self, first_seq: int, end_seq: int) -> Iterable[int]:
        low, high = bisect_left(self._others, first_seq), bisect_left(self._others, end_seq)
        found = set(self._others[low:high])
        for runs in self._runs:
            found.update(runs.within(first_seq, end_seq))
        found.update(range(max(first_seq, self._known_upto), end_seq))
        return sorted(found)


class NeededEvents:
    """The events from one on, and of those before it the ones about messages that are kept."""

    def __init__(self, ledger: Ledger, live: LiveView, first_kept: int, first_event: int) -> None:
        self._ledger = ledger
        self._live = live
        self._first_kept = first_kept  # all messages from here on are there
        self._first_event = first_event
        self._found: tuple[int, int, list[int]] = (0, 0, [])  # of which events it was asked last

    def count(self, first_seq: int, end_seq: int) -> int:
        if first_seq >= self._first_event:
            return end_seq - first_seq
        return len(self.seqs(first_seq, end_seq))

    def seqs(self, first_seq: int, end_seq: int) -> list[int]:
        if self._found[:2] != (first_seq, end_seq):
            found = [seq for seq in self._before(first_seq, end_seq) if seq < end_seq]
            found += range(max(first_seq, self._first_event), end_seq)
            self._found = (first_seq, end_seq, found)
        return self._found[2]

    def _before(self, first_seq: int, end_seq: int) -> Iterator[int]:
        end_seq = min(end_seq, self._first_event)
        for event in all_events(self._ledger, first_seq):
            if event.event_seq >= end_seq:
                return
            if self._is_needed(event):
                yield event.event_seq

    def _is_needed(self, event: Event) -> bool:
        if not event.runs:  # it names a place, or is about a group or the queue
            return event.type is not EventType.DEDUPLICATED
        return any(
            first + count > self._first_kept or self._live.count(first, first + count)
            for first, count in event.runs
        )
