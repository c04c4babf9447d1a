"""Messages that are due later, in packed arrays.

`Timetable` orders them by due time (16 bytes each). `Delays` holds the due time and priority of
messages that have no `Delivery`: published with a delay, never leased, without key (17 bytes each).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from itertools import compress
from operator import lt

NEVER_NS = 1 << 64
_MOST = 1024  # pairs in one piece
_SEQ_BITS = 64
_GONE = 0xFF  # instead of a priority: removed
_PACKED_BYTES = 17  # seq, due time, priority
_PIECE = 8192  # entries packed at once
_SPARE = 512  # removed entries that may stay in the arrays


class Timetable:
    """A sorted set of (due_ns, seq), in pieces of bounded length, so that a change moves little.

    >>> table = Timetable([(30, 1), (10, 2), (20, 3)])
    >>> table.next_ns, list(table)
    (10, [(10, 2), (20, 3), (30, 1)])
    >>> table.remove(10, 2), table.remove(10, 2)
    (True, False)
    >>> list(table.pop_upto(25)), len(table), table.next_ns
    ([(20, 3)], 1, 30)
    """

    __slots__ = ("_count", "_heads", "_pieces", "_removed", "next_ns")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._pieces: list[tuple[array[int], array[int]]] = []  # due times, seqs; none is empty
        self._heads: list[int] = []  # the first of each piece, as one number
        # Pairs at the start of the first piece that were removed: most are removed from there, and
        # moving the others up each time is slow. Its number in `_heads` may be of one of them.
        self._removed = 0
        self._count = 0
        self.next_ns = NEVER_NS  # the first due time
        ordered = sorted(pairs)
        self._load(
            array("Q", [due_ns for due_ns, _ in ordered]), array("Q", [seq for _, seq in ordered])
        )

    @classmethod
    def of(cls, dues: "array[int]", seqs: "array[int]") -> "Timetable":
        """Return a timetable of columns, with rising seqs. Fast enough for a million."""
        table = cls()
        # Sort by floats first: fast to compare, exact to 256 ns. The second sort does the rest.
        order = sorted(range(len(dues)), key=[float(due_ns) for due_ns in dues].__getitem__)
        order.sort(key=dues.__getitem__)
        table._load(
            array("Q", map(dues.__getitem__, order)), array("Q", map(seqs.__getitem__, order))
        )
        return table

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (due_ns, seq), rising. Do not change the timetable meanwhile."""
        self._trim()
        for dues, seqs in self._pieces:
            yield from zip(dues, seqs, strict=True)

    @property
    def first(self) -> tuple[int, int] | None:
        """Return the lowest (due_ns, seq)."""
        if not self._pieces:
            return None
        dues, seqs = self._pieces[0]
        return dues[self._removed], seqs[self._removed]

    def lowest(self, count: int) -> tuple[list[int], list[int]]:
        """Return the due times and the seqs of the lowest pairs: at least one, up to `count`."""
        dues, seqs = self._pieces[0]
        some = slice(self._removed, self._removed + count)
        return dues[some].tolist(), seqs[some].tolist()

    def add(self, due_ns: int, seq: int) -> None:
        """Add a pair that is not in it yet."""
        self._count += 1
        if due_ns < self.next_ns:
            self.next_ns = due_ns
        if not self._pieces:
            self._insert_piece(0, array("Q", (due_ns,)), array("Q", (seq,)))
            return
        dues, seqs = self._pieces[-1]
        if len(dues) < _MOST and (
            due_ns > dues[-1] or (due_ns == dues[-1] and seq > seqs[-1])
        ):  # behind all others, as most are
            dues.append(due_ns)
            seqs.append(seq)
            return
        self._trim()
        number = self._piece_of(due_ns, seq)
        dues, seqs = self._pieces[number]
        at = _index(dues, seqs, due_ns, seq)
        if len(dues) >= _MOST:
            if at == len(dues) and number == len(self._pieces) - 1:
                # Behind all others, as most are: begin a new piece and leave the full one full.
                self._insert_piece(number + 1, array("Q", (due_ns,)), array("Q", (seq,)))
                return
            self._halve(number)
            self._count -= 1
            self.add(due_ns, seq)
            return
        dues.insert(at, due_ns)
        seqs.insert(at, seq)
        if at == 0:
            self._heads[number] = due_ns << _SEQ_BITS | seq

    def remove(self, due_ns: int, seq: int) -> bool:
        """Remove a pair. Return False if it is not in it."""
        if not self._pieces:
            return False
        at = self._removed
        dues, seqs = self._pieces[0]
        if seqs[at] == seq and dues[at] == due_ns:  # the first, as most are
            at += 1
            if at < len(dues):
                self._removed = at
                self._count -= 1
                self.next_ns = dues[at]
                return True
        self._trim()
        number = self._piece_of(due_ns, seq)
        dues, seqs = self._pieces[number]
        at = _index(dues, seqs, due_ns, seq)
        if at == len(dues) or seqs[at] != seq or dues[at] != due_ns:
            return False
        del dues[at]
        del seqs[at]
        self._count -= 1
        if at == 0:
            self._first_changed(number)
        return True

    def pop_upto(self, limit_ns: int) -> Iterator[tuple[int, int]]:
        """Remove and yield the pairs that are due by then, rising."""
        self._trim()
        while self.next_ns <= limit_ns:
            dues, seqs = self._pieces[0]
            end = bisect_right(dues, limit_ns)
            popped = list(zip(dues[:end], seqs[:end], strict=True))
            del dues[:end]
            del seqs[:end]
            self._count -= end
            self._first_changed(0)
            yield from popped

    def has_more_upto(self, limit_ns: int, most: int) -> bool:
        """Return whether more than `most` pairs are due by then."""
        count = 0
        self._trim()
        for dues, _ in self._pieces:
            if dues[0] > limit_ns or count > most:
                break
            count += bisect_right(dues, limit_ns)
        return count > most

    def pop_below(self, seq: int) -> list[int]:
        """Remove all pairs with a lower seq. Return their seqs."""
        self._trim()
        gone = [other for _, seqs in self._pieces for other in seqs if other < seq]
        if len(gone) == self._count:
            self.__init__()  # type: ignore[misc]
        elif gone:
            self.__init__([pair for pair in self if pair[1] >= seq])  # type: ignore[misc]
        return gone

    # -- pieces ------------------------------------------------------------------------------------

    def _load(self, dues: "array[int]", seqs: "array[int]") -> None:
        for start in range(0, len(dues), _MOST):
            piece = slice(start, start + _MOST)
            self._insert_piece(len(self._pieces), dues[piece], seqs[piece])
        self._count = len(dues)
        self._note_first()

    def _trim(self) -> None:
        """Move up the pairs of the first piece."""
        removed = self._removed
        if removed:
            dues, seqs = self._pieces[0]
            del dues[:removed], seqs[:removed]
            self._removed = 0
            self._heads[0] = dues[0] << _SEQ_BITS | seqs[0]

    def _piece_of(self, due_ns: int, seq: int) -> int:
        """Return the number of the piece that holds the pair, or should."""
        return max(bisect_right(self._heads, due_ns << _SEQ_BITS | seq) - 1, 0)

    def _insert_piece(self, number: int, dues: "array[int]", seqs: "array[int]") -> None:
        self._pieces.insert(number, (dues, seqs))
        self._heads.insert(number, dues[0] << _SEQ_BITS | seqs[0])

    def _halve(self, number: int) -> None:
        dues, seqs = self._pieces[number]
        half = len(dues) // 2
        self._insert_piece(number + 1, dues[half:], seqs[half:])
        del dues[half:]
        del seqs[half:]

    def _first_changed(self, number: int) -> None:
        """Update a piece whose first pair was removed, or drop it if it is empty."""
        dues, seqs = self._pieces[number]
        if dues:
            self._heads[number] = dues[0] << _SEQ_BITS | seqs[0]
        else:
            del self._pieces[number]
            del self._heads[number]
        if number == 0:
            self._note_first()

    def _note_first(self) -> None:
        self.next_ns = self._pieces[0][0][0] if self._pieces else NEVER_NS


