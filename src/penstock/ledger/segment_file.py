"""The file of one segment: opened, mapped and measured when its bytes are first needed."""

from threading import Lock

from penstock.errors import BadEntry, EntryGone, LedgerError
from penstock.ledger.folder import Folder
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader, segment_name


class SegmentFile:
    """The bytes of a segment; `end` says how far they may be read."""

    def __init__(self, folder: Folder, header: SegmentHeader, *, end: int | None) -> None:
        self.header = header
        self.name = segment_name(header.base_seq)
        self._folder = folder
        self._end = end  # None: a sealed one not looked at yet; its whole file
        self._view: memoryview | None = None
        self._view_lock = Lock()  # of making and dropping the view; the innermost lock
        self._held = False

    @property
    def base_seq(self) -> int:
        return self.header.base_seq

    @property
    def is_open(self) -> bool:
        return self._view is not None

    @property
    def end(self) -> int:
        if self._end is None:
            self._end = max(self.file_bytes(), HEADER_BYTES)
        return self._end

    def grown_to(self, end: int) -> None:
        """More was written; it may be read up to there. Never less: who says so may be late."""
        if self._end is None or end > self._end:
            self._end = max(end, HEADER_BYTES)

    def file_bytes(self) -> int:
        """How large the file is."""
        fd = self._open()
        try:
            return self._folder.files.size(fd)
        except OSError as error:
            raise self._unreadable(error) from error
        finally:
            self._folder.files.close(fd)

    def adopt_view(self, view: memoryview) -> None:
        """Read through a mapping that the writer made anyway."""
        with self._view_lock:
            self._view = view

    def hold(self) -> None:
        """Keep its bytes for those who still read it: its name is about to be another file's."""
        self._bytes(hold=True)

    def drop_view(self) -> None:
        """Give the mapping back, unless someone still needs the bytes under a lost name."""
        with self._view_lock:
            if not self._held:
                self._view = None

    def damaged_bytes(self, offset: int, length: int) -> bytes:
        """A copy of a damaged range."""
        return bytes(self._bytes()[offset : offset + length])

    # -- inside ------------------------------------------------------------------------------------

    def _readable(self) -> tuple[int, memoryview]:
        """How far it may be read, and at least as many bytes. In this order: `end` may grow."""
        return self.end, self._bytes()

    def _bytes(self, *, hold: bool = False) -> memoryview:
        view = self._view
        if view is not None and len(view) >= self.end and not hold:
            return view
        with self._view_lock:
            view = self._view
            if view is None or len(view) < self.end:
                view = self._view = self._map()
            self._held = self._held or hold
            return view

    def _map(self) -> memoryview:
        files = self._folder.files
        fd = self._open()
        try:
            while True:
                size = files.size(fd)
                end = size if self._end is None else min(self._end, size)
                self._end = max(end, HEADER_BYTES)
                if size < HEADER_BYTES:
                    return memoryview(bytes(HEADER_BYTES))  # not even a header: no entry either
                try:
                    view = files.map(fd, size, writable=False).view
                except ValueError:
                    continue  # cut in between: the writer gave zeros back
                self._check_is_the_same(view)
                return view
        except OSError as error:
            raise self._unreadable(error) from error
        finally:
            files.close(fd)

    def _open(self) -> int:
        try:
            return self._folder.files.open(self._folder.file(self.name), "read")
        except FileNotFoundError:
            raise self._replaced() from None
        except OSError as error:
            raise self._unreadable(error) from error

    def _check_is_the_same(self, view: memoryview) -> None:
        """Offsets of before a rewrite, by a writer in another process, mean nothing after it."""
        try:
            there = SegmentHeader.unpack(bytes(view[:HEADER_BYTES]))
        except BadEntry:
            return  # damaged; reported when the log was opened
        here = self.header
        if there.base_seq == here.base_seq and there.end_seq != here.end_seq:
            raise self._replaced()

    def _replaced(self) -> EntryGone:
        return EntryGone(
            f"{self._folder.file(self.name)} was removed or rewritten while it was read, because "
            f"its entries are done with or stand elsewhere now: open the queue again"
        )

    def _unreadable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"{self._folder.file(self.name)} cannot be read ({error}). Nothing was changed: mend "
            f"the cause (too many open files: ulimit -n) and read again."
        )
