"""The next messages of a group, found some ahead. Pure: no file, no clock, no lock."""

from bisect import bisect
from operator import neg

from penstock.queue.schedule import NEVER_NS

_FIRST_AHEAD, _MOST_AHEAD = 2, 128  # messages that are found at once
_SEQ_BITS = 64


class Upcoming:
    """The next messages of a group in the order of their delivery, found some ahead.

    Finding them compares lanes, due times and ages, which is quick for many messages at once. A
    message that is added later keeps the list valid if it comes after all of it: its priority is
    not higher than any in the list, and it is younger than all of them. Otherwise it is inserted if
    all are of its priority; or else the list is cut before it, or cleared, and found again when it
    is needed.
    """

    __slots__ = (
        "_is_fresh",
        "_lowest_priority",
        "_places",
        "_since_ns",
        "count",
        "seqs",
        "until_ns",
    )

    def __init__(self) -> None:
        self.seqs: list[int] = []  # the next one last
        self.count = _FIRST_AHEAD  # how many to find next
        self.until_ns = 0  # when a message may have aged enough to come first
        # Negative (since_ns, seq) of each, if the oldest comes first. The since_ns is 0 if all are
        # due since they were published: then the seqs have their order. They are made from
        # `_since_ns` when they are needed; those of messages that were taken are removed late.
        self._places: list[int] | None = []
        self._since_ns: list[int] = []
        self._is_fresh = False  # they are, and of one lane
        self._lowest_priority = 0

    def fill(
        self,
        seqs: list[int],
        since_ns: list[int],
        *,
        is_fresh: bool,
        lowest_priority: int,
        until_ns: int,
    ) -> None:
        """Set the list, the next first. `since_ns` is empty if it is unknown or not rising."""
        self._is_fresh, self._since_ns, self._places = is_fresh, since_ns, None
        since_ns.reverse()
        seqs.reverse()
        self.seqs = seqs
        self._lowest_priority, self.until_ns = lowest_priority, until_ns
        self.count = min(2 * self.count, _MOST_AHEAD)

    def added(self, priority: int, since_ns: int, seq: int) -> None:
        """Note a message that has been ready since a time.

        NEVER_NS: it was just published. 0: it is ready since it was published, earlier.
        """
        if not self.seqs or (priority <= self._lowest_priority and since_ns == NEVER_NS):
            return
        places = self._places
        if places is None:
            found = (
                map(neg, self.seqs) if self._is_fresh else map(_place, self._since_ns, self.seqs)
            )
            places = self._places = list(found)
        if priority > self._lowest_priority or not places or self._is_fresh is (since_ns > 0):
            self.clear()
            return
        place = -(since_ns << _SEQ_BITS | seq)
        if place <= places[0]:
            return
        del places[len(self.seqs) :]
        younger = bisect(places, place)
        if priority == self._lowest_priority:
            places.insert(younger, place)
            self.seqs.insert(younger, seq)
            if len(places) > 2 * _MOST_AHEAD:
                del self.seqs[:_MOST_AHEAD], places[:_MOST_AHEAD]
        else:
            del self.seqs[:younger], places[:younger]
            self.count = max(len(self.seqs), _FIRST_AHEAD)

    def taken(self, first: int, end: int) -> None:
        """Note that messages [first, end) are not ready any more."""
        seqs = self.seqs
        if seqs:
            if seqs[-1] == first and end == first + 1:
                seqs.pop()
            else:
                self.clear()

    def clear(self) -> None:
        self.seqs.clear()
        self._places = []
        self.count = _FIRST_AHEAD


def _place(since_ns: int, seq: int) -> int:
    return -(since_ns << _SEQ_BITS | seq)
