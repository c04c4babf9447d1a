"""One queue at one point in time, read beside its writer.

A reader takes no lock, so the writer appends, seals, compacts and saves snapshots meanwhile. The
cut is consistent because of the order of reading:

1. the small files and the names of the snapshots,
2. the event log, then the message log: every event of the cut finds the messages it is about,
3. the small files and the names of the snapshots again: if they changed, look again.

A compaction saves a snapshot before it removes or rewrites anything. So if the snapshots are the
same before and after, no message that the events of the cut need was removed in between. Segments
stay open from then on: what is unlinked or replaced later can still be read.

The result is a state that a crash could have left, with every answer that was given before the
reading began. The size of the active segment says nothing, as zeros are allocated ahead of the
writer. Its end is found as recovery finds it, and then synced.
"""

import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from penstock import codec
from penstock.errors import BadEntry, LedgerError, NewerVersion
from penstock.ledger.files import Files
from penstock.ledger.folder import Folder, read_fully, sync_what_was_read
from penstock.ledger.json_files import (
    CLOSED_NAME,
    MANIFEST_NAME,
    MAX_TRANSACTIONS_BYTES,
    TRANSACTIONS_NAME,
    Closed,
    LogEnd,
    Manifest,
    Transactions,
)
from penstock.ledger.recovery import LastSegment, examine
from penstock.ledger.segment_header import COMPACTED, HEADER_BYTES, SegmentHeader, base_seq_of
from penstock.ledger.staging import STAGING
from penstock.queue.compaction import ARCHIVED_NAME
from penstock.queue.settings import QueueSettings

_SMALL_FILES = (MANIFEST_NAME, CLOSED_NAME, TRANSACTIONS_NAME, ARCHIVED_NAME)
_LOGS = ("events", "messages")  # in the order of reading
_LOOKS = 100  # at a directory that a writer changes


class Piece(NamedTuple):
    """A file of the cut: open, in memory, or known to the caller by its stamp."""

    name: str  # relative to the directory of the queue
    size_bytes: int
    fd: int = -1
    data: bytes = b""
    stamp: str = ""  # of a sealed segment: the same content has the same stamp


