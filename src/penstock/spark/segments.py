"""Which segments a log has, how far each may be read, and what of it is durable.

Nothing of the writer's is needed and nothing is changed: no lock is taken. A sealed segment is
durable as a whole, because rotation syncs it before the next one exists. Of the segment being
written, the size says nothing (zeros lie ahead of the writing), and what is written may be in the
system's cache only. So its end is found by reading it, as recovery would; and before any of that is
shown, the file is synced from here. What was read before the sync is on disk after it: that end is
the watermark. Where the writer's own checkpoints promise as much, there is nothing left to sync.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from mmap import mmap

from penstock import codec
from penstock.errors import BadEntry, NewerVersion, NotALedger
from penstock.ledger.files import Files, OsFiles
from penstock.ledger.folder import Folder, read_fully
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
from penstock.spark.places import QueueAt

KINDS = {"messages": MESSAGES, "events": EVENTS}
_LOOKS = 10  # at a directory that a writer changes
_NOTHING_TO_SYNC = (errno.EROFS, errno.EINVAL)  # a file system that is mounted for reading only


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What a reader must know of a queue besides its segments."""

    queue: QueueAt
    identity: int
    max_entry_bytes: int
    max_unpacked_bytes: int


@dataclass(frozen=True, slots=True)
class Span:
    """A segment, and the part of it that may be read."""

    header: SegmentHeader
    end: int  # in bytes
    end_seq: int  # one above the last seq it stands for
    is_last: bool
    sound: bool = True  # False: its header is damaged, or it has known holes

    @property
    def name(self) -> str:
        return segment_name(self.header.base_seq)


@dataclass(frozen=True, slots=True)
class LogView:
    """A log at one moment: everything in it is durable."""

    facts: QueueFacts
    log: str
    spans: Sequence[Span]
    first_seq: int  # the lowest that is still there
    next_seq: int  # one above the highest that is durable
    low: int  # entries below it were removed; from it to `first_seq`, they are lost

    @property
    def file_bytes(self) -> int:
        return sum(span.end for span in self.spans)


def blank(size: int) -> memoryview:
    """Return that many zeros. The system gives memory only for pages that are written to."""
    return memoryview(mmap(-1, max(size, 1)))[:size]


class _Changed(Exception):
    """A writer removed segments while they were listed."""


