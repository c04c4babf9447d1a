"""A file system in memory that writes down everything done to it, in order.

Stores into mapped memory pass no method, so they are found by comparing: before each recorded
operation, and at each `mark`, what has changed in the mapped pages is recorded as writes.
"""

import threading
from dataclasses import dataclass, field
from typing import Any

from penstock.ledger.files import Mapping, OpenMode
from penstock.ledger.memory_files import BLOCK_BYTES, DirectoryNode, FileNode, MemoryFiles
from tests.harness.disk import (
    Disk,
    Link,
    MakeDirectory,
    Operation,
    Rename,
    Sync,
    SyncDirectory,
    SyncFailed,
    Truncate,
    Unlink,
    Write,
)

CRASH_ROOM_BYTES = 1 << 16  # for each mapped file; crash tests use small segments, and many files


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that the test named, usually: this call was answered now."""

    value: Any


@dataclass(slots=True)
class Journal:
    """The disk that a life began with, and what was done since."""

    start: Disk = field(default_factory=Disk)
    marks: tuple[Any, ...] = ()  # what earlier lives on the same disk had marked
    steps: list[Operation | Mark] = field(default_factory=list)

    def end(self) -> Disk:
        """The disk after all of it."""
        disk = self.start.copy()
        for step in self.steps:
            if not isinstance(step, Mark):
                disk.apply(step)
        return disk


@dataclass(slots=True)
class _Watched:
    node: FileNode
    known: bytes


class RecordedFiles(MemoryFiles):
    """MemoryFiles with a journal."""

    def __init__(
        self,
        start: Disk | None = None,
        *,
        marks: tuple[Any, ...] = (),
        mapped_room_bytes: int = CRASH_ROOM_BYTES,
    ) -> None:
        start = Disk() if start is None else start
        super().__init__(start.cached(), mapped_room_bytes=mapped_room_bytes, seed="recorded")
        # Numbers of files that the image no longer shows may still stand in the start's history.
        self._top_number = max(self._top_number, start.top())
        self.journal = Journal(start, marks)
        self._watched: dict[int, _Watched] = {}
        self._lock = threading.RLock()

    def mark(self, value: Any) -> None:
        """Note that something happened now: usually that a call was answered."""
        with self._lock:
            self._record(Mark(value))

    def sync_failed(self, fd: int) -> None:
        """An fdatasync of this file failed: what it should have written is in doubt for ever."""
        with self._lock:
            self._record(SyncFailed(self._handle(fd).node.number))

    # -- content -------------------------------------------------------------------------------

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        with self._lock:
            self._record_stores()
            written = super().pwrite(fd, data, offset)
            node = self._handle(fd).node
            self.journal.steps.append(Write(node.number, offset, bytes(data[:written])))
            self._look_again(node)
            return written

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            self._record_stores()
            super().truncate(fd, size)
            node = self._handle(fd).node
            self.journal.steps.append(Truncate(node.number, size))
            self._look_again(node)

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            super().fdatasync(fd)
            self._record(Sync(self._handle(fd).node.number))

    def write_again(self, fd: int, offset: int) -> None:
        with self._lock:
            self._record_stores()
            super().write_again(fd, offset)
            node = self._handle(fd).node
            if offset < node.size:
                self.journal.steps.append(Write(node.number, offset, node.content()[offset:]))

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        with self._lock:
            mapping = super().map(fd, size, writable=writable)
            node = self._handle(fd).node
            if writable and node.number not in self._watched:
                self._watched[node.number] = _Watched(node, node.content())
            return mapping

    # -- names ---------------------------------------------------------------------------------

    def open(self, path: str, mode: OpenMode) -> int:
        with self._lock:
            fd = super().open(path, mode)
            if mode == "create":
                directory, name = self._parent(path)
                number = self._handle(fd).node.number
                self._record(Link(directory.number, name, number))
            return fd

    def make_directory(self, path: str) -> None:
        with self._lock:
            if self.exists(path):
                return super().make_directory(path)
            super().make_directory(path)
            directory, name = self._parent(path)
            self._record(MakeDirectory(directory.number, name, self._find(path).number))

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            number = self._find(source).number
            super().rename(source, target)
            source_directory, source_name = self._parent(source)
            target_directory, target_name = self._parent(target)
            self._record(
                Rename(
                    source_directory.number,
                    source_name,
                    target_directory.number,
                    target_name,
                    number,
                )
            )

    def unlink(self, path: str) -> None:
        with self._lock:
            number = self._find(path).number
            super().unlink(path)
            self._record_unlink(path, number)

    def remove_directory(self, path: str) -> None:
        with self._lock:
            number = self._find(path).number
            super().remove_directory(path)
            self._record_unlink(path, number)

    def sync_directory(self, path: str) -> None:
        with self._lock:
            super().sync_directory(path)
            directory: DirectoryNode = self._directory(path)
            self._record(SyncDirectory(directory.number))

    # -- inside --------------------------------------------------------------------------------

    def _record(self, step: Operation | Mark) -> None:
        self._record_stores()
        self.journal.steps.append(step)

    def _record_unlink(self, path: str, number: int) -> None:
        directory, name = self._parent(path)
        self._record(Unlink(directory.number, name, number))

    def _record_stores(self) -> None:
        for number, watched in list(self._watched.items()):
            if not watched.node.is_viewed():
                del self._watched[number]  # whatever was stored since is still looked at now
            content = watched.node.content()
            if content == watched.known:
                continue
            for start, end in changed_ranges(watched.known, content):
                store = Write(number, start, content[start:end], mapped=True)
                self.journal.steps.append(store)
            watched.known = content

    def _look_again(self, node: FileNode) -> None:
        watched = self._watched.get(node.number)
        if watched is not None:
            watched.known = node.content()


def changed_ranges(old: bytes, new: bytes) -> list[tuple[int, int]]:
    """Where two contents of one size differ: one range for each run of changed blocks.

    >>> changed_ranges(b"abcdef", b"abXdYf")
    [(2, 5)]
    """
    assert len(old) == len(new), "a mapped file changed its size outside of the seam"
    ranges: list[tuple[int, int]] = []
    for start in range(0, len(new), BLOCK_BYTES):
        before, after = old[start : start + BLOCK_BYTES], new[start : start + BLOCK_BYTES]
        if before == after:
            continue
        changed = [at for at in range(len(after)) if before[at] != after[at]]
        first, end = start + changed[0], start + changed[-1] + 1
        if ranges and (ranges[-1][1] - 1) // BLOCK_BYTES == start // BLOCK_BYTES - 1:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((first, end))
    return ranges
