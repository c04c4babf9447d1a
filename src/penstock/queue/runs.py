"""A sorted set of seqs, packed as runs of 16 bytes each."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from operator import lt

_ABOVE_ALL = 1 << 64
_TRIM_AFTER = 1024  # runs taken from the front before the array is moved up


class Runs:
    """Seqs as [first, end) pairs in one array. Adding at the end and taking at the front are O(1).

    >>> runs = Runs()
    >>> runs.add(1, 4); runs.add(4, 6); runs.add(9, 10)
    >>> list(runs), len(runs)
    ([1, 2, 3, 4, 5, 9], 6)
    >>> _ = runs.discard(1, 3)
    >>> list(runs)
    [3, 4, 5, 9]
    """

    __slots__ = ("_array", "_count", "_head", "first", "front_end")

    # The front moves most, one seq at a time, so it has fields of its own: `first` is the lowest
    # seq, `front_end` the end of its run. `_look` copies `first` into the array before it is used.

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._array = array("Q")
        self._head = 0  # index of the first pair that is in use
        self._count = 0  # seqs in the array
        self.first: int | None = None
        self.front_end = 0
        for first, end in pairs:
            self.add(first, end)

    def __len__(self) -> int:
        self._look()
        return self._count

    def __iter__(self) -> Iterator[int]:
        for first, end in self.pairs():
            yield from range(first, end)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the runs as [first, end), rising."""
        pairs = self._look()
        for at in range(self._head, len(pairs), 2):
            yield pairs[at], pairs[at + 1]

    def count_runs(self) -> int:
        return (len(self._look()) - self._head) // 2

    def dump(self, without: Iterable[int] = ()) -> bytes:
        """Return the runs as bytes, for `load`. Leave out some of the seqs, given rising."""
        if without:
            return Runs(_cut(self.pairs(), without)).dump()
        return self._look()[self._head :].tobytes()

    def load(self, data: bytes) -> None:
        """Replace the content by what `dump` returned. Raise ValueError if it is invalid."""
        pairs = array("Q", data)
        if len(pairs) % 2 or not all(map(lt, pairs, pairs[1:])):
            raise ValueError("the runs are not rising")
        self._array, self._head = pairs, 0
        self._count = sum(self._array[1::2]) - sum(self._array[::2])
        self._changed()

    def lowest(self, count: int) -> list[int]:
        """Return up to `count` of the lowest seqs, rising."""
        self._look()
        firsts = self._array[self._head : self._head + 2 * count : 2]
        ends = self._array[self._head + 1 : self._head + 2 * count : 2]
        if sum(ends) - sum(firsts) == len(firsts):  # each run has one seq
            return firsts.tolist()
        return list(islice(chain.from_iterable(map(range, firsts, ends)), count))

    def after(self, seq: int, count: int) -> list[int]:
        """Return up to `count` of the lowest seqs above one, rising."""
        if self.first is None:
            return []
        low = max(seq + 1, self.first)
        if low + count <= self.front_end:
            return list(range(low, low + count))
        return list(islice(self.within(low, _ABOVE_ALL), count))

    def first_run(self, count: int) -> tuple[int, int]:
        """Return the lowest run, cut to `count` seqs, as [first, end)."""
        first = self.first
        if first is None:
            return 0, 0
        return first, min(self.front_end, first + count)

    def add(self, first: int, end: int) -> None:
        """Add [first, end). None of it may be in the set."""
        pairs, used = self._array, len(self._array) - self._head
        self._count += end - first
        if not used or first < pairs[-1]:
            self._insert(first, end)
        elif first > pairs[-1]:
            pairs.append(first)
            pairs.append(end)
        else:
            pairs[-1] = end
            if used == 2:
                self.front_end = end

    def extend(self, seqs: Sequence[int]) -> None:
        """Add one or more rising seqs. They are above all others, or `add` would do."""
        first, last, pairs = seqs[0], seqs[-1], self._array
        if last - first == len(seqs) - 1:
            self.add(first, last + 1)
            return
        if len(pairs) == self._head or first < pairs[-1]:
            for seq in seqs:
                self.add(seq, seq + 1)
            return
        append, end = pairs.append, pairs[-1]
        for seq in seqs:
            if seq == end:
                pairs[-1] = end = seq + 1
            else:
                end = seq + 1
                append(seq)
                append(end)
        self._count += len(seqs)
        self.front_end = pairs[self._head + 1]

    def add_many(self, seqs: Iterable[int]) -> None:
        """Add rising seqs, none of which may be in the set. Raise ValueError if one is."""
        merged = array("Q")
        for first, end in merge(self.pairs(), ((seq, seq + 1) for seq in seqs)):
            if merged and first == merged[-1]:
                merged[-1] = end
            else:
                merged.extend((first, end))
        self.load(merged.tobytes())

    def __contains__(self, seq: int) -> bool:
        if self.first is None or seq < self.front_end:
            return self.first is not None and seq >= self.first
        pairs = self._look()
        at = self._pair_before(seq)
        return at >= self._head and seq < pairs[at + 1]

    def holds(self, first: int, end: int) -> bool:
        """Return whether all of [first, end) is in one run."""
        if self.first is None or first < self.first:
            return False
        if end <= self.front_end:
            return True
        return end <= self._look()[self._pair_before(first) + 1]

    def discard(self, first: int, end: int) -> int:
        """Remove the seqs of [first, end). Return how many there were."""
        front = self.first
        if first == front and end < self.front_end:
            self.first = end  # the usual case: from the front of a run
            return end - first
        if front is None or end <= front:
            return 0
        if first == front and end == self.front_end:
            pairs, head = self._array, self._head
            self._count -= end - pairs[head]
            head += 2
            if head <= 2 * _TRIM_AFTER and head < len(pairs):
                self._head, self.first, self.front_end = head, pairs[head], pairs[head + 1]
            else:
                self._drop_front_pair()
                self._changed()
            return end - first
        before = len(self)
        self._discard_anywhere(first, end)
        self._changed()
        return before - self._count

    def _look(self) -> "array[int]":
        """Update the front of the array, and return the array."""
        pairs, at, first = self._array, self._head, self.first
        if first is not None and pairs[at] != first:
            self._count -= first - pairs[at]
            pairs[at] = first
        return pairs

    def _changed(self) -> None:
        """Update `first` and `front_end` from the array."""
        pairs, at = self._array, self._head
        if at < len(pairs):
            self.first, self.front_end = pairs[at], pairs[at + 1]
        else:
            self.first, self.front_end = None, 0

    def count(self, first: int, end: int) -> int:
        """Return the number of seqs of [first, end)."""
        return sum(high - low for low, high in self._parts(first, end))

    def within(self, first: int, end: int) -> Iterator[int]:
        """Yield the seqs of [first, end), rising."""
        for low, high in self._parts(first, end):
            yield from range(low, high)

    def _parts(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        pairs = self._look()
        at = max(self._pair_before(first), self._head)
        while at < len(pairs) and pairs[at] < end:
            low, high = max(pairs[at], first), min(pairs[at + 1], end)
            if low < high:
                yield low, high
            at += 2

    def _discard_anywhere(self, first: int, end: int) -> None:
        pairs = self._look()
        at = max(self._pair_before(first), self._head)
        kept = array("Q")
        stop, taken = at, 0
        while stop < len(pairs) and pairs[stop] < end:
            low, high = pairs[stop], pairs[stop + 1]
            taken += max(min(high, end) - max(low, first), 0)
            for part_low, part_high in ((low, min(high, first)), (max(low, end), high)):
                if part_low < part_high:
                    kept.extend((part_low, part_high))
            stop += 2
        pairs[at:stop] = kept
        self._count -= taken

    def _insert(self, first: int, end: int) -> None:
        pairs = self._look()
        at = self._pair_before(first) + 2
        if at < len(pairs) and pairs[at] == end:  # joins the next run
            pairs[at] = first
        else:
            pairs[at:at] = array("Q", (first, end))
        if at > self._head and pairs[at - 1] == first:  # and the one before
            del pairs[at - 1 : at + 1]
        self._changed()

    def _pair_before(self, seq: int) -> int:
        """Return the index of the last pair that starts at or before a seq, or `_head - 2`."""
        head = self._head  # even, and all numbers from there on rise
        return head + (bisect_right(self._array, seq, head) - head - 1) // 2 * 2

    def _drop_front_pair(self) -> None:
        self._head += 2
        if self._head == len(self._array):
            self._array, self._head = array("Q"), 0
        elif self._head > 2 * _TRIM_AFTER and self._head > len(self._array) // 2:
            del self._array[: self._head]
            self._head = 0


def _cut(pairs: Iterable[tuple[int, int]], seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield runs without some of their seqs, given rising."""
    left = iter(seqs)
    seq = next(left, None)
    for first, end in pairs:
        while seq is not None and seq < end:
            if first < seq:
                yield first, seq
            first, seq = seq + 1, next(left, None)
        if first < end:
            yield first, end


def in_given_order(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """Return seqs as (first, count) pairs without changing their order.

    >>> in_given_order([5, 3, 4, 9])
    [(5, 1), (3, 2), (9, 1)]
    """
    runs: list[tuple[int, int]] = []
    for seq in seqs:
        if runs and seq == runs[-1][0] + runs[-1][1]:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((seq, 1))
    return runs


def as_runs(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """Return seqs, given in any order, as rising (first, count) pairs.

    >>> as_runs([5, 3, 4, 9])
    [(3, 3), (9, 1)]
    """
    ordered = sorted(seqs)
    if ordered and ordered[-1] - ordered[0] == len(ordered) - 1:
        return [(ordered[0], len(ordered))]
    runs: list[tuple[int, int]] = []
    first = count = 0
    for seq in ordered:
        if count and seq == first + count:
            count += 1
            continue
        if count:
            runs.append((first, count))
        first, count = seq, 1
    if count:
        runs.append((first, count))
    return runs