class Cut:
    """The files of a queue at one point. Close it after reading them."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.pieces: list[Piece] = []
        self.identity: int | None = None  # None: queue.json is damaged
        self.next_seqs: dict[str, int] = {}  # by log

    def close(self) -> None:
        for piece in self.pieces:
            if piece.fd >= 0:
                self._files.close(piece.fd)
        self.pieces.clear()


class _Small(NamedTuple):
    """The small files, and what they say about others."""

    contents: dict[str, bytes]
    snapshots: list[str]
    staged: list[str]  # files of an adoption that had begun


@contextmanager
def cut_of(folder: Folder, known: Container[str] = ()) -> Iterator[Cut]:
    """Read a queue at one point. Sealed segments whose name and stamp are `known` stay closed.

    Raise FileNotFoundError if the queue was deleted, LedgerError if it changes too fast.
    """
    cut = _consistent_cut(folder, known)
    try:
        yield cut
    finally:
        cut.close()


def _consistent_cut(folder: Folder, known: Container[str]) -> Cut:
    for _ in range(_LOOKS):
        cut = Cut(folder.files)
        try:
            if _Look(folder, known, cut).is_consistent():
                return cut
        except FileNotFoundError:
            if not folder.exists():
                cut.close()
                raise
        except BaseException:
            cut.close()
            raise
        cut.close()
    raise LedgerError(
        f"{folder.path} changed {_LOOKS} times while it was read: run the backup again when fewer "
        f"compactions run"
    )


class _Look:
    """One attempt to read a queue at one point."""

    def __init__(self, folder: Folder, known: Container[str], cut: Cut) -> None:
        self._folder = folder
        self._files = folder.files
        self._known = known
        self._cut = cut

    def is_consistent(self) -> bool:
        """Fill the cut. Return False if the writer made it inconsistent."""
        before = self._read_small()
        self._closed, limit = self._facts(before)
        for log in _LOGS:
            self._open_log(log, limit)
        for name in before.snapshots:
            self._open(f"snapshots/{name}", self._folder.child("snapshots").file(name))
        for name in before.staged:
            _, folder, file = name.split("/")
            self._open(name, self._folder.child(STAGING).child(folder).file(file))
        if self._read_small() != before:
            return False
        self._cut.pieces += [
            Piece(name, len(data), data=data) for name, data in before.contents.items()
        ]
        return True

    def _facts(self, small: _Small) -> tuple[Closed | None, int]:
        """Return where the logs ended at the last close, and the limit of an entry's size."""
        settings = QueueSettings()
        try:
            manifest = Manifest.unpack(small.contents.get(MANIFEST_NAME, b""))
            self._cut.identity = manifest.identity
            settings = QueueSettings.of_stored(manifest.settings)
        except NewerVersion:
            raise
        except BadEntry:
            pass  # it is copied as it is; opening the copy reports it
        closed = None
        try:
            closed = Closed.unpack(small.contents.get(CLOSED_NAME, b""))
            if closed.identity != self._cut.identity:
                closed = None
        except NewerVersion:
            raise
        except BadEntry:
            pass
        return closed, settings.storage.ledger_settings().max_entry_bytes

    def _read_small(self) -> _Small:
        contents = {}
        for name in _SMALL_FILES:
            try:
                contents[name] = self._folder.read(name, max_bytes=MAX_TRANSACTIONS_BYTES)
            except FileNotFoundError:
                pass
        snapshots = [
            name for name in self._folder.child("snapshots").names() if name.endswith(".snap")
        ]
        return _Small(contents, snapshots, self._staged(contents.get(TRANSACTIONS_NAME)))

    def _staged(self, transactions: bytes | None) -> list[str]:
        """Return the staged files that decide whether a pending adoption has happened."""
        if transactions is None:
            return []
        try:
            pending = Transactions.unpack(transactions).pending
        except NewerVersion:
            raise
        except BadEntry:
            return []  # opening the copy reports it
        if not pending or not pending["name"]:
            return []
        names = self._folder.child(STAGING).child(pending["folder"]).names()
        return [f"{STAGING}/{pending['folder']}/{name}" for name in names]

    # -- segments ----------------------------------------------------------------------------------

    def _open_log(self, log: str, max_entry_bytes: int) -> None:
        folder = self._folder.child(log)
        names = [name for name in folder.names() if base_seq_of(name) is not None]
        for name in names[:-1]:
            self._open(f"{log}/{name}", folder.file(name), sealed=True)
        if names:
            self._read_last(log, folder, names[-1], max_entry_bytes)

    def _open(self, name: str, path: str, *, sealed: bool = False) -> None:
        fd = self._files.open(path, "read")
        try:
            size = self._files.size(fd)
            stamp = self._stamp(fd) if sealed else ""
            piece = Piece(name, size, stamp=stamp)
            if not sealed or name + stamp not in self._known:
                piece = piece._replace(fd=fd)
        except BaseException:
            self._files.close(fd)
            raise
        self._cut.pieces.append(piece)
        if piece.fd < 0:
            self._files.close(fd)

    def _stamp(self, fd: int) -> str:
        """Return a text that changes when the file does. A sealed one is replaced, not changed."""
        found = os.fstat(fd)
        header = read_fully(self._files, fd, HEADER_BYTES, 0)
        return f"{found.st_ino}:{found.st_mtime_ns}:{found.st_size}:{header.hex()}"

    def _read_last(self, log: str, folder: Folder, name: str, max_entry_bytes: int) -> None:
        fd = self._files.open(folder.file(name), "read")
        try:
            data = self._bytes_of(fd)
            try:
                header = SegmentHeader.unpack(data[:HEADER_BYTES])
            except NewerVersion:
                raise
            except BadEntry:
                if codec.first_nonzero(data, min(HEADER_BYTES, len(data)), len(data)) < 0:
                    return  # it is being created, and has no entries
                end, next_seq = len(data), 0  # damaged: opening the copy reports it
            else:
                data, last = self._examined(fd, data, header, log, max_entry_bytes)
                end, next_seq = last.end, last.next_seq
            sync_what_was_read(self._files, fd)
        finally:
            self._files.close(fd)
        self._cut.next_seqs[log] = next_seq
        self._cut.pieces.append(Piece(f"{log}/{name}", end, data=data[:end]))

    def _examined(
        self, fd: int, data: bytes, header: SegmentHeader, log: str, max_entry_bytes: int
    ) -> tuple[bytes, LastSegment]:
        """Find the end of the entries. Read again if the writer wrote between two pages."""
        closed_at = 0
        if self._closed is not None and not header.flags & COMPACTED:
            end: LogEnd = getattr(self._closed, log)
            closed_at = end.bytes if end.last == header.base_seq else 0
        before = None
        while True:
            last = examine(
                memoryview(data), header, max_entry_bytes=max_entry_bytes, closed_at=closed_at
            )
            if not last.holes or (before is not None and before.holes == last.holes):
                return data, last
            before, data = last, self._bytes_of(fd)

    def _bytes_of(self, fd: int) -> bytes:
        return read_fully(self._files, fd, self._files.size(fd), 0)
