"""Which messages some group still needs, for compaction."""

from bisect import bisect_left
from collections.abc import Iterable

from penstock.queue.flight import State
from penstock.queue.runs import Runs
from penstock.queue.state import QueueState


class LiveView:
    """As it was when it was made. What is published later is not in sealed segments yet; what dies
    later goes at the next compaction."""

    def __init__(self, state: QueueState) -> None:
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
        return others + sum(runs.count(first_seq, end_seq) for runs in self._runs)

    def seqs(self, first_seq: int, end_seq: int) -> Iterable[int]:
        low, high = bisect_left(self._others, first_seq), bisect_left(self._others, end_seq)
        found = set(self._others[low:high])
        for runs in self._runs:
            found.update(runs.within(first_seq, end_seq))
        return sorted(found)
