"""Files that fail on demand."""

import errno
from collections import Counter
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from penstock.ledger.files import Files, Mapping, OpenMode, os_error

# The calls that can fail on a real system. `exists` cannot (any error means "no"); `join`,
# `holder_name`, `random_identity` and `file_system` ask nothing of a disk; what `close` says comes
# too late to matter.
FALLIBLE = frozenset(
    {
        "create",  # `open` of a new file, which needs space; the other opens do not
        "open",
        "size",
        "pread",
        "pwrite",
        "truncate",
        "fdatasync",
        "write_again",
        "start_writing",
        "map",
        "make_directory",
        "names",
        "rename",
        "unlink",
        "remove_directory",
        "sync_directory",
        "lock",
        "free_bytes",
    }
)

# Which of them can fail in which way.
FAILS_WITH = {
    errno.EIO: FALLIBLE,
    errno.ENOSPC: frozenset(
        {
            "create",
            "pwrite",
            "truncate",
            "fdatasync",
            "write_again",
            "make_directory",
            "rename",
            "unlink",
            "sync_directory",
        }
    ),
    errno.EFBIG: frozenset({"pwrite", "truncate"}),
    errno.EMFILE: frozenset({"create", "open", "names", "sync_directory", "map"}),
}

SHORT_WRITE = 0  # not an error number: a pwrite that writes half of what it was given


@dataclass(frozen=True, slots=True)
class Fault:
    """The n-th call of the chosen methods fails, alone or with every later one."""

    nth: int  # counted from 1, over all chosen methods together
    error: int = errno.EIO  # an error number, or SHORT_WRITE
    forever: bool = False
    methods: frozenset[str] = FALLIBLE


@runtime_checkable
class _KnowsFailedSyncs(Protocol):
    def sync_failed(self, fd: int) -> None: ...


class FaultyFiles:
    """Passes every call on to other files, counts it, and fails those that `fault` names."""

    keeps_order = False

    def __init__(self, files: Files, fault: Fault | None = None) -> None:
        self.files = files
        self.fault = fault
        self.calls: Counter[str] = Counter()
        self.chosen_calls = 0  # of the methods of the fault
        self.failures: list[tuple[str, str]] = []  # (method, path) of the calls that failed
        self._path_of: dict[int, str] = {}

    def heal(self) -> None:
        """From now on nothing fails."""
        self.fault = None

    def _strikes(self, method: str, path: str) -> int | None:
        """Count a call; the error it must meet, None if it goes well."""
        self.calls[method] += 1
        fault = self.fault
        if fault is None or method not in fault.methods:
            return None
        self.chosen_calls += 1
        if self.chosen_calls == fault.nth or (fault.forever and self.chosen_calls > fault.nth):
            self.failures.append((method, path))
            return fault.error
        return None

    def _pass(self, method: str, path: str) -> None:
        error = self._strikes(method, path)
        if error:
            raise os_error(error, path)

    def _pass_fd(self, method: str, fd: int) -> None:
        self._pass(method, self._path_of.get(fd, ""))

    def open(self, path: str, mode: OpenMode) -> int:
        self._pass("create" if mode == "create" else "open", path)
        fd = self.files.open(path, mode)
        self._path_of[fd] = path
        return fd

    def close(self, fd: int) -> None:
        # The system closes the file whatever it reports, so a fault comes after the fact.
        self.files.close(fd)
        self._pass_fd("close", fd)

    def size(self, fd: int) -> int:
        self._pass_fd("size", fd)
        return self.files.size(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._pass_fd("pread", fd)
        return self.files.pread(fd, length, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        error = self._strikes("pwrite", self._path_of.get(fd, ""))
        if error == SHORT_WRITE and len(data) > 1:
            return self.files.pwrite(fd, data[: len(data) // 2], offset)
        if error:
            raise os_error(error)
        return self.files.pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._pass_fd("truncate", fd)
        self.files.truncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        error = self._strikes("fdatasync", self._path_of.get(fd, ""))
        if error:
            if isinstance(self.files, _KnowsFailedSyncs):
                self.files.sync_failed(fd)
            raise os_error(error)
        self.files.fdatasync(fd)

    def write_again(self, fd: int, offset: int) -> None:
        self._pass_fd("write_again", fd)
        self.files.write_again(fd, offset)

    def start_writing(self, fd: int, offset: int, length: int) -> None:
        self._pass_fd("start_writing", fd)
        self.files.start_writing(fd, offset, length)

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        self._pass_fd("map", fd)
        return self.files.map(fd, size, writable=writable)

    def make_directory(self, path: str) -> None:
        self._pass("make_directory", path)
        self.files.make_directory(path)

    def names(self, path: str) -> list[str]:
        self._pass("names", path)
        return self.files.names(path)

    def exists(self, path: str) -> bool:
        self._pass("exists", path)
        return self.files.exists(path)

    def rename(self, source: str, target: str) -> None:
        self._pass("rename", source)
        self.files.rename(source, target)

    def unlink(self, path: str) -> None:
        self._pass("unlink", path)
        self.files.unlink(path)

    def remove_directory(self, path: str) -> None:
        self._pass("remove_directory", path)
        self.files.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self._pass("sync_directory", path)
        self.files.sync_directory(path)

    def lock(self, fd: int) -> bool:
        self._pass_fd("lock", fd)
        return self.files.lock(fd)

    def free_bytes(self, path: str) -> int:
        self._pass("free_bytes", path)
        return self.files.free_bytes(path)

    def file_system(self, path: str) -> str:
        return self.files.file_system(path)

    def join(self, directory: str, name: str) -> str:
        return self.files.join(directory, name)

    def holder_name(self) -> tuple[int, str]:
        return self.files.holder_name()

    def random_identity(self) -> int:
        return self.files.random_identity()
