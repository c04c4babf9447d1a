"""Open a log: find its segments, repair what a crash left, and report damage."""

from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest

from penstock import codec
from penstock.clock import Clock
from penstock.errors import BadEntry, NewerVersion, NotALedger, PenstockError
from penstock.ledger.damage import Damage, DamageReporter
from penstock.ledger.folder import Folder, read_fully, write_fully
from penstock.ledger.json_files import LogEnd, Marks
from penstock.ledger.log import Log
from penstock.ledger.recovery import LastSegment, examine
from penstock.ledger.segment import Segment
from penstock.ledger.segment_header import (
    COMPACTED,
    HEADER_BYTES,
    RELATIVE,
    SegmentHeader,
    base_seq_of,
    index_base_seq_of,
    index_name,
    segment_name,
)
from penstock.ledger.settings import LedgerSettings
from penstock.ledger.space import Space
from penstock.ledger.tail import durability_checkpoint
from penstock.locks import RLock

_LOOKS = 10  # at a directory that a writer changes

_MISSING = "the segment is missing, or empty"


class LogOpener:
    """Opens one log. With `read_only` it changes nothing."""

    def __init__(
        self,
        folder: Folder,
        label: str,
        *,
        kind: int,
        identity: int,
        marks: Marks,
        closed: LogEnd | None,
        settings: LedgerSettings,
        clock: Clock,
        reporter: DamageReporter,
        read_only: bool,
        is_current: Callable[[], bool],
    ) -> None:
        """`closed` is where the log ended when it was last closed; None if that is unknown.

        `is_current` tells whether `closed` and `marks` are still valid: a writer may be active.
        """
        self._folder = folder
        self._label = label
        self._kind = kind
        self._identity = identity
        self._marks = marks
        self._closed = closed or LogEnd()
        self._is_current = is_current
        self._settings = settings
        self._clock = clock
        self._reporter = reporter
        self._read_only = read_only
        self.lacks_its_end = False  # it ended further on when it was closed
        self._may_mend = not read_only and settings.on_corruption != "stop"
        self._known_next = self._closed.next  # every seq below it was written
        self.floor_seq = max(marks.next, self._closed.next)  # and every seq below it given out

    def open(
        self,
        *,
        space: Space,
        lock: "RLock",
        on_dirty: Callable[[], None],
        on_stop: Callable[[PenstockError], None],
    ) -> Log:
        """Return the log, recovered and (for a writer) durable as far as it can be read."""
        if not self._read_only:
            self._folder.sweep()
        headers, last = self._segments_beside_a_writer() if self._read_only else self._segments()
        self._report_missing(headers, last)
        if not self._read_only:
            self._folder.sync()
        return Log(
            self._folder,
            kind=self._kind,
            identity=self._identity,
            settings=self._settings,
            clock=self._clock,
            space=space,
            headers=headers,
            end=last.end if last else 0,
            next_seq=last.next_seq if last else self.floor_seq,
            last_timestamp_ns=last.last_timestamp_ns if last else 0,
            lock=lock,
            on_hole=self._hole,
            on_dirty=on_dirty,
            on_stop=on_stop,
        )

    # -- which segments there are ------------------------------------------------------------------

    def _segments_beside_a_writer(self) -> tuple[list[SegmentHeader], LastSegment | None]:
        """Return the segments; list again if one is removed between listing and reading."""
        for _ in range(_LOOKS):
            try:
                return self._segments()
            except FileNotFoundError:
                pass
        return self._segments()

    def _segments(self) -> tuple[list[SegmentHeader], LastSegment | None]:
        headers = self._headers()
        return headers, self._last_segment(headers)

    def _headers(self) -> list[SegmentHeader]:
        """Return the headers of the valid segments, in order; remove the others."""
        self._heads: dict[int, bytes] = {}
        names = self._folder.names()
        bases = [base for name in names if (base := base_seq_of(name)) is not None]
        bases = [base for base in bases if not self._is_misplaced(base)]
        headers: list[SegmentHeader] = []
        removed = []
        while bases and self._is_unborn(bases[-1]):
            removed.append(bases.pop())
        if removed:  # the segment before it was complete when it was made
            self._known_next = max(self._known_next, removed[0])
            self.floor_seq = max(self.floor_seq, removed[0])
        for base, following in zip_longest(bases, bases[1:]):
            below_mark = following is not None and following <= self._marks.low
            merged = bool(headers) and base < headers[-1].end_seq
            header = None if below_mark or merged else self._header(base, last=following is None)
            if header is None:
                removed.append(base)
            else:
                headers.append(header)
        if not self._read_only:
            kept = {header.base_seq for header in headers}
            if removed:
                # What took their place may be in the cache only: first that, durably, then they go.
                self._folder.sync()
            for base in removed:
                self._folder.remove(segment_name(base))
            for name in names:
                base_of_index = index_base_seq_of(name)
                if base_of_index is not None and base_of_index not in kept:
                    self._folder.remove(name)
        return headers

    def _is_misplaced(self, base: int) -> bool:
        """Return whether it is a copy of another segment; if so, report and quarantine it."""
        try:
            header = SegmentHeader.unpack(self._head(base))
        except BadEntry:
            return False
        if header.base_seq == base or (header.kind, header.identity) != (
            self._kind,
            self._identity,
        ):
            return False
        if self._first_stored_seq(base) == base:
            return False  # only its header is wrong
        name = segment_name(base)
        reason = f"its header is that of {segment_name(header.base_seq)}: a copy, or misnamed"
        damage = Damage(f"{self._label}/{name}", 0, len(self._map(base)), base, base - 1, reason)
        if self._may_mend:
            self._reporter.set_aside(damage, self._folder, name)
        else:
            self._reporter.report(damage)
        return True

    def _is_unborn(self, base: int) -> bool:
        """Return whether its creation did not finish: no valid header, and only zeros behind."""
        try:
            SegmentHeader.unpack(self._head(base))
        except NewerVersion:
            return False
        except BadEntry:
            view = self._map(base)
            return codec.first_nonzero(view, min(HEADER_BYTES, len(view)), len(view)) < 0
        return False

    def _header(self, base: int, *, last: bool) -> SegmentHeader:
        """Return the header of a segment; guess it if it is damaged."""
        try:
            header = SegmentHeader.unpack(self._head(base))
        except NewerVersion as error:
            file = f"{self._label}/{segment_name(base)}"
            raise NewerVersion(0, f"{file}: {error.reason}; open it with that version") from None
        except BadEntry as error:
            return self._guessed_header(base, str(error.reason), last=last)
        if (header.kind, header.identity) != (self._kind, self._identity):
            raise NotALedger(
                f"{self._label}/{segment_name(base)} belongs to another queue or log (identity "
                f"{header.identity:08x}, here {self._identity:08x}): move it out of the directory"
            )
        if header.base_seq != base:
            return self._guessed_header(base, "the base seq is not that of the name", last=last)
        return header

    def _guessed_header(self, base: int, reason: str, *, last: bool) -> SegmentHeader:
        view = self._map(base)
        start = min(HEADER_BYTES, len(view))
        guess = SegmentHeader(self._kind, self._identity, base, 0)
        first = codec.resync(
            view,
            start,
            len(view),
            min_seq=0,
            max_seq=base + len(view) // codec.ENTRY_OVERHEAD_BYTES,
            max_entry_bytes=self._settings.max_entry_bytes,
        )
        if first >= 0 and self._looks_relative(view, first, base):
            guess = SegmentHeader(self._kind, self._identity, base, 0, RELATIVE)
        file = f"{self._label}/{segment_name(base)}"
        self._reporter.report(
            Damage(file, 0, HEADER_BYTES, base, base - 1, reason), view[:HEADER_BYTES]
        )
        if not self._read_only and last:
            self._write_header(guess)
        return guess

    def _first_stored_seq(self, base: int) -> int | None:
        """Return the stored seq of its first entry; None if that cannot be read."""
        view, limit = self._map(base), self._settings.max_entry_bytes
        try:
            entries, _ = codec.read_entries(
                view, HEADER_BYTES, len(view), max_count=1, max_entry_bytes=limit
            )
        except BadEntry:
            return None
        return entries[0].seq if entries else None

    def _looks_relative(self, view: memoryview, first: int, base: int) -> bool:
        """Return whether its seqs are relative: then the first entry has seq 0."""
        limit = self._settings.max_entry_bytes
        stored = codec.unpack(view, first, len(view), max_entry_bytes=limit).seq
        return stored < base and (stored == 0 or first > HEADER_BYTES)

    def _write_header(self, header: SegmentHeader) -> None:
        files = self._folder.files
        fd = files.open(self._folder.file(segment_name(header.base_seq)), "write")
        try:
            write_fully(files, fd, header.pack(), 0)
            files.fdatasync(fd)
        finally:
            files.close(fd)

    # -- the last one ------------------------------------------------------------------------------

    def _last_segment(self, headers: list[SegmentHeader]) -> LastSegment | None:
        if not headers:
            return None
        header = headers[-1]
        view, last = self._examined(header)
        if not self._read_only:
            view.release()
            self._write_again(header, last.synced_upto)
            view, last = self._examined(header)
        while self._read_only and last.holes:
            # Damage, or a writer who wrote between our reading of one page and the next.
            before = last
            view, last = self._examined(header)
            if last.holes == before.holes:
                break
        with view:  # a mapping keeps the file open, also one that an error refers to
            last = self._reported(header, last, view)
            size = len(view)
        if self._may_mend or not (self._read_only or last.holes or last.lacks_its_end):
            last = replace(last, end=self._cut(header, last, size))
        return last

    def _reported(self, header: SegmentHeader, last: LastSegment, view: memoryview) -> LastSegment:
        """Report the damage of the last segment. Return it, corrected by what is known."""
        file = f"{self._label}/{segment_name(header.base_seq)}"
        for hole in last.holes:
            damage = Damage(
                file,
                hole.offset,
                hole.length,
                hole.first_lost_seq,
                hole.last_lost_seq,
                hole.reason,
            )
            with view[hole.offset : hole.offset + hole.length] as damaged:
                self._reporter.report(damage, damaged)
        if last.torn_bytes and last.next_seq < self._known_next:
            last = replace(last, lacks_its_end=True)
        if last.lacks_its_end:
            last_seq = max(self._known_next, last.next_seq) - 1
            reason = "the end that was there when the queue was closed is missing"
            if last.torn_bytes:
                reason = last.torn_reason
            damage = Damage(file, last.end, last.torn_bytes, last.next_seq, last_seq, reason)
            with view[last.end : last.end + last.torn_bytes] as torn:
                self._reporter.report(damage, torn)
        elif last.torn_bytes and not self._read_only:
            self._reporter.report(
                Damage(
                    file,
                    last.end,
                    last.torn_bytes,
                    last.next_seq,
                    last.next_seq - 1,
                    last.torn_reason,
                    torn=True,
                )
            )
        return last

    def _examined(self, header: SegmentHeader) -> tuple[memoryview, LastSegment]:
        view = self._map(header.base_seq)
        limit = self._settings.max_entry_bytes
        try:
            if header.base_seq == self._closed.last and not header.flags & COMPACTED:
                end = self._closed.bytes
                last = examine(view, header, max_entry_bytes=limit, closed_at=end)
                if not (last.holes or last.lacks_its_end) or self._is_current():
                    return view, last
            return view, examine(view, header, max_entry_bytes=limit)
        except BaseException:
            view.release()
            raise

    def _report_missing(self, headers: list[SegmentHeader], last: LastSegment | None) -> None:
        """Compare the segments with the marks, and with where the log ended when closed."""
        if headers and headers[0].base_seq > self._marks.low:
            self._missing(self._marks.low, self._marks.low, headers[0].base_seq - 1)
        next_seq = last.next_seq if last else self._marks.low
        if last is not None and last.lacks_its_end:
            self.lacks_its_end = True  # reported
        elif next_seq < self._known_next:
            self.lacks_its_end = True
            base = self._closed.last or next_seq
            reason = _MISSING
            if headers and headers[-1].base_seq == base and next_seq > base:
                reason = "the end that was there when the queue was closed is missing"
            self._missing(base, next_seq, self._known_next - 1, reason)
        elif next_seq < self._marks.next and not self._read_only:
            # Removed for good up to there and lost since, or about to be adopted when it died.
            base = headers[-1].base_seq if headers else next_seq
            reason = "queue.json says that these seqs were given out, and they are not there"
            file = f"{self._label}/{segment_name(base)}"
            end = last.end if last else 0
            lost = Damage(file, end, 0, next_seq, self._marks.next - 1, reason, torn=True)
            self._reporter.report(lost)

    def _missing(self, base: int, first: int, last: int, reason: str = _MISSING) -> None:
        if self._is_current():
            file = f"{self._label}/{segment_name(base)}"
            self._reporter.report(Damage(file, 0, 0, first, last, reason))

    def _write_again(self, header: SegmentHeader, offset: int) -> None:
        """Write to disk what may be in the page cache only, before it is trusted.

        A sync alone is not enough: after a failed one, the cache holds bytes that the disk does not
        have, and calls them clean. So the bytes that no sync is known to have covered are written
        again. They must be read again afterwards: only then are cache and disk the same.
        """
        files = self._folder.files
        fd = files.open(self._folder.file(segment_name(header.base_seq)), "write")
        try:
            files.write_again(fd, offset)
            files.fdatasync(fd)
        finally:
            files.close(fd)

    def _cut(self, header: SegmentHeader, last: LastSegment, size: int) -> int:
        """Cut off bad bytes and zeros, durably; return the end of the file."""
        end = last.end
        speaks_anew = last.lacks_its_end or bool(last.holes and last.torn_bytes)
        if size > end or speaks_anew:
            files = self._folder.files
            fd = files.open(self._folder.file(segment_name(header.base_seq)), "write")
            try:
                if speaks_anew:
                    # What told the holes from an unfinished write may go with the cut: say it anew.
                    last_word = durability_checkpoint(
                        end,
                        next_seq=last.next_seq - header.seq_base,
                        timestamp_ns=last.last_timestamp_ns,
                    )
                    write_fully(files, fd, last_word, end)
                    files.fdatasync(fd)
                    end += len(last_word)
                files.truncate(fd, end)
                files.fdatasync(fd)
            finally:
                files.close(fd)
        # An index of a segment that is written again is of no use and may mislead.
        if self._folder.has(index_name(header.base_seq)):
            self._folder.remove(index_name(header.base_seq))
        return end

    # -- small things ------------------------------------------------------------------------------

    def _head(self, base: int) -> bytes:
        """Return the bytes of its header. They are read once."""
        if base not in self._heads:
            files = self._folder.files
            fd = files.open(self._folder.file(segment_name(base)), "read")
            try:
                self._heads[base] = read_fully(files, fd, HEADER_BYTES, 0)
            finally:
                files.close(fd)
        return self._heads[base]

    def _map(self, base: int) -> memoryview:
        files = self._folder.files
        fd = files.open(self._folder.file(segment_name(base)), "read")
        try:
            size = files.size(fd)
            if self._read_only:  # a copy: a writer may cut the file, which breaks a mapping
                return memoryview(read_fully(files, fd, size, 0))
            return files.map(fd, size, writable=False).view if size else memoryview(b"")
        finally:
            files.close(fd)

    def _hole(
        self, segment: Segment, offset: int, length: int, first: int, last: int, reason: str
    ) -> None:
        damage = Damage(f"{self._label}/{segment.name}", offset, length, first, last, reason)
        self._reporter.report(damage, segment.damaged_bytes(offset, length))
