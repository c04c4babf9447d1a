"""The waiting messages of one priority, in order of delivery: by due time, then by seq.

Most messages wait as they came: their due time is when they were published, so seq order is due
order, and runs of seqs are enough (`fresh`). The others (delayed, retried, released, keyed) carry
their due time with them (`due`), packed with the seq into one integer.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from penstock.queue.runs import Runs

_SEQ_BITS = 64
_SEQ_MASK = (1 << _SEQ_BITS) - 1
_TRIM_AFTER = 1024

PublishedNs = Callable[[int], int]


def pack_due(due_ns: int, seq: int) -> int:
    """Due time and seq as one integer that sorts as the pair does."""
    return due_ns << _SEQ_BITS | seq


def unpack_due(item: int) -> tuple[int, int]:
    return item >> _SEQ_BITS, item & _SEQ_MASK


class Lane:
    """One priority of one group."""

    __slots__ = ("_due", "_due_head", "fresh")

    def __init__(self) -> None:
        self.fresh = Runs()
        self._due: list[int] = []  # rising
        self._due_head = 0

    def __len__(self) -> int:
        return len(self.fresh) + len(self._due) - self._due_head

    def add_due(self, due_ns: int, seq: int) -> None:
        """Let a message wait with a due time of its own."""
        item = pack_due(due_ns, seq)
        if self._due_head == len(self._due) or item > self._due[-1]:
            self._due.append(item)
        else:
            insort(self._due, item, lo=self._due_head)

    def remove_due(self, due_ns: int, seq: int) -> bool:
        """Take one of those out; False if it is not there."""
        item = pack_due(due_ns, seq)
        due, head = self._due, self._due_head
        at = bisect_left(due, item, lo=head)
        if at == len(due) or due[at] != item:
            return False
        if at == head:
            self._due_head += 1
            if self._due_head > _TRIM_AFTER and self._due_head > len(due) // 2:
                del due[: self._due_head]
                self._due_head = 0
        else:
            del due[at]
        return True

    def has_due(self, due_ns: int, seq: int) -> bool:
        """Does it wait here with that due time?"""
        item = pack_due(due_ns, seq)
        at = bisect_left(self._due, item, lo=self._due_head)
        return at < len(self._due) and self._due[at] == item

    def take_due(self, seq: int) -> int | None:
        """Take one out whose due time is not known; its due time, None if it is not there.

        Looks from the front: what is handed out in order is found at once.
        """
        for at in range(self._due_head, len(self._due)):
            due_ns, found = unpack_due(self._due[at])
            if found == seq:
                self.remove_due(due_ns, seq)
                return due_ns
        return None

    def due_items(self) -> Iterator[tuple[int, int]]:
        """(due_ns, seq) of those that carry a due time, in order."""
        for at in range(self._due_head, len(self._due)):
            yield unpack_due(self._due[at])

    def in_order(self, published_ns: PublishedNs) -> Iterator[int]:
        """The seqs in the order of their delivery. Do not change the lane meanwhile."""
        if self._due_head == len(self._due):
            return iter(self.fresh)
        return self._merged(published_ns)

    def head(self, published_ns: PublishedNs) -> tuple[int, int] | None:
        """(due_ns, seq) of the first to be delivered."""
        first = self.fresh.first
        if self._due_head < len(self._due):
            due_ns, seq = unpack_due(self._due[self._due_head])
            if first is None:
                return due_ns, seq
            return min((due_ns, seq), (published_ns(first), first))
        return None if first is None else (published_ns(first), first)

    def _merged(self, published_ns: PublishedNs) -> Iterator[int]:
        fresh = iter(self.fresh)
        seq = next(fresh, None)
        for item in self._due[self._due_head :]:
            while seq is not None and pack_due(published_ns(seq), seq) < item:
                yield seq
                seq = next(fresh, None)
            yield item & _SEQ_MASK
        if seq is not None:
            yield seq
            yield from fresh
