"""Messages by when they are due: a rising set of (due time, seq), packed, 16 bytes each.

In pieces of bounded length, so that adding or taking out anywhere moves little. Nothing in it is
ever out of date: what leaves, leaves at once.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

NEVER_NS = 1 << 64
_MOST = 1024  # in one piece
_SEQ_BITS = 64


class Timetable:
    """A sorted set of (due_ns, seq).

    >>> table = Timetable([(30, 1), (10, 2), (20, 3)])
    >>> table.next_ns, list(table)
    (10, [(10, 2), (20, 3), (30, 1)])
    >>> table.remove(10, 2), table.remove(10, 2)
    (True, False)
    >>> list(table.pop_upto(25)), len(table), table.next_ns
    ([(20, 3)], 1, 30)
    """

    __slots__ = ("_count", "_heads", "_pieces", "next_ns")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._pieces: list[tuple[array[int], array[int]]] = []  # due times, seqs; none is empty
        self._heads: list[int] = []  # the first of each piece, as one number
        self._count = 0
        self.next_ns = NEVER_NS  # the first due time; kept, because it is asked for most
        ordered = sorted(pairs)
        self._load(
            array("Q", [due_ns for due_ns, _ in ordered]), array("Q", [seq for _, seq in ordered])
        )

    @classmethod
    def of(cls, dues: "array[int]", seqs: "array[int]") -> "Timetable":
        """From columns, the seqs rising; made for a million at once."""
        table = cls()
        # By floats first, which are quick to compare and right to 256 ns; then the rest is little.
        order = sorted(range(len(dues)), key=[float(due_ns) for due_ns in dues].__getitem__)
        order.sort(key=dues.__getitem__)
        table._load(
            array("Q", map(dues.__getitem__, order)), array("Q", map(seqs.__getitem__, order))
        )
        return table

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(due_ns, seq), rising. Do not change it meanwhile."""
        for dues, seqs in self._pieces:
            yield from zip(dues, seqs, strict=True)

    @property
    def first(self) -> tuple[int, int] | None:
        """The (due_ns, seq) that comes first."""
        if not self._pieces:
            return None
        dues, seqs = self._pieces[0]
        return dues[0], seqs[0]

    def add(self, due_ns: int, seq: int) -> None:
        """Put in what is not there yet."""
        self._count += 1
        if due_ns < self.next_ns:
            self.next_ns = due_ns
        if not self._pieces:
            self._insert_piece(0, array("Q", (due_ns,)), array("Q", (seq,)))
            return
        number = self._piece_of(due_ns, seq)
        dues, seqs = self._pieces[number]
        at = _place(dues, seqs, due_ns, seq)
        if len(dues) >= _MOST:
            if at == len(dues) and number == len(self._pieces) - 1:
                # Behind all others, as most come: a new piece, and the full one stays full.
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
        """Take one out; False if it is not there."""
        if not self._pieces:
            return False
        number = self._piece_of(due_ns, seq)
        dues, seqs = self._pieces[number]
        at = _place(dues, seqs, due_ns, seq)
        if at == len(dues) or seqs[at] != seq or dues[at] != due_ns:
            return False
        del dues[at]
        del seqs[at]
        self._count -= 1
        if at == 0:
            self._first_changed(number)
        return True

    def pop_upto(self, limit_ns: int) -> Iterator[tuple[int, int]]:
        """Take out all that is due by then, rising."""
        while self.next_ns <= limit_ns:
            dues, seqs = self._pieces[0]
            end = bisect_right(dues, limit_ns)
            popped = list(zip(dues[:end], seqs[:end], strict=True))
            del dues[:end]
            del seqs[:end]
            self._count -= end
            self._first_changed(0)
            yield from popped

    def pop_below(self, seq: int) -> list[int]:
        """Take out all with a seq below that one; their seqs."""
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

    def _piece_of(self, due_ns: int, seq: int) -> int:
        """The piece in which it is, or belongs."""
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
        """The first of a piece was taken out: the piece begins with another, or is no more."""
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


def _place(dues: "array[int]", seqs: "array[int]", due_ns: int, seq: int) -> int:
    """Where in a piece it is, or belongs."""
    low = bisect_left(dues, due_ns)
    if low == len(dues) or dues[low] != due_ns:
        return low
    return bisect_left(seqs, seq, low, bisect_right(dues, due_ns, low))
