"""The segments of a log in a directory: how far each can be read, and what of it is durable.

A reader takes no lock and changes nothing. A sealed segment is durable as a whole, because rotation
syncs it before the next one exists. The size of the active segment says nothing: zeros are
allocated ahead of the writer, and written bytes may be only in the page cache. So the reader finds
the end by reading, as recovery does, and then syncs the file itself. Everything read before the
sync is on disk after it. No sync is needed where the writer's own checkpoints promise as much.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from mmap import mmap

from penstock import codec
from penstock.arrow.locations import QueueLocation
from penstock.errors import BadEntry, NewerVersion, NotALedger
from penstock.ledger.files import Files, OsFiles
from penstock.ledger.folder import Folder, read_fully, sync_what_was_read
from penstock.ledger.json_files import (
    CLOSED_NAME,
    MANIFEST_NAME,
    MAX_CLOSED_BYTES,
    MAX_MANIFEST_BYTES,
    Closed,
    LogEnd,
    Manifest,
)
from penstock.ledger.recovery import LastSegment, examine
from penstock.ledger.segment_header import (
    COMPACTED,
    EVENTS,
    HEADER_BYTES,
    MESSAGES,
    SegmentHeader,
    base_seq_of,
    segment_name,
)
from penstock.queue import QueueSettings
from penstock.queue.compaction import ArchivedNote, archived_note

_KINDS = {"messages": MESSAGES, "events": EVENTS}
_MAX_LISTINGS = 10  # of a directory that a writer is changing


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """The location, identity and limits of a queue."""

    queue: QueueLocation
    identity: int
    max_entry_bytes: int
    max_unpacked_bytes: int

    @classmethod
    def of(cls, queue: QueueLocation, identity: int, settings: QueueSettings) -> "QueueInfo":
        max_entry_bytes = settings.storage.ledger_settings().max_entry_bytes
        return cls(queue, identity, max_entry_bytes, settings.max_unpacked_bytes)


@dataclass(frozen=True, slots=True)
class Span:
    """A segment, and how far it can be read."""

    header: SegmentHeader
    end: int  # in bytes
    end_seq: int  # one above the last seq
    is_last: bool
    intact: bool = True  # False: the header is damaged, or there are known holes

    @property
    def name(self) -> str:
        return segment_name(self.header.base_seq)


@dataclass(frozen=True, slots=True)
class LogView:
    """A log at one moment. Everything in it is durable."""

    info: QueueInfo
    log: str
    spans: Sequence[Span]
    first_seq: int  # the lowest that exists
    next_seq: int  # one above the highest that is durable
    low: int  # entries below were removed; those from here to `first_seq` are lost
    archive: str = ""  # location of the queue's archive; empty: none is on record
    archived_as: str = ""  # name of the queue in it
    archive_damage: str = ""  # why the record of the archive cannot be read
    archived_upto: int = 1  # all messages below this seq are archived


def zeroed(size: int) -> memoryview:
    """Return a buffer of zeros. Only pages that are written to take memory."""
    return memoryview(mmap(-1, max(size, 1)))[:size]


class _Changed(Exception):
    """A writer removed segments while they were listed."""


class DirectoryLogWatcher:
    """Views of one log. Each reads only what was written since the one before."""

    def __init__(self, queue: QueueLocation, log: str, *, files: Files | None = None) -> None:
        self._queue = queue
        self._log = log
        self._files = files or OsFiles()
        self._root = Folder(self._files, queue.path)
        self._folder = self._root.child(log)
        self._cached_info: QueueInfo | None = None
        self._known: tuple[SegmentHeader, int, int] | None = None  # last segment, end, next seq

    def view(self) -> LogView:
        """Return the log as it is now."""
        for _ in range(_MAX_LISTINGS):
            try:
                return self._view()
            except (FileNotFoundError, _Changed):
                continue  # a file was removed between listing and opening: list again
        return self._view()

    def closed_next(self) -> int:
        """Return the next seq of the log when the queue was last closed; 1 if unknown."""
        return self._closed_end().next

    @property
    def _info(self) -> QueueInfo:
        if self._cached_info is None:
            manifest = self._manifest()
            settings = QueueSettings.of_stored(manifest.settings)
            self._cached_info = QueueInfo.of(self._queue, manifest.identity, settings)
        return self._cached_info

    def _manifest(self) -> Manifest:
        try:
            return Manifest.unpack(self._root.read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES))
        except NewerVersion:
            raise
        except (FileNotFoundError, ValueError, BadEntry) as error:
            raise NotALedger(
                f"{self._queue.path}: {MANIFEST_NAME} cannot be read ({error}). Open the queue for "
                f"writing once, which writes it again."
            ) from None

    def _view(self) -> LogView:
        info, low, closed = self._info, self._marks_low(), self._closed_end()
        bases = [base for name in self._folder.names() if (base := base_seq_of(name)) is not None]
        headers: list[tuple[SegmentHeader, bool]] = []
        for base, following in zip_longest(bases, bases[1:]):
            if following is not None and following <= low:
                continue  # removed; the file is about to be deleted
            if headers and base < headers[-1][0].end_seq:
                continue  # merged into the one before
            header, intact = self._header(base)
            if not intact and following is not None and self._has_no_entries(base):
                continue  # emptied: treated as missing
            if header.base_seq == base:  # otherwise a copy under another name
                headers.append((header, intact))
        spans = [
            self._sealed(header, intact, following[0].base_seq)
            for (header, intact), following in pairwise(headers)
        ]
        if headers:
            last = self._last(*headers[-1], closed)
            if last is not None:
                spans.append(last)
        if spans and spans[-1].end_seq < closed.next:  # it was longer when it was closed
            spans[-1] = replace(spans[-1], end_seq=closed.next, intact=False)
        next_seq = spans[-1].end_seq if spans else max(low, closed.next)
        first_seq = min(max(spans[0].header.base_seq, low), next_seq) if spans else next_seq
        if low < first_seq and self._marks_low() != low:
            raise _Changed  # retention ran between reading the marks and listing: nothing is lost
        note = ArchivedNote()
        if self._log == "messages":
            note = archived_note(self._root, info.identity)
        low = min(low, first_seq)
        return LogView(
            info, self._log, tuple(spans), first_seq, next_seq, low, *note[1:], note.upto
        )

    def _marks_low(self) -> int:
        manifest = self._manifest()
        return (manifest.messages if self._log == "messages" else manifest.events).low

    def _closed_end(self) -> LogEnd:
        """Return where the log ended when the queue was last closed, if known."""
        try:
            closed = Closed.unpack(self._root.read(CLOSED_NAME, max_bytes=MAX_CLOSED_BYTES))
        except (FileNotFoundError, BadEntry, ValueError):
            return LogEnd()
        if closed.identity != self._info.identity:
            return LogEnd()
        return closed.messages if self._log == "messages" else closed.events

    @contextmanager
    def _opened(self, base: int) -> Iterator[int]:
        fd = self._files.open(self._folder.file(segment_name(base)), "read")
        try:
            yield fd
        finally:
            self._files.close(fd)

    def _header(self, base: int) -> tuple[SegmentHeader, bool]:
        """Return a segment's header, and whether it is intact."""
        with self._opened(base) as fd:
            try:
                return SegmentHeader.unpack(read_fully(self._files, fd, HEADER_BYTES, 0)), True
            except NewerVersion:
                raise
            except BadEntry:
                return SegmentHeader(_KINDS[self._log], self._info.identity, base, 0), False

    def _sealed(self, header: SegmentHeader, intact: bool, end_seq: int) -> Span:
        with self._opened(header.base_seq) as fd:
            return Span(header, self._files.size(fd), end_seq, is_last=False, intact=intact)

    def _has_no_entries(self, base: int) -> bool:
        with self._opened(base) as fd:
            return self._is_unfinished(fd)

    def _is_unfinished(self, fd: int) -> bool:
        """Return whether the segment was created and nothing was written to it."""
        size = self._files.size(fd)
        data = read_fully(self._files, fd, size, 0)
        return codec.first_nonzero(data, min(HEADER_BYTES, size), size) < 0

    # -- the active segment ------------------------------------------------------------------------

    def _last(self, header: SegmentHeader, intact: bool, closed: LogEnd) -> Span | None:
        with self._opened(header.base_seq) as fd:
            if not intact and self._is_unfinished(fd):
                return None
            end, next_seq, durable_upto, no_holes = self._end_of(fd, header, closed)
            if durable_upto < end:
                sync_what_was_read(self._files, fd)
        self._known = (header, end, next_seq)
        return Span(header, end, next_seq, is_last=True, intact=intact and no_holes)

    def _end_of(self, fd: int, header: SegmentHeader, closed: LogEnd) -> tuple[int, int, int, bool]:
        """Return the end of the entries, the next seq, the end of what the writer says is durable,
        and whether there are no holes.
        """
        start, next_seq = HEADER_BYTES, header.base_seq
        if self._known is not None and self._known[0] == header:
            _, start, next_seq = self._known
        elif self._ends_at_close(fd, header, closed):
            # Not read here: the task that reads the range verifies it, as in a sealed segment.
            start, next_seq = closed.bytes, closed.next
        data = self._bytes_from(fd, start)
        found = codec.skim(
            data,
            start,
            len(data),
            seq_base=header.seq_base,
            max_entry_bytes=self._info.max_entry_bytes,
        )
        if found.newer:
            raise NewerVersion(found.stop, found.problem or "written by a newer version")
        rest_is_zeros = codec.first_nonzero(data, found.stop, len(data)) < 0
        if found.problem is None and rest_is_zeros:
            return found.end, max(next_seq, found.next_seq), found.synced_upto, True
        # Damage, or a writer wrote between our reads of two pages.
        last = self._examine(fd, header)
        return last.end, max(next_seq, last.next_seq), 0, not last.holes

    def _ends_at_close(self, fd: int, header: SegmentHeader, closed: LogEnd) -> bool:
        """Return whether the log ended in this segment when it was closed, and still has that."""
        return (
            closed.last == header.base_seq
            and not header.flags & COMPACTED
            and HEADER_BYTES <= closed.bytes <= self._files.size(fd)
        )

    def _bytes_from(self, fd: int, start: int) -> bytes | memoryview:
        """Return the bytes at their offsets in the file. Bytes before `start` may be zeros."""
        size = max(self._files.size(fd), start)
        if start == HEADER_BYTES:  # the whole segment: avoid a copy
            data = read_fully(self._files, fd, size, 0)
            return data if len(data) >= start else data + bytes(start - len(data))
        new = read_fully(self._files, fd, size - start, start)
        padded = zeroed(start + len(new))
        padded[start:] = new
        return padded

    def _examine(self, fd: int, header: SegmentHeader) -> LastSegment:
        """Examine the segment as recovery does, until two readings agree."""
        last = None
        while True:
            view = memoryview(read_fully(self._files, fd, self._files.size(fd), 0))
            before = last
            last = examine(view, header, max_entry_bytes=self._info.max_entry_bytes)
            if not last.holes or (before is not None and before.holes == last.holes):
                return last