def _index(dues: "array[int]", seqs: "array[int]", due_ns: int, seq: int) -> int:
    """Return the index of the pair in a piece, or where it belongs."""
    low = bisect_left(dues, due_ns)
    if low == len(dues) or dues[low] != due_ns:
        return low
    return bisect_left(seqs, seq, low, bisect_right(dues, due_ns, low))


class Delays:
    """seq -> (due_ns, priority), rising by seq.

    >>> delays = Delays([(7, 300, 5)])
    >>> delays.add(9, 200, 0)
    >>> delays.get(9), delays.pop(7), delays.get(7), list(delays)
    ((200, 0), (300, 5), None, [9])
    """

    __slots__ = ("_due_ns", "_gone", "_next", "_priorities", "_seqs")

    def __init__(self, items: Iterable[tuple[int, int, int]] = ()) -> None:
        self._seqs = array("Q")
        self._due_ns = array("Q")
        self._priorities = bytearray()
        self._gone = 0
        self._next = 0  # the index behind the last one that was removed
        for seq, due_ns, priority in items:
            self.add(seq, due_ns, priority)

    @classmethod
    def load(cls, packed: bytes, known: Container[int]) -> "Delays":
        """Return the delays that `freeze` packed. Raise ValueError if they are invalid."""
        count, rest = divmod(len(packed), _PACKED_BYTES)
        if rest:
            raise ValueError("the delays are cut off")
        delays = cls()
        delays._seqs.frombytes(packed[: 8 * count])
        delays._due_ns.frombytes(packed[8 * count : 16 * count])
        delays._priorities = bytearray(packed[16 * count :])
        seqs = delays._seqs
        if not all(map(lt, seqs, seqs[1:])) or any(seq in known for seq in seqs):
            raise ValueError("a seq is among the delays twice")
        return delays

    def freeze(self) -> "Callable[[], bytes]":
        """Copy the arrays. Return a function that packs the copy, which may run in a thread."""
        return partial(_pack, self._seqs[:], self._due_ns[:], bytes(self._priorities))

    def __len__(self) -> int:
        return len(self._seqs) - self._gone

    @property
    def allocated(self) -> int:
        """Return the number of entries in the arrays, removed ones included."""
        return len(self._seqs)

    def __iter__(self) -> Iterator[int]:
        """Yield the seqs, rising."""
        return compress(self._seqs, (priority != _GONE for priority in self._priorities))

    def timetable(self) -> Timetable:
        """Return a timetable of all entries."""
        self._shrink()
        return Timetable.of(self._due_ns, self._seqs)

    def add(self, seq: int, due_ns: int, priority: int) -> None:
        """Add a message with a seq above all others."""
        self._seqs.append(seq)
        self._due_ns.append(due_ns)
        self._priorities.append(priority)

    def get(self, seq: int) -> tuple[int, int] | None:
        """Return (due_ns, priority) of a message, or None."""
        at = self._find(seq)
        return None if at < 0 else (self._due_ns[at], self._priorities[at])

    def pop(self, seq: int) -> tuple[int, int] | None:
        """Remove a message. Return its (due_ns, priority), or None."""
        at, seqs = self._next, self._seqs
        if at >= len(seqs) or seqs[at] != seq or self._priorities[at] == _GONE:
            at = self._find(seq)
            if at < 0:
                return None
        found = self._due_ns[at], self._priorities[at]
        self._priorities[at] = _GONE
        self._next = at + 1
        self._gone += 1
        if self._gone > len(self._seqs) // 2 + _SPARE:
            self._shrink()
        return found

    def pop_below(self, seq: int) -> None:
        """Remove all messages below a seq."""
        start = bisect_left(self._seqs, seq)
        self._gone -= self._priorities.count(_GONE, 0, start)
        del self._seqs[:start], self._due_ns[:start], self._priorities[:start]

    def _find(self, seq: int) -> int:
        at = bisect_left(self._seqs, seq)
        there = at < len(self._seqs) and self._seqs[at] == seq and self._priorities[at] != _GONE
        return at if there else -1

    def _shrink(self) -> None:
        """Drop removed entries from the arrays."""
        if not self._gone:
            return
        kept = [priority != _GONE for priority in self._priorities]
        self._seqs = array("Q", compress(self._seqs, kept))
        self._due_ns = array("Q", compress(self._due_ns, kept))
        self._priorities = bytearray(compress(self._priorities, kept))
        self._gone = self._next = 0


def _pack(seqs: "array[int]", dues: "array[int]", priorities: bytes) -> bytes:
    """Pack columns without removed entries. In pieces, so that other threads can run."""
    if _GONE not in priorities:
        return b"".join((seqs.tobytes(), dues.tobytes(), priorities))
    kept_seqs, kept_dues = array("Q"), array("Q")
    for start in range(0, len(priorities), _PIECE):
        kept = [priority != _GONE for priority in priorities[start : start + _PIECE]]
        kept_seqs.extend(compress(seqs[start : start + _PIECE], kept))
        kept_dues.extend(compress(dues[start : start + _PIECE], kept))
    left = priorities.translate(None, bytes([_GONE]))
    return b"".join((kept_seqs.tobytes(), kept_dues.tobytes(), left))
