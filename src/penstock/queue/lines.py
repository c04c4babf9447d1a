"""Messages of the same key wait in line: one at a time, in order of their seqs."""

from bisect import bisect
from collections import deque
from itertools import islice


class Lines:
    """key -> seqs, the first one's turn is now.

    Whoever is first is being worked on, or is the lowest. So it makes no difference whether the
    later ones of the key are not published yet, as live, or known already, as at recovery.

    >>> lines = Lines()
    >>> lines.join(b"k", 1), lines.join(b"k", 2), lines.join(b"k", 3)
    (True, False, False)
    >>> lines.ahead(b"k", 3), lines.leave(b"k", 1), lines.leave(b"k", 3)
    ([1, 2], 2, None)
    """

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[bytes, deque[int]] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def join(self, key: bytes, seq: int) -> bool:
        """Take the place among those that wait behind the first; True: there is no one else."""
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = deque([seq])
            return True
        if seq > line[-1] or len(line) == 1:
            line.append(seq)
        else:
            line.insert(bisect(line, seq, 1), seq)
        return False

    def leave(self, key: bytes, seq: int) -> int | None:
        """Go, from wherever in the line; whose turn it is now, if it was the first that went."""
        line = self._lines.get(key)
        if line is None:
            return None
        if line[0] != seq:
            try:
                line.remove(seq)
            except ValueError:
                pass  # a dead letter, which is in no line
            return None
        line.popleft()
        if line:
            return line[0]
        del self._lines[key]
        return None

    def first_behind(self, key: bytes) -> int | None:
        """The first, if it is behind one that has a lower seq."""
        line = self._lines.get(key)
        if line is None or len(line) == 1 or line[0] < line[1]:
            return None
        return line[0]

    def ahead(self, key: bytes, seq: int) -> list[int]:
        """Those that go before it."""
        line = self._lines[key]
        return list(islice(line, line.index(seq)))
