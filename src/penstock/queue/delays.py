"""When messages that were published with a delay are due, by seq, and at which priority.

Only of those of which nothing else is remembered: never leased, without key. Packed, 17 bytes each.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from itertools import compress
from operator import lt

from penstock.queue.timetable import Timetable

_GONE = 0xFF  # instead of a priority: it left
_PACKED_BYTES = 17  # seq, due time, priority
_PIECE = 8192  # packed in one go
_SPARE = 512  # so many may be gone before the arrays are moved up


class Delays:
    """seq -> (due_ns, priority), rising by seq.

    >>> delays = Delays([(7, 300, 5)])
    >>> delays.add(9, 200, 0)
    >>> delays.get(9), delays.pop(7), delays.get(7), list(delays)
    ((200, 0), (300, 5), None, [9])
    """

    __slots__ = ("_due_ns", "_gone", "_priorities", "_seqs")

    def __init__(self, items: Iterable[tuple[int, int, int]] = ()) -> None:
        self._seqs = array("Q")
        self._due_ns = array("Q")
        self._priorities = bytearray()
        self._gone = 0
        for seq, due_ns, priority in items:
            self.add(seq, due_ns, priority)

    @classmethod
    def load(cls, packed: bytes, known: Container[int]) -> "Delays":
        """What was packed; ValueError if that is no such thing."""
        count, rest = divmod(len(packed), _PACKED_BYTES)
        if rest:
            raise ValueError("these are no delays")
        delays = cls()
        delays._seqs.frombytes(packed[: 8 * count])
        delays._due_ns.frombytes(packed[8 * count : 16 * count])
        delays._priorities = bytearray(packed[16 * count :])
        seqs = delays._seqs
        if not all(map(lt, seqs, seqs[1:])) or any(seq in known for seq in seqs):
            raise ValueError("these are no delays: a seq is there twice")
        return delays

    def freeze(self) -> "Callable[[], bytes]":
        """What packs all of it, as it is now; that takes long where there are many, and may be done
        while things go on."""
        return partial(_pack, self._seqs[:], self._due_ns[:], bytes(self._priorities))

    def __len__(self) -> int:
        return len(self._seqs) - self._gone

    def __iter__(self) -> Iterator[int]:
        """The seqs, rising."""
        return compress(self._seqs, (priority != _GONE for priority in self._priorities))

    def timetable(self) -> Timetable:
        """All of them, by when they are due."""
        self._move_up()
        return Timetable.of(self._due_ns, self._seqs)

    def add(self, seq: int, due_ns: int, priority: int) -> None:
        """A message was published; its seq is above all that are there."""
        self._seqs.append(seq)
        self._due_ns.append(due_ns)
        self._priorities.append(priority)

    def get(self, seq: int) -> tuple[int, int] | None:
        """(due_ns, priority) of a message, if it is here."""
        at = self._find(seq)
        return None if at < 0 else (self._due_ns[at], self._priorities[at])

    def pop(self, seq: int) -> tuple[int, int] | None:
        """The same, and forget it."""
        at = self._find(seq)
        if at < 0:
            return None
        found = self._due_ns[at], self._priorities[at]
        self._priorities[at] = _GONE
        self._gone += 1
        if self._gone > len(self._seqs) // 2 + _SPARE:
            self._move_up()
        return found

    def pop_below(self, seq: int) -> None:
        """Forget all below a seq."""
        start = bisect_left(self._seqs, seq)
        self._gone -= self._priorities.count(_GONE, 0, start)
        del self._seqs[:start], self._due_ns[:start], self._priorities[:start]

    def _find(self, seq: int) -> int:
        at = bisect_left(self._seqs, seq)
        there = at < len(self._seqs) and self._seqs[at] == seq and self._priorities[at] != _GONE
        return at if there else -1

    def _move_up(self) -> None:
        """Forget those that are gone for good."""
        if not self._gone:
            return
        kept = [priority != _GONE for priority in self._priorities]
        self._seqs = array("Q", compress(self._seqs, kept))
        self._due_ns = array("Q", compress(self._due_ns, kept))
        self._priorities = bytearray(compress(self._priorities, kept))
        self._gone = 0


def _pack(seqs: "array[int]", dues: "array[int]", priorities: bytes) -> bytes:
    """In columns, without those that are gone. Piece by piece: other threads want to run."""
    if _GONE not in priorities:
        return b"".join((seqs.tobytes(), dues.tobytes(), priorities))
    kept_seqs, kept_dues = array("Q"), array("Q")
    for start in range(0, len(priorities), _PIECE):
        kept = [priority != _GONE for priority in priorities[start : start + _PIECE]]
        kept_seqs.extend(compress(seqs[start : start + _PIECE], kept))
        kept_dues.extend(compress(dues[start : start + _PIECE], kept))
    left = priorities.translate(None, bytes([_GONE]))
    return b"".join((kept_seqs.tobytes(), kept_dues.tobytes(), left))
