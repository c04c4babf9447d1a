"""What the broker says of a queue's files: the words of the queue layer, for the transports."""

from penstock.queue.segments import (
    MAX_RANGE_BYTES,
    MAX_STAGED_SEGMENT_BYTES,
    MAX_STAGED_SEGMENTS,
    Adoption,
    LogInfo,
    LogName,
    QueueSegments,
    SegmentBytes,
    SegmentInfo,
    SnapshotInfo,
    StagedSegment,
    StagingInfo,
)

__all__ = [
    "MAX_RANGE_BYTES",
    "MAX_STAGED_SEGMENTS",
    "MAX_STAGED_SEGMENT_BYTES",
    "Adoption",
    "LogInfo",
    "LogName",
    "QueueSegments",
    "SegmentBytes",
    "SegmentInfo",
    "SnapshotInfo",
    "StagedSegment",
    "StagingInfo",
]
