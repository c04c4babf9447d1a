"""The segments of one log, in order, with a bound on how many are open."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from itertools import repeat

from penstock.ledger.segment import Segment
from penstock.locks import Lock


class SegmentList:
    """Readers take `all` as it is; writers put a new tuple in its place."""

    def __init__(self, segments: Iterable[Segment], *, max_open: int) -> None:
        self.all: tuple[Segment, ...] = tuple(segments)
        self._bases = [segment.base_seq for segment in self.all]
        self._max_open = max_open
        self._open: OrderedDict[int, Segment] = OrderedDict()  # by id, last used last
        self._lock = Lock()
        self._sealed: tuple[tuple[Segment, ...], int] = (), 0  # with their bytes but for the last

    @property
    def last(self) -> Segment | None:
        return self.all[-1] if self.all else None

    def size_bytes(self) -> int:
        """Bytes of all segments. Those of all but the last are added up once: they do not grow."""
        segments, sealed = self._sealed
        if segments is not self.all:
            segments = self.all
            sealed = sum(segment.end for segment in segments[:-1])
            self._sealed = segments, sealed
        return sealed + segments[-1].end if segments else 0

    def add(self, *new: Segment) -> None:
        """Add segments behind the last one."""
        with self._lock:
            self._replace([*self.all, *new])

    def drop(self, gone: Iterable[Segment]) -> None:
        """Remove segments from the list."""
        bases = {segment.base_seq for segment in gone}
        with self._lock:
            self._replace([each for each in self.all if each.base_seq not in bases])

    def merge(self, run: Iterable[Segment], new: Segment) -> None:
        """Replace a run of neighbours by one segment with the base seq of the first."""
        bases = {segment.base_seq for segment in run} - {new.base_seq}
        with self._lock:
            self._replace(
                [
                    new if each.base_seq == new.base_seq else each
                    for each in self.all
                    if each.base_seq not in bases
                ]
            )

    def next_base_seq(self, base_seq: int) -> int | None:
        """Return the base seq of the next segment; None if this is the last."""
        bases = self._bases
        at = bisect_right(bases, base_seq)
        return bases[at] if at < len(bases) else None

    def holding(self, seq: int) -> Segment | None:
        """Return the segment whose range holds a seq; None if it lies before the first."""
        with self._lock:
            at = bisect_right(self._bases, seq)
            return self._used(self.all[at - 1]) if at else None

    def after(self, segment: Segment) -> Segment | None:
        """Return the next segment by seq, even if `segment` is no longer in the list."""
        with self._lock:
            at = bisect_right(self._bases, segment.base_seq)
            return self._used(self.all[at]) if at < len(self.all) else None

    def used(self, segment: Segment) -> Segment:
        """Note that a segment is being read, so that it stays open."""
        with self._lock:
            return self._used(segment)

    def close(self) -> None:
        with self._lock:
            for segment in self.all:
                segment.close()
            self._open.clear()

    def _replace(self, segments: list[Segment]) -> None:
        new, bases = tuple(segments), [segment.base_seq for segment in segments]
        kept = {id(segment) for segment in segments}
        gone = [segment for segment in self.all if id(segment) not in kept]
        # Seen together, also after an interrupt: that comes between calls, and here is only one.
        marking = map(setattr, gone, repeat("gone"), repeat(True))
        self.all, self._bases = new, bases
        list(marking)
        for segment in gone:
            self._open.pop(id(segment), None)

    def _used(self, segment: Segment) -> Segment:
        opened = self._open
        if next(reversed(opened), None) != id(segment):
            opened[id(segment)] = segment
            opened.move_to_end(id(segment))
            if len(opened) > self._max_open:
                opened.popitem(last=False)[1].close()
        return segment
