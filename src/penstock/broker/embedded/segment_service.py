"""The files of an open queue, for those who read them from elsewhere. In a thread."""

from penstock.broker.segments import (
    MAX_RANGE_BYTES,
    LogInfo,
    LogName,
    QueueSegments,
    SegmentBytes,
    SegmentInfo,
    SnapshotInfo,
)
from penstock.checking import check_whole
from penstock.errors import EntryGone, InvalidInput, NoSuchSegment, TooLarge
from penstock.ledger import seq_at_time
from penstock.ledger.folder import Folder, read_fully
from penstock.ledger.log import Log
from penstock.ledger.segment import Segment
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.ledger.snapshots import snapshot_name
from penstock.queue.core import QueueCore

_NEVER_NS = (1 << 63) - 1


def list_segments(core: QueueCore, time_ns: int | None) -> QueueSegments:
    """What is there, all of it durable: what is not yet is synced first, whatever the policy."""
    ledger = core.ledger
    ledger.check_open()
    if time_ns is not None:
        check_whole("time_ns", time_ns, 0, _NEVER_NS)
    if not ledger.is_stopped:
        ledger.sync()
    # Events first: they speak of messages, and these must not be missing from the answer.
    events = _log_info(core, ledger.events, time_ns)
    return QueueSegments(
        ledger.identity,
        ledger.created_at_ns,
        core.settings.as_dict(),
        _log_info(core, ledger.messages, time_ns),
        events,
        _snapshots(core),
    )


def _log_info(core: QueueCore, log: Log, time_ns: int | None) -> LogInfo:
    found, next_seq = log.durable_segments()
    ends = [*(segment.base_seq for segment, _ in found[1:]), next_seq][: len(found)]
    at = None if time_ns is None else min(seq_at_time(log, time_ns), next_seq)
    segments = [
        SegmentInfo(segment.base_seq, max(end_seq, segment.base_seq), size, segment.header.pack())
        for (segment, size), end_seq in zip(found, ends, strict=True)
    ]
    return LogInfo(core.ledger.marks(log).low, next_seq, segments, at)


def _snapshots(core: QueueCore) -> list[SnapshotInfo]:
    found = []
    for event_seq in core.ledger.snapshot_seqs():
        try:
            found.append(SnapshotInfo(event_seq, _size(core, snapshot_name(event_seq))))
        except FileNotFoundError:
            continue  # a newer one took its place
    return found


def _size(core: QueueCore, name: str) -> int:
    folder = _folder(core).child("snapshots")
    fd = folder.files.open(folder.file(name), "read")
    try:
        return folder.files.size(fd)
    finally:
        folder.files.close(fd)


def _folder(core: QueueCore) -> Folder:
    return Folder(core.ledger.messages.folder.files, core.ledger.path)


def read_segment(
    core: QueueCore, log: LogName, base: int, start: int, end: int | None
) -> SegmentBytes:
    """The bytes [start, end) of a segment or snapshot; without an end, up to where it ends."""
    core.ledger.check_open()
    if log == "snapshots":
        return SegmentBytes(b"", _read(core, log, snapshot_name(base), start, end, None)[1])
    segment, size = _segment(core, log, base)
    header, data = _read(core, log, segment.name, start, end, size)
    return SegmentBytes(header, data)


def _read(
    core: QueueCore, log: LogName, name: str, start: int, end: int | None, size: int | None
) -> tuple[bytes, bytes]:
    folder = _folder(core).child(log)
    files = folder.files
    try:
        fd = files.open(folder.file(name), "read")
    except FileNotFoundError:
        raise _gone(log, name) from None
    try:
        last = files.size(fd) if size is None else size
        first, end = _checked(name, start, end, last)
        data = read_fully(files, fd, end - first, first)
        if len(data) < end - first:
            raise _gone(log, name)  # rewritten since it was listed, and shorter now
        # From the same file: whoever asked can tell whether it is the one that was listed.
        return read_fully(files, fd, HEADER_BYTES, 0), data
    finally:
        files.close(fd)


def _checked(name: str, start: int, end: int | None, size: int) -> tuple[int, int]:
    end = size if end is None else end
    if not 0 <= start <= end <= size:
        raise InvalidInput(
            f"bytes {start} to {end} of {name} were asked for, which has {size} bytes that may be "
            f"read: ask for a part of these"
        )
    if end - start > MAX_RANGE_BYTES:
        raise TooLarge(
            f"bytes {start} to {end} of {name} are {end - start}; the most of one call is "
            f"{MAX_RANGE_BYTES}: ask for them one after another"
        )
    return start, end


def read_index(core: QueueCore, log: LogName, base: int) -> bytes:
    """The sparse index of a segment, as its file has it, up to now."""
    core.ledger.check_open()
    if log == "snapshots":
        raise InvalidInput("a snapshot has no index")
    segment, _ = _segment(core, log, base)
    _log(core, log).publish_tail()
    try:
        return segment.packed_index()
    except EntryGone:
        raise _gone(log, segment.name) from None


def _segment(core: QueueCore, log: LogName, base: int) -> tuple[Segment, int]:
    for segment, size in reversed(_log(core, log).durable_segments()[0]):
        if segment.base_seq == base:
            return segment, size
    raise _gone(log, f"that begins with seq {base}")


def _log(core: QueueCore, log: LogName) -> Log:
    return core.ledger.messages if log == "messages" else core.ledger.events


def _gone(log: str, name: str) -> NoSuchSegment:
    return NoSuchSegment(
        f"there is no segment {name} in {log} (any more): retention and compaction remove and "
        f"rewrite them; list the segments again"
    )
