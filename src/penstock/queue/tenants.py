"""Which tenant each message of a group has, in packed arrays: 12 bytes a message.

Ready messages of a tenant are a sorted array of seqs beside it: 8 bytes each.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import compress

_GONE = 0xFFFF_FFFF  # instead of a tenant's number: removed
_SPARE = 512  # removed entries that may stay in the arrays


class TenantColumn:
    """seq -> number of its tenant, rising by seq. A message that is not in it has number 0.

    >>> column = TenantColumn()
    >>> column.add(7, 1); column.add(9, 2)
    >>> column.get(7), column.get(8), column.pop(9), column.get(9), len(column)
    (1, 0, 2, 0, 1)
    """

    __slots__ = ("_gone", "_next", "_numbers", "_seqs")

    def __init__(self) -> None:
        self._seqs = array("Q")
        self._numbers = array("I")
        self._gone = 0
        self._next = 0  # the index behind the last one that was removed

    def __len__(self) -> int:
        return len(self._seqs) - self._gone

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (seq, number), rising by seq."""
        pairs = zip(self._seqs, self._numbers, strict=True)
        return (pair for pair in pairs if pair[1] != _GONE)

    def add(self, seq: int, number: int) -> None:
        """Add a message with a seq above all others."""
        self._seqs.append(seq)
        self._numbers.append(number)

    def get(self, seq: int) -> int:
        at = self._find(seq)
        return 0 if at < 0 else self._numbers[at]

    def pop(self, seq: int) -> int:
        """Remove a message. Return its number."""
        at, seqs = self._next, self._seqs
        if at >= len(seqs) or seqs[at] != seq or self._numbers[at] == _GONE:
            at = self._find(seq)
            if at < 0:
                return 0
        number = self._numbers[at]
        self._numbers[at] = _GONE
        self._next = at + 1
        self._gone += 1
        if self._gone > len(seqs) // 2 + _SPARE:
            kept = [number != _GONE for number in self._numbers]
            self._seqs = array("Q", compress(seqs, kept))
            self._numbers = array("I", compress(self._numbers, kept))
            self._gone = self._next = 0
        return number

    def freeze(self) -> "tuple[array[int], array[int]]":
        """Return a copy of the arrays, for `packed`."""
        return self._seqs[:], self._numbers[:]

    def _find(self, seq: int) -> int:
        at = bisect_left(self._seqs, seq)
        there = at < len(self._seqs) and self._seqs[at] == seq and self._numbers[at] != _GONE
        return at if there else -1


def packed(columns: "tuple[array[int], array[int]]", numbers: dict[int, int]) -> bytes:
    """Return columns as bytes, without removed entries, with other numbers for the tenants."""
    seqs, old = columns
    kept = [number in numbers for number in old]
    new = array("I", (numbers[number] for number in compress(old, kept)))
    return array("Q", compress(seqs, kept)).tobytes() + new.tobytes()


def unpacked(data: bytes) -> Iterable[tuple[int, int]]:
    """Return the (seq, number) pairs that `packed` made. Raise ValueError if it did not."""
    count, rest = divmod(len(data), 12)
    if rest:
        raise ValueError("the tenants are cut off")
    seqs, numbers = array("Q", data[: 8 * count]), array("I", data[8 * count :])
    return zip(seqs, numbers, strict=True)


class Seqs:
    """A sorted set of seqs, 8 bytes each. Adding at the end and taking at the front are O(1).

    >>> seqs = Seqs()
    >>> for seq in (3, 9, 5): seqs.add(seq)
    >>> seqs.discard(3), seqs.discard(3), seqs.first, list(seqs), 9 in seqs
    (True, False, 5, [5, 9], True)
    """

    __slots__ = ("_array", "_head")

    def __init__(self) -> None:
        self._array = array("Q")
        self._head = 0

    @property
    def first(self) -> int | None:
        return self._array[self._head] if self._head < len(self._array) else None

    def __len__(self) -> int:
        return len(self._array) - self._head

    def __iter__(self) -> Iterator[int]:
        return map(self._array.__getitem__, range(self._head, len(self._array)))

    def __contains__(self, seq: int) -> bool:
        at = bisect_left(self._array, seq, self._head)
        return at < len(self._array) and self._array[at] == seq

    def add(self, seq: int) -> None:
        """Add a seq that is not in it."""
        seqs = self._array
        if not seqs or seq > seqs[-1]:
            seqs.append(seq)
        else:
            seqs.insert(bisect_left(seqs, seq, self._head), seq)

    def extend(self, seqs: Iterable[int]) -> None:
        """Add rising seqs above all others."""
        self._array.extend(seqs)

    def discard(self, seq: int) -> bool:
        """Remove a seq. Return False if it is not in it."""
        seqs, head = self._array, self._head
        at = head if head < len(seqs) and seqs[head] == seq else bisect_left(seqs, seq, head)
        if at == len(seqs) or seqs[at] != seq:
            return False
        if at > head:
            del seqs[at]
            return True
        self._head = head + 1
        if self._head > _SPARE and self._head > len(seqs) // 2:
            del seqs[: self._head]
            self._head = 0
        return True

    def pop_below(self, seq: int) -> "array[int]":
        """Remove and return all below a seq."""
        end = bisect_left(self._array, seq, self._head)
        gone = self._array[self._head : end]
        del self._array[:end]
        self._head = 0
        return gone

    def copy(self) -> "array[int]":
        return self._array[self._head :]
