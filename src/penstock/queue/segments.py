"""The files of a queue as the data pipeline reads them, and the segments it stages.

Readers see only what is durable. Segments that they write are staged first and adopted as a whole.
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
    size_bytes: int  # durable bytes
    header: bytes  # changes when the segment is rewritten


class LogInfo(NamedTuple):
    """The segments of a log, oldest first."""

    low: int  # entries below it were removed
    next_seq: int  # one above the last entry that is durable
    segments: Sequence[SegmentInfo]
    seq_at_time: int | None = None  # the first entry at or after the requested time


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
    archive: str = ""  # location of the queue's archive; empty: none is on record
    archived_as: str = ""  # name of the queue in it
    archive_damage: str = ""  # why the record of the archive cannot be read
    archived_upto: int = 1  # all messages below this seq are archived


class SegmentBytes(NamedTuple):
    """A range of a segment."""

    header: bytes  # of the file that was read; empty for a snapshot
    data: bytes


class StagingInfo(NamedTuple):
    """The facts that a writer of segments needs."""

    identity: int
    settings: Mapping[str, Any]
    applications: Sequence[str] = ()  # of those asked for: have a transaction in the queue


class StagedSegment(NamedTuple):
    """A segment that was staged."""

    folder: str
    name: str
    entries: int


class Adoption(NamedTuple):
    """The result of an adoption."""

    first_seq: int
    entries: int
    repeated: bool  # the transaction was adopted before; nothing was done
