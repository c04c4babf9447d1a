"""What an archive needs of the store that has its files, and the store in a directory.

Every store gives the same guarantee for a manifest: `create` makes a whole file, or returns False
because one of that name exists, whatever else happens at the same time.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.archive.faults import ArchiveError
from penstock.errors import InvalidInput

_LOCK = "_lock"
_TEMPORARY = ".{}.tmp"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a store. Its path is relative to the archive."""

    path: str
    size_bytes: int
    modified_ns: int


class ArchiveStore(Protocol):
    """The files of an archive, by paths relative to it. Can be sent to another process.

    Methods raise ArchiveError if the store refuses or cannot be reached.
    """

    @property
    def shown(self) -> str:
        """The location, for messages: without secrets."""

    @property
    def has_lock(self) -> bool:
        """Whether `locked` keeps other jobs out. If not, jobs must not share names of files."""

    def check(self) -> None:
        """Raise if an archive cannot be here."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep other jobs out, if the store can."""

    def read(self, path: str) -> bytes:
        """Return a file. Raise FileNotFoundError if there is none."""

    def write(self, path: str, data: bytes) -> None:
        """Store a file, or replace it. It is whole and durable on return."""

    def create(self, path: str, data: bytes) -> bool:
        """Store a file that does not exist. Return False, changing nothing, if it does."""

    def delete(self, path: str) -> None:
        """Remove a file, if it exists."""

    def files(self, folder: str) -> list[StoredFile]:
        """Return all files below a folder, sorted by path. A missing folder has none."""

    def remove_leftovers(self, folder: str) -> None:
        """Remove what interrupted writes left below a folder. Caller holds the lock."""


class LocalStore:
    """An archive in a directory of this machine, or of a file system that all machines mount."""

    def __init__(self, root: str) -> None:
        self._root = Path(root).absolute()
        self._shown = root

    @property
    def shown(self) -> str:
        return self._shown

    @property
    def root(self) -> Path:
        return self._root

    @property
    def has_lock(self) -> bool:
        return True

    def check(self) -> None:
        if self._root.exists() and not self._root.is_dir():
            raise InvalidInput(f"{self._shown} is not a directory")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the archive for one job. The lock ends with the process."""
        make_directory(self._root)
        lock = self._root / _LOCK
        with _refused(lock):
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveError(
                    f"another job is archiving to {self._shown}: wait until it has finished"
                ) from None
            yield
        finally:
            os.close(fd)

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        target = self._root / path
        temporary = self._written(target, data)
        temporary.replace(target)
        sync(target.parent)

    def create(self, path: str, data: bytes) -> bool:
        target = self._root / path
        temporary = self._written(target, data)
        try:
            # A link, unlike a rename, never replaces a file.
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError:
            # The file system has no links. The lock keeps other jobs out.
            if target.exists():
                return False
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        sync(target.parent)
        return True

    def delete(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def files(self, folder: str) -> list[StoredFile]:
        found = []
        for path in sorted((self._root / folder).rglob("*")):
            if path.name.startswith(".") or not path.is_file():
                continue
            status = path.stat()
            name = path.relative_to(self._root).as_posix()
            found.append(StoredFile(name, status.st_size, status.st_mtime_ns))
        return found

    def remove_leftovers(self, folder: str) -> None:
        for leftover in (self._root / folder).rglob(_TEMPORARY.format("*")):
            leftover.unlink(missing_ok=True)

    @staticmethod
    def _written(target: Path, data: bytes) -> Path:
        make_directory(target.parent)
        temporary = target.with_name(_TEMPORARY.format(target.name))
        temporary.write_bytes(data)
        sync(temporary)
        return temporary


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, durably."""
    missing = [path, *path.parents]
    for folder in reversed([folder for folder in missing if not folder.exists()]):
        with _refused(folder):
            folder.mkdir(exist_ok=True)
        sync(folder.parent)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Raise ArchiveError if the file system does not let this process create a path."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(
            f"{path} cannot be created ({error.strerror}): choose a directory that this process "
            f"may write to"
        ) from error


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
