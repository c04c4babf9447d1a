"""The files of an open queue: read by others as segments, and segments staged and adopted."""

from asyncio import Future
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from penstock.checking import check_whole
from penstock.errors import DiskFull, EntryGone, InvalidInput, NoSuchSegment, TooLarge
from penstock.ledger import seq_at_time
from penstock.ledger.adoption import applications, sweep_staging
from penstock.ledger.files import as_ledger_error
from penstock.ledger.folder import Folder, read_fully, write_fully
from penstock.ledger.log import Log
from penstock.ledger.segment import Segment
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.ledger.snapshots import snapshot_name
from penstock.ledger.staging import STAGING, Staged, check_folder_name, check_segment_name
from penstock.locks import Lock
from penstock.queue.adopting import adopt_staged, check_transaction, refuse_bounds
from penstock.queue.compaction import archived_note, note_archived
from penstock.queue.core import QueueCore
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

_T = TypeVar("_T")


class InThread(Protocol):
    """Does what takes long beside the event loop."""

    def __call__(
        self,
        work: Callable[[], _T],
        *,
        writes: bool = False,
        after: Callable[[], None] | None = None,
    ) -> Future[_T]: ...


class QueueFiles:
    """The files of one queue. Called in the event loop, like the queue itself."""

    def __init__(self, core: QueueCore, in_thread: InThread) -> None:
        self._core = core
        self._in_thread = in_thread
        self._written: Counter[str] = Counter()  # folders that are being written to
        self._adopted: Counter[str] = Counter()  # folders that are being adopted
        # What is announced in transactions.json is of one adoption at a time.
        self._adopting = Lock()

    # -- reading -----------------------------------------------------------------------------------

    def segments(self, time_ns: int | None) -> Future[QueueSegments]:
        return self._in_thread(lambda: _list_segments(self._core, time_ns))

    def read_segment(
        self, log: LogName, base: int, start: int, end: int | None
    ) -> Future[SegmentBytes]:
        return self._in_thread(lambda: _read_segment(self._core, log, base, start, end))

    def read_index(self, log: LogName, base: int) -> Future[bytes]:
        return self._in_thread(lambda: _read_index(self._core, log, base))

    def note_archived(self, upto: int, archive: str = "", archived_as: str = "") -> Future[None]:
        def note() -> None:
            ledger = self._core.ledger
            ledger.check_writable()
            next_seq = ledger.messages.durable_next_seq
            note_archived(
                _folder(self._core),
                ledger.identity,
                upto,
                next_seq=next_seq,
                archive=archive,
                archived_as=archived_as,
            )

        return self._in_thread(note)

    # -- writing -----------------------------------------------------------------------------------

    def staging(self, applications_with: str | None) -> Future[StagingInfo]:
        def staging() -> StagingInfo:
            core = self._core
            core.ledger.check_writable()
            refuse_bounds(core.settings, "the queue")
            _folder(self._core).child(STAGING).make()
            found: list[str] = []
            if applications_with is not None:
                with self._adopting:
                    found = applications(core.ledger, applications_with)
            return StagingInfo(core.ledger.identity, core.settings.as_dict(), found)

        return self._in_thread(staging)

    def stage(self, folder: str, name: str, offset: int, data: bytes) -> Future[None]:
        check_folder_name(folder)
        check_segment_name(name)
        if len(data) > MAX_RANGE_BYTES:
            raise TooLarge(
                f"{len(data)} bytes of a segment; the maximum of one call is {MAX_RANGE_BYTES}"
            )
        if not 0 <= offset <= MAX_STAGED_SEGMENT_BYTES - len(data):
            raise TooLarge(
                f"the part would end at {offset + len(data)}; a segment has at most "
                f"{MAX_STAGED_SEGMENT_BYTES} bytes"
            )
        if self._adopted[folder]:
            raise InvalidInput(f"{folder} is being adopted: nothing can be written to it any more")
        self._written[folder] += 1
        return self._in_thread(
            lambda: self._stage(folder, name, offset, data),
            after=lambda: _less(self._written, folder),
        )

    def _stage(self, folder: str, name: str, offset: int, data: bytes) -> None:
        core = self._core
        core.ledger.check_writable()
        root = _folder(self._core)
        try:
            if root.files.free_bytes(root.path) < core.settings.storage.min_free_bytes + len(data):
                raise DiskFull(f"{root.path}: less than min_free_bytes would be left on the disk")
            own = root.child(STAGING).child(folder)
            if not own.exists():
                root.child(STAGING).make()
                own.make()
            try:
                fd = own.files.open(own.file(name), "create")
            except FileExistsError:
                fd = own.files.open(own.file(name), "write")
            try:
                write_fully(own.files, fd, data, offset)
                own.files.fdatasync(fd)
            finally:
                own.files.close(fd)
        except OSError as error:
            raise as_ledger_error(root.path, "staging a segment", error) from error

    def unstage(self, folder: str) -> Future[None]:
        check_folder_name(folder)
        if self._adopted[folder]:
            raise InvalidInput(f"{folder} is being adopted")

        def unstage() -> None:
            self._core.ledger.check_writable()
            sweep_staging(self._core.ledger, [folder])

        return self._in_thread(unstage)

    def adopt(
        self, staged: Sequence[StagedSegment], app: str | None, version: int
    ) -> Future[Adoption]:
        transaction = None if app is None else check_transaction(app, version)
        if len(staged) > MAX_STAGED_SEGMENTS:
            raise TooLarge(f"{len(staged)} segments; the maximum of a job is {MAX_STAGED_SEGMENTS}")
        folders = {one.folder for one in staged}
        for folder in folders:
            if self._written[folder] or self._adopted[folder]:
                raise InvalidInput(f"{folder} is being written, or adopted already")
        self._adopted.update(folders)

        def adopt() -> Adoption:
            with self._adopting:
                found = adopt_staged(self._core, [Staged(*one) for one in staged], transaction)
            return Adoption(found.first_seq, found.entries, found.repeated)

        def is_over() -> None:
            for folder in folders:
                _less(self._adopted, folder)

        return self._in_thread(adopt, writes=True, after=is_over)


