"""A directory and the few things done with whole files in it."""

import errno
from contextlib import suppress

from penstock.ledger.files import Files

TEMPORARY_SUFFIX = ".tmp"
_CANNOT_SYNC = (errno.EROFS, errno.EINVAL)  # the file system is mounted read-only


class Folder:
    """One directory of a ledger, seen through the Files seam."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path

    def child(self, name: str) -> "Folder":
        """Return a directory inside this one; it need not exist."""
        return Folder(self.files, self.files.join(self.path, name))

    def parent(self) -> "Folder":
        """Return the directory that holds this one; `/` and `.` are their own parents."""
        head, slash, _ = self.path.rstrip("/").rpartition("/")
        return Folder(self.files, head or slash or ("." if self.path.rstrip("/") else "/"))

    def make(self) -> None:
        """Make the directory if it does not exist. The parent must exist; the caller syncs it."""
        self.files.make_directory(self.path)

    def exists(self) -> bool:
        return self.files.exists(self.path)

    def file(self, name: str) -> str:
        """Return the path of a file in this directory."""
        return self.files.join(self.path, name)

    def has(self, name: str) -> bool:
        return self.files.exists(self.file(name))

    def names(self) -> list[str]:
        """Return the names in it, without temporary files; [] if the directory is missing."""
        return [name for name in self._all_names() if not name.endswith(TEMPORARY_SUFFIX)]

    def read(self, name: str, *, max_bytes: int) -> bytes:
        """Return the content of a small file; raise ValueError if it is larger than `max_bytes`."""
        fd = self.files.open(self.file(name), "read")
        try:
            size = self.files.size(fd)
            if size > max_bytes:
                raise ValueError(f"{name} has {size} bytes; the maximum is {max_bytes}")
            return read_fully(self.files, fd, size, 0)
        finally:
            self.files.close(fd)

    def replace(self, name: str, data: bytes, *, sync_name: bool = True) -> None:
        """Replace a file durably. A crash leaves the old content or the new one.

        Without `sync_name` it may still be the old one, until the next `sync`.
        """
        temporary = name + TEMPORARY_SUFFIX
        if self.has(temporary):
            self.files.unlink(self.file(temporary))
        fd = self.files.open(self.file(temporary), "create")
        try:
            write_fully(self.files, fd, data, 0)
            if not self.files.keeps_order:
                self.files.fdatasync(fd)
        finally:
            self.files.close(fd)
        self.files.rename(self.file(temporary), self.file(name))
        if sync_name:
            self.sync()

    def remove(self, name: str) -> None:
        """Unlink a file; durable after the next `sync`."""
        self.files.unlink(self.file(name))

    def sync(self) -> None:
        """Make the names in it durable."""
        self.files.sync_directory(self.path)

    def sweep(self) -> None:
        """Remove temporary files that a crash left."""
        strays = [name for name in self._all_names() if name.endswith(TEMPORARY_SUFFIX)]
        for name in strays:
            self.remove(name)
        if strays:
            self.sync()

    def _all_names(self) -> list[str]:
        try:
            return self.files.names(self.path)
        except FileNotFoundError:
            return []


def remove_tree(folder: Folder) -> None:
    """Remove a directory with its content, or a file. Another thread may do the same."""
    files = folder.files
    try:
        names = files.names(folder.path)
        for name in names:
            remove_tree(folder.child(name))
        files.remove_directory(folder.path)
    except NotADirectoryError:
        with suppress(FileNotFoundError):
            files.unlink(folder.path)
    except FileNotFoundError:
        pass


def write_fully(files: Files, fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of the data, however the system splits it."""
    view = memoryview(data)
    while view:
        written = files.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def sync_what_was_read(files: Files, fd: int) -> None:
    """Make a file durable that another process writes: a reader must not be ahead of the disk.

    Do nothing on a file system that is mounted read-only.
    """
    try:
        files.fdatasync(fd)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def read_fully(files: Files, fd: int, length: int, offset: int) -> bytes:
    """Return `length` bytes, or fewer at the end of the file."""
    parts = []
    while length > 0:
        part = files.pread(fd, length, offset)
        if not part:
            break
        parts.append(part)
        length -= len(part)
        offset += len(part)
    return b"".join(parts)
