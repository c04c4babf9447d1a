"""Hold the segments of a planned read, so that compaction cannot overtake it.

A mapping keeps the bytes of a segment after its file was removed or replaced. It takes addresses,
and disk space until it is released, but no memory before the bytes are read.
"""

from collections.abc import Iterable
from typing import Self

from penstock.arrow.ranges import Range, range_bytes

MAX_HELD = 10_000  # Linux allows a process 65,530 mappings


class HeldRanges:
    """The bytes of ranges, each of which is read once."""

    def __init__(self, views: dict[Range, memoryview]) -> None:
        self._views = views

    @classmethod
    def hold(cls, ranges: Iterable[Range]) -> Self | None:
        """Hold the first ranges that are in files of this machine, up to MAX_HELD.

        Return None if a segment was removed or rewritten since the ranges were planned.
        """
        views: dict[Range, memoryview] = {}
        for one in ranges:
            if len(views) == MAX_HELD:
                break
            if one.info.queue.url or not one.intact:  # fetched, or read by the ledger's reader
                continue
            view = range_bytes(one)
            if view is None:
                return None
            views[one] = view
        return cls(views)

    def take(self, one: Range) -> memoryview | None:
        """Return the bytes of a range, and release them here. None if its segment has changed."""
        view = self._views.pop(one, None)
        return range_bytes(one) if view is None else view