def _less(counter: "Counter[str]", name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]


_NEVER_NS = (1 << 63) - 1


def _list_segments(core: QueueCore, time_ns: int | None) -> QueueSegments:
    """Return the segments of the queue. Sync first, so that all of them are durable."""
    ledger = core.ledger
    ledger.check_open()
    if time_ns is not None:
        check_whole("time_ns", time_ns, 0, _NEVER_NS)
    if not ledger.is_stopped:
        ledger.sync()
    # Events first: they speak of messages, and these must not be missing from the answer.
    events = _log_info(core, ledger.events, time_ns)
    note = archived_note(_folder(core), ledger.identity)
    return QueueSegments(
        ledger.identity,
        ledger.created_at_ns,
        core.settings.as_dict(),
        _log_info(core, ledger.messages, time_ns),
        events,
        _snapshots(core),
        *note[1:],
        note.upto,
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


def _read_segment(
    core: QueueCore, log: LogName, base: int, start: int, end: int | None
) -> SegmentBytes:
    """Return the bytes [start, end) of a segment or snapshot. Without `end`: up to its end."""
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
        # The header of the same file, so that the caller can check that it is the listed one.
        return read_fully(files, fd, HEADER_BYTES, 0), data
    finally:
        files.close(fd)


def _checked(name: str, start: int, end: int | None, size: int) -> tuple[int, int]:
    end = size if end is None else end
    if not 0 <= start <= end <= size:
        raise InvalidInput(
            f"cannot read bytes {start} to {end} of {name}: only {size} bytes can be read"
        )
    if end - start > MAX_RANGE_BYTES:
        raise TooLarge(
            f"bytes {start} to {end} of {name} are {end - start} bytes; the maximum of one call is "
            f"{MAX_RANGE_BYTES}: read them in several calls"
        )
    return start, end


def _read_index(core: QueueCore, log: LogName, base: int) -> bytes:
    """Return the sparse index of a segment up to now, in the format of its file."""
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
