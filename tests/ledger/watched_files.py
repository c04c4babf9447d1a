"""The real files, counted, and with a free disk, a file system and a sync as a test wants them."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from penstock.ledger.files import Mapping, OpenMode, OsFiles


class WatchedFiles(OsFiles):
    """OsFiles that tell what was asked of them."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.written_bytes = 0
        self.read_bytes = 0
        self.free: int | None = None  # what `free_bytes` answers; None: the truth
        self.kind: str | None = None  # what `file_system` answers; None: the truth
        self.before_fdatasync: Callable[[], object] = lambda: None
        self.after_fdatasync: Callable[[], object] = lambda: None
        self._lock = Lock()

    def _count(self, name: str) -> None:
        with self._lock:
            self.calls[name] += 1

    def open(self, path: str, mode: OpenMode) -> int:
        self._count("open")
        self._count(f"open {Path(path).suffix}")
        return super().open(path, mode)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        data = super().pread(fd, length, offset)
        self.read_bytes += len(data)
        return data

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self._count("pwrite")
        written = super().pwrite(fd, data, offset)
        self.written_bytes += written
        return written

    def fdatasync(self, fd: int) -> None:
        self._count("fdatasync")
        self.before_fdatasync()
        super().fdatasync(fd)
        self.after_fdatasync()

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        self._count("map")
        return super().map(fd, size, writable=writable)

    def free_bytes(self, path: str) -> int:
        return super().free_bytes(path) if self.free is None else self.free

    def file_system(self, path: str) -> str:
        return super().file_system(path) if self.kind is None else self.kind
