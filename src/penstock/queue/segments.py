"""A queue's files as others may read them, and what others put beside them.

For readers that want the log itself and not its messages one by one: the data pipeline. Only what
is durable is told of. What they write is staged first, and adopted as a whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

LogName = Literal["messages", "events", "snapshots"]
MAX_RANGE_BYTES = 8 << 20  # of one read, and of one write to the staging area
MAX_STAGED_SEGMENT_BYTES = 2 << 30
MAX_STAGED_SEGMENTS = 100_000  # of one adoption


class SegmentInfo(NamedTuple):
    """A segment, and how far it may be read."""

    base_seq: int
    end_seq: int  # one above the last seq it stands for
    size_bytes: int  # that are on disk for good
    header: bytes  # a rewritten segment has another one


class LogInfo(NamedTuple):
    """The segments of a log, oldest first."""

    low: int  # entries below it were removed
    next_seq: int  # one above the last entry that is durable
    segments: Sequence[SegmentInfo]
    seq_at_time: int | None = None  # the first entry at or after the time that was asked for


class SnapshotInfo(NamedTuple):
    """A saved state: the fold of all events up to one."""

    event_seq: int
    size_bytes: int


class QueueSegments(NamedTuple):
    """All files of a queue that a reader needs, at one moment."""

    identity: int
    created_at_ns: int
    settings: Mapping[str, Any]
    messages: LogInfo
    events: LogInfo
    snapshots: Sequence[SnapshotInfo]


class SegmentBytes(NamedTuple):
    """A range of a segment."""

    header: bytes  # of the very file that the range is from; empty for a snapshot
    data: bytes


class StagingInfo(NamedTuple):
    """What one must know to write segments for a queue."""

    identity: int
    settings: Mapping[str, Any]
    applications: Sequence[str] = ()  # that were asked for, and have a transaction in the queue


class StagedSegment(NamedTuple):
    """A segment that was staged."""

    folder: str
    name: str
    entries: int


class Adoption(NamedTuple):
    """What came of an adoption."""

    first_seq: int
    entries: int
    repeated: bool  # the transaction was there already, and nothing was done