class LogWatcher:
    """Looks at one log again and again; reads only what came since the last look."""

    def __init__(self, queue: QueueAt, log: str, *, files: Files | None = None) -> None:
        self._queue = queue
        self._log = log
        self._files = files or OsFiles()
        self._root = Folder(self._files, queue.path)
        self._folder = self._root.child(log)
        self._facts: QueueFacts | None = None
        self._known: tuple[SegmentHeader, int, int] | None = None  # last segment, end, next seq

    def look(self) -> LogView:
        """The log as it is now."""
        for _ in range(_LOOKS):
            try:
                return self._look()
            except (FileNotFoundError, _Changed):
                continue  # removed between listing and opening: there is a new list
        return self._look()

    @property
    def facts(self) -> QueueFacts:
        if self._facts is None:
            manifest = self._manifest()
            settings = QueueSettings.of_stored(manifest.settings)
            self._facts = QueueFacts(
                self._queue,
                manifest.identity,
                settings.ledger_settings().max_entry_bytes,
                settings.max_unpacked_bytes,
            )
        return self._facts

    def closed_next(self) -> int:
        """Return the next seq of the log when the queue was last closed; 1 if that is not known."""
        return self._closed_end().next

    def _manifest(self) -> Manifest:
        try:
            return Manifest.unpack(self._root.read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES))
        except NewerVersion:
            raise
        except (FileNotFoundError, ValueError, BadEntry) as error:
            raise NotALedger(
                f"{self._queue.path}: {MANIFEST_NAME} cannot be read ({error}). Open the queue for "
                f"writing once: that makes it anew."
            ) from None

    def _look(self) -> LogView:
        facts, low, closed = self.facts, self._marks_low(), self._closed_end()
        bases = [base for name in self._folder.names() if (base := base_seq_of(name)) is not None]
        headers: list[tuple[SegmentHeader, bool]] = []
        for base, following in zip_longest(bases, bases[1:]):
            if following is not None and following <= low:
                continue  # removed for good; the file is about to go
            if headers and base < headers[-1][0].end_seq:
                continue  # put into the one before
            header, sound = self._header(base)
            if not sound and following is not None and self._has_no_entries(base):
                continue  # emptied: as if it were missing
            if header.base_seq == base:  # else a copy under another number
                headers.append((header, sound))
        spans = [
            self._sealed(header, sound, following[0].base_seq)
            for (header, sound), following in pairwise(headers)
        ]
        if headers:
            last = self._last(*headers[-1], closed)
            if last is not None:
                spans.append(last)
        if spans and spans[-1].end_seq < closed.next:  # it went further when it was closed
            spans[-1] = replace(spans[-1], end_seq=closed.next, sound=False)
        next_seq = spans[-1].end_seq if spans else max(low, closed.next)
        first_seq = min(max(spans[0].header.base_seq, low), next_seq) if spans else next_seq
        if low < first_seq and self._marks_low() != low:
            raise _Changed  # retention, between the marks and the listing: nothing is lost
        return LogView(facts, self._log, tuple(spans), first_seq, next_seq, min(low, first_seq))

    def _marks_low(self) -> int:
        manifest = self._manifest()
        return (manifest.messages if self._log == "messages" else manifest.events).low

    def _closed_end(self) -> LogEnd:
        """Where the log ended when the queue was last closed, if that is known."""
        try:
            data = self._root.read(CLOSED_NAME, max_bytes=MAX_CLOSED_BYTES)
            closed = Closed.unpack(data)
        except (FileNotFoundError, BadEntry, ValueError):
            return LogEnd()
        if closed.identity != self.facts.identity:
            return LogEnd()
        return closed.messages if self._log == "messages" else closed.events

    def _header(self, base: int) -> tuple[SegmentHeader, bool]:
        fd = self._files.open(self._folder.file(segment_name(base)), "read")
        try:
            header = SegmentHeader.unpack(read_fully(self._files, fd, HEADER_BYTES, 0))
            return header, True
        except NewerVersion:
            raise
        except BadEntry:
            return SegmentHeader(KINDS[self._log], self.facts.identity, base, 0), False
        finally:
            self._files.close(fd)

    def _sealed(self, header: SegmentHeader, sound: bool, end_seq: int) -> Span:
        fd = self._files.open(self._folder.file(segment_name(header.base_seq)), "read")
        try:
            return Span(header, self._files.size(fd), end_seq, is_last=False, sound=sound)
        finally:
            self._files.close(fd)

    # -- the segment being written -----------------------------------------------------------------

    def _last(self, header: SegmentHeader, sound: bool, closed: LogEnd) -> Span | None:
        fd = self._files.open(self._folder.file(segment_name(header.base_seq)), "read")
        try:
            if not sound and self._is_unborn(fd):
                return None
            end, next_seq, promised, whole = self._end_of(fd, header, closed)
            if promised < end:
                self._sync(fd)
        finally:
            self._files.close(fd)
        self._known = (header, end, next_seq)
        return Span(header, end, next_seq, is_last=True, sound=sound and whole)

    def _sync(self, fd: int) -> None:
        try:
            self._files.fdatasync(fd)
        except OSError as error:
            if error.errno not in _NOTHING_TO_SYNC:
                raise

    def _has_no_entries(self, base: int) -> bool:
        fd = self._files.open(self._folder.file(segment_name(base)), "read")
        try:
            return self._is_unborn(fd)
        finally:
            self._files.close(fd)

    def _is_unborn(self, fd: int) -> bool:
        """A segment whose creation did not finish: nothing was ever in it."""
        size = self._files.size(fd)
        data = read_fully(self._files, fd, size, 0)
        return codec.first_nonzero(data, min(HEADER_BYTES, size), size) < 0

    def _end_of(self, fd: int, header: SegmentHeader, closed: LogEnd) -> tuple[int, int, int, bool]:
        """Where the entries end, the next seq, what is promised durable, and if all is sound."""
        start, next_seq = HEADER_BYTES, header.base_seq
        if self._known is not None and self._known[0] == header:
            _, start, next_seq = self._known
        elif self._is_closed_end(fd, header, closed):
            # Not read here: whoever reads a range of it verifies that, as in a sealed segment.
            start, next_seq = closed.bytes, closed.next
        data = self._bytes_from(fd, start)
        found = codec.skim(
            data,
            start,
            len(data),
            seq_base=header.seq_base,
            max_entry_bytes=self.facts.max_entry_bytes,
        )
        if found.newer:
            raise NewerVersion(found.stop, found.problem or "written by a newer version")
        rest_is_zeros = codec.first_nonzero(data, found.stop, len(data)) < 0
        if found.problem is None and rest_is_zeros:
            return found.end, max(next_seq, found.next_seq), found.synced_upto, True
        # Damage, or a writer at work between our reading of one page and the next.
        last = self._examined(fd, header)
        return last.end, max(next_seq, last.next_seq), 0, not last.holes

    def _is_closed_end(self, fd: int, header: SegmentHeader, closed: LogEnd) -> bool:
        """Did the log end in this segment when it was closed, and is that much still there?"""
        return (
            closed.last == header.base_seq
            and not header.flags & COMPACTED
            and HEADER_BYTES <= closed.bytes <= self._files.size(fd)
        )

    def _bytes_from(self, fd: int, start: int) -> bytes | memoryview:
        """At their place in the file, of which checkpoints speak; what is before may be zeros."""
        size = max(self._files.size(fd), start)
        if start == HEADER_BYTES:  # all of it: much, and not to be copied once more
            data = read_fully(self._files, fd, size, 0)
            return data if len(data) >= start else data + bytes(start - len(data))
        new = read_fully(self._files, fd, size - start, start)
        padded = blank(start + len(new))
        padded[start:] = new
        return padded

    def _examined(self, fd: int, header: SegmentHeader) -> LastSegment:
        last = None
        while True:
            view = memoryview(read_fully(self._files, fd, self._files.size(fd), 0))
            before = last
            last = examine(view, header, max_entry_bytes=self.facts.max_entry_bytes)
            if not last.holes or (before is not None and before.holes == last.holes):
                return last
