"""The order of messages that have the same key."""

from bisect import bisect
from collections import deque
from itertools import islice


class KeyOrder:
    """The unsettled messages of each key. One at a time is delivered, in seq order.

    The first message of a key is being worked on, or has the lowest seq. So it does not matter
    whether later ones are published yet, as live, or known already, as at recovery.

    >>> keys = KeyOrder()
    >>> keys.join(b"k", 1), keys.join(b"k", 2), keys.join(b"k", 3)
    (True, False, False)
    >>> keys.ahead(b"k", 3), keys.leave(b"k", 1), keys.leave(b"k", 3)
    ([1, 2], 2, None)
    """

    __slots__ = ("seqs",)

    def __init__(self) -> None:
        self.seqs: dict[bytes, deque[int]] = {}  # by key

    def join(self, key: bytes, seq: int) -> bool:
        """Add a message behind the first. Return True if there is no other of its key."""
        seqs = self.seqs.get(key)
        if seqs is None:
            self.seqs[key] = deque([seq])
            return True
        if seq > seqs[-1] or len(seqs) == 1:
            seqs.append(seq)
        else:
            seqs.insert(bisect(seqs, seq, 1), seq)
        return False

    def leave(self, key: bytes, seq: int) -> int | None:
        """Remove a message. Return the next of its key if the first was removed."""
        seqs = self.seqs.get(key)
        if seqs is None:
            return None
        if seqs[0] != seq:
            try:
                seqs.remove(seq)
            except ValueError:
                pass  # a dead letter, which is not in the order
            return None
        if len(seqs) == 1:
            del self.seqs[key]
            return None
        seqs.popleft()
        return seqs[0]

    def first_behind(self, key: bytes) -> int | None:
        """Return the first message of a key if the second has a lower seq."""
        seqs = self.seqs.get(key)
        if seqs is None or len(seqs) == 1 or seqs[0] < seqs[1]:
            return None
        return seqs[0]

    def ahead(self, key: bytes, seq: int) -> list[int]:
        """Return the messages of a key that are delivered before one of them."""
        seqs = self.seqs[key]
        return list(islice(seqs, seqs.index(seq)))
