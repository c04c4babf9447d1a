"""Offsets of a streaming query: for each queue the next seq to read.

A seq says it all: where it lies in the files is looked up in the index, since compaction moves
bytes. Spark compares offsets as JSON text, so keys are always in order.
"""

from collections.abc import Mapping, Sequence

from penstock.errors import InvalidInput
from penstock.spark.ranges import Points
from penstock.spark.segments import LogView

OffsetDict = dict[str, int]
# Of a query that began at "earliest" or a time: up to which seq the log was written by then. What
# was removed before that is no loss. No name of a queue has two slashes in a row.
_BACKLOG = "//backlog"


def in_order(offsets: Mapping[str, int]) -> OffsetDict:
    return {key: offsets[key] for key in sorted(offsets)}


def checked(offsets: object) -> OffsetDict:
    """Offsets from a checkpoint; InvalidInput if they are not ours."""
    if not isinstance(offsets, dict) or not all(
        isinstance(key, str) and isinstance(seq, int) for key, seq in offsets.items()
    ):
        raise InvalidInput(
            f"the checkpoint's offsets are not those of a penstock source: {str(offsets)[:200]}"
        )
    return in_order(offsets)


def split(offsets: OffsetDict) -> tuple[OffsetDict, OffsetDict]:
    """Return the next seq of each queue, and the end of the backlog of those that have one."""
    seqs = {key: seq for key, seq in offsets.items() if not key.endswith(_BACKLOG)}
    backlog = {
        key.removesuffix(_BACKLOG): seq for key, seq in offsets.items() if key.endswith(_BACKLOG)
    }
    return seqs, backlog


def joined(seqs: Mapping[str, int], backlog: Mapping[str, int]) -> OffsetDict:
    """Return offsets that say both. A backlog that was read is left out."""
    left = {f"{key}{_BACKLOG}": end for key, end in backlog.items() if seqs.get(key, end) < end}
    return in_order({**seqs, **left})


def within_rows(start: Mapping[str, int], end: Mapping[str, int], max_rows: int) -> OffsetDict:
    """An end that is at most so many seqs from the start, each queue having its share."""
    waiting = {key: end[key] - start.get(key, end[key]) for key in end}
    total = sum(waiting.values())
    if total <= max_rows:
        return in_order(end)
    limited = {}
    left = max_rows
    for key in sorted(end):
        share = min(waiting[key] * max_rows // total, left)
        limited[key] = end[key] - waiting[key] + share
        left -= share
    for key in sorted(end):  # what rounding left over
        more = min(left, end[key] - limited[key])
        limited[key] += more
        left -= more
    return limited


def within_bytes(
    views: Sequence[LogView], start: Mapping[str, int], end: Mapping[str, int], max_bytes: int
) -> OffsetDict:
    """An end that is about so many bytes from the start, at least one step of the index."""
    limited = dict(end)
    share = max(max_bytes // max(len(views), 1), 1)
    for view in views:
        key = view.facts.queue.key
        limited[key] = _seq_after_bytes(view, start.get(key, end[key]), end[key], share)
    return in_order(limited)


def _seq_after_bytes(view: LogView, start: int, end: int, max_bytes: int) -> int:
    """The last place of the index within so many bytes from the start; at least the first one."""
    used, reached = 0, start
    for span in view.spans:
        if span.end_seq <= start or span.header.base_seq >= end:
            continue
        points = Points(view, span)
        at = points.before_seq(max(start, span.header.base_seq))
        origin = points.offsets[at]
        places = zip(
            [*points.seqs[at + 1 :], span.end_seq],
            [*points.offsets[at + 1 :], span.end],
            strict=True,
        )
        for seq, offset in places:
            if seq <= start:
                continue
            if used + offset - origin > max_bytes:
                return min(reached if reached > start else seq, end)
            reached = seq
        used += span.end - origin
    return end
