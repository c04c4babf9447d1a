"""The oldest of those that wait, among messages that have a history or a key."""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from penstock.queue.flight import Flight, State

_WAITS = (State.READY, State.SCHEDULED, State.PARKED)
_SPARE = 1024


class Oldest:
    """A heap of seqs. What went stays in it until it comes up; what waits again is in it twice.

    Nothing is kept before it is asked for the first time: only a queue that drops its oldest asks.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] | None = None

    def add(self, seq: int) -> None:
        """It waits from now on."""
        if self._heap is not None:
            heappush(self._heap, seq)

    def lowest(self, count: int, flights: Mapping[int, Flight]) -> list[int]:
        """So many of the lowest that wait, if there are so many; rising."""
        heap = self._heap
        if heap is None or len(heap) > 2 * len(flights) + _SPARE:
            heap = self._heap = [seq for seq, one in flights.items() if one.state in _WAITS]
            heapify(heap)
        found: list[int] = []
        while heap and len(found) < count:
            seq = heappop(heap)
            flight = flights.get(seq)
            if flight is not None and flight.state in _WAITS and (not found or seq != found[-1]):
                found.append(seq)
        for seq in found:  # whoever asks may yet leave them where they are
            heappush(heap, seq)
        return found
