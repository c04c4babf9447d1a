"""The waiting messages of one priority, in order of delivery: by due time, then by seq.

Most messages wait as they came: their due time is when they were published, so seq order is due
order, and runs of seqs are enough (`fresh`). The others (delayed, retried, released, keyed) carry
their due time with them (`due`).
"""

from collections.abc import Callable, Iterator

from penstock.queue.runs import Runs
from penstock.queue.timetable import Timetable

PublishedNs = Callable[[int], int]


class Lane:
    """One priority of one group."""

    __slots__ = ("due", "fresh")

    def __init__(self) -> None:
        self.fresh = Runs()
        self.due = Timetable()

    def __len__(self) -> int:
        return len(self.fresh) + len(self.due)

    def in_order(self, published_ns: PublishedNs) -> Iterator[int]:
        """The seqs in the order of their delivery. Do not change the lane meanwhile."""
        return self._merged(published_ns) if self.due else iter(self.fresh)

    def head(self, published_ns: PublishedNs) -> tuple[int, int] | None:
        """(due_ns, seq) of the first to be delivered."""
        first, due = self.fresh.first, self.due.first
        if first is None:
            return due
        fresh = (published_ns(first), first)
        return fresh if due is None else min(fresh, due)

    def _merged(self, published_ns: PublishedNs) -> Iterator[int]:
        fresh = iter(self.fresh)
        seq = next(fresh, None)
        for due in self.due:
            while seq is not None and (published_ns(seq), seq) < due:
                yield seq
                seq = next(fresh, None)
            yield due[1]
        if seq is not None:
            yield seq
            yield from fresh
