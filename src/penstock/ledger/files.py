"""The seam to the operating system: every file call of Penstock goes through `Files`.

Tests replace it: by a file system in memory that records what was written and synced (and builds
what a crash could leave), and by one that fails the n-th call. So nothing here decides anything;
each method is one operation with one meaning, and raises OSError as the system does.
"""

import errno
import fcntl
import mmap
import os
import stat
from typing import TYPE_CHECKING, Literal, Protocol
from weakref import WeakSet

from penstock.compiled import compiled_or_none
from penstock.errors import DiskFull, LedgerError, LedgerStopped
from penstock.locks import Lock

if TYPE_CHECKING:
    from penstock.ledger import sync_pool
else:
    sync_pool = compiled_or_none("penstock.ledger.sync_pool")

_DIRECT_BYTES = 4096  # direct writes come in multiples of the disk's sectors: none are larger
_DIRECT_CHUNK_BYTES = 1 << 20

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

OpenMode = Literal["read", "write", "create"]


class Mapping(Protocol):
    """A file seen as memory, for as long as someone holds `view` or a slice of it.

    There is no close: a reader in another thread may be in the middle of it. Dropping the last
    reference gives the memory back.
    """

    @property
    def view(self) -> memoryview:
        """The bytes; writable if the mapping is."""


class Files(Protocol):
    """The file operations that the ledger needs."""

    @property
    def keeps_order(self) -> bool:
        """Whether changes become durable in their order, names included, or together: then a new
        segment needs no sync of its own, as the next sync covers everything before it."""

    def open(self, path: str, mode: OpenMode) -> int:
        """Open an existing file ("read", "write") or make a new one ("create", exclusively)."""

    def close(self, fd: int) -> None: ...

    def size(self, fd: int) -> int: ...

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Write some of the data and return the number of bytes: the caller loops."""

    def truncate(self, fd: int, size: int) -> None: ...

    def fdatasync(self, fd: int) -> None:
        """Make content and size durable."""

    def write_again(self, fd: int, offset: int) -> None:
        """Write the content from `offset` on again, for use after an fdatasync that failed.

        The system may then take pages for written that are not on disk. Call fdatasync afterwards.
        """

    def start_writing(self, fd: int, offset: int, length: int) -> None:
        """Hint: start writing a range to disk, so that a later sync is short."""

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        """Return the first `size` bytes as shared memory. The file must be that large."""

    def make_directory(self, path: str) -> None:
        """Make it; nothing happens where there is one. The parent must exist."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing the target."""

    def unlink(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def lock(self, fd: int) -> bool:
        """Lock an open file exclusively, for as long as it is open; False if it is locked."""

    def free_bytes(self, path: str) -> int:
        """Return how much an ordinary user may still write on the file system of `path`."""

    def file_system(self, path: str) -> str:
        """Return the name of the type of `path`'s file system; "" if unknown."""

    def join(self, directory: str, name: str) -> str:
        """Return the path of a plain name in a directory."""

    def holder_name(self) -> tuple[int, str]:
        """Process id and host name, for the lock's error message."""

    def random_identity(self) -> int:
        """Return 32 random bits to identify a queue."""


# Linux has all three, macOS none.
_HAS_FDATASYNC = hasattr(os, "fdatasync")
_HAS_FADVISE = hasattr(os, "posix_fadvise")
_HAS_DIRECT = hasattr(os, "O_DIRECT")


class _OsMapping:
    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self.view = memoryview(mmap.mmap(fd, size, access=access))


def _sync_to_drive(fd: int) -> None:
    """Do what fdatasync does, on macOS: its fsync leaves data in the cache of the drive."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(fd)
    else:
        fcntl.fcntl(fd, full)


def _write_direct(fd: int, data: memoryview, offset: int) -> None:
    """Write past the cache; through it, where the system has no other way."""
    if not _HAS_DIRECT:
        return _write_all(fd, data, offset)
    try:
        direct = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return _write_all(fd, data, offset)
    try:
        _write_all(direct, data, offset)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _write_all(fd, data, offset)
    finally:
        os.close(direct)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data = data[written:]
        offset += written


def _give_to_owner_of_directory(path: str, made: int | str) -> None:
    """Give a new file or directory to the owner of its directory, if root made it.

    A command that root runs must not leave files that the user of the broker cannot read.
    """
    if os.geteuid() == 0:
        around = os.stat(os.path.dirname(path) or ".")
        if around.st_uid:
            os.chown(made, around.st_uid, around.st_gid)


def give_to_owner_of(model: str, path: str) -> None:
    """Give a directory that root made to the owner of another one. Its content follows."""
    if os.geteuid() == 0:
        found = os.stat(model)
        os.chown(path, found.st_uid, found.st_gid)


class OsFiles:
    """The real thing."""

    keeps_order = False

    def open(self, path: str, mode: OpenMode) -> int:
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        if mode == "read":
            return os.open(path, flags | os.O_RDONLY)
        if mode == "write":
            return os.open(path, flags | os.O_RDWR)
        fd = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
        _give_to_owner_of_directory(path, fd)
        return fd

    close = staticmethod(os.close)  # itself: no interrupt falls between the call and the closing

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        return os.pread(fd, length, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        if _HAS_FDATASYNC:
            os.fdatasync(fd)
        else:
            _sync_to_drive(fd)

    def write_again(self, fd: int, offset: int) -> None:
        # Past the cache. Written into it once more, the pages go to the blocks they have, but ext4
        # still has noted that these were never written, and shows zeros when the cache is gone.
        size = os.fstat(fd).st_size
        chunk = mmap.mmap(-1, _DIRECT_CHUNK_BYTES)  # aligned, as direct writes must be
        for start in range(offset - offset % _DIRECT_BYTES, size, len(chunk)):
            count = os.preadv(fd, [chunk], start)
            padded = -(-count // _DIRECT_BYTES) * _DIRECT_BYTES
            chunk[count:padded] = bytes(padded - count)
            _write_direct(fd, memoryview(chunk)[:padded], start)
        os.ftruncate(fd, size)

    def start_writing(self, fd: int, offset: int, length: int) -> None:
        # "Not needed" starts the writing of what is dirty. What is mapped stays in memory.
        if not _HAS_FADVISE:
            return  # a hint only
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        return _OsMapping(fd, size, writable=writable)

    def make_directory(self, path: str) -> None:
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise
        else:
            _give_to_owner_of_directory(path, path)

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        return True

    def free_bytes(self, path: str) -> int:
        space = os.statvfs(path)
        return space.f_bavail * space.f_frsize

    def file_system(self, path: str) -> str:
        path = os.path.realpath(path)
        best, kind = "", ""
        try:
            with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
                for line in mounts:
                    _, mount, fs_type, *_ = line.split(" ")
                    mount = mount.replace("\\040", " ")
                    inside = path == mount or path.startswith(mount.rstrip("/") + "/")
                    if inside and len(mount) >= len(best):
                        best, kind = mount, fs_type
        except OSError:
            return ""
        return kind

    def join(self, directory: str, name: str) -> str:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} is not a plain file name")
        return os.path.join(directory, name)

    def holder_name(self) -> tuple[int, str]:
        return holder_name()

    def random_identity(self) -> int:
        return int.from_bytes(os.urandom(4), "little")


# -- syncs in the background -----------------------------------------------------------------------


def new_sync_lock() -> "sync_pool.SyncLock | Lock":
    """Return a lock to hold while a file is synced. `start_sync` needs the compiled one."""
    return Lock() if sync_pool is None else sync_pool.SyncLock()


def new_sync_pool(files: Files, most_threads: int) -> "sync_pool.SyncPool | None":
    """Return threads that sync files without the interpreter lock.

    Return None if it was not compiled, or if `files` is not the real thing: a test that replaces
    `fdatasync` must see every call.
    """
    if sync_pool is None or type(files) is not OsFiles:
        return None
    return sync_pool.SyncPool(most_threads)


# -- for file systems in memory --------------------------------------------------------------------

Memory = mmap.mmap


def anonymous_memory(size: int) -> Memory:
    """Return zeroed memory that takes no space until it is written to, and never moves."""
    return mmap.mmap(-1, size)


def os_error(number: int, path: str | None = None) -> OSError:
    """Return the OSError (of the right subclass) that the system raises for an error number."""
    return OSError(number, os.strerror(number), path)


def holder_name() -> tuple[int, str]:
    """Return the process id and the host name."""
    return os.getpid(), os.uname().nodename


# -- fork ------------------------------------------------------------------------------------------


class Forkable(Protocol):
    """Something that a forked child inherits and must not use."""

    def forked(self) -> None:
        """Called in the child, right after the fork."""


_inherited: WeakSet[Forkable] = WeakSet()


def watch_fork(handle: Forkable) -> None:
    """Have `handle.forked()` called in every child that this process forks."""
    _inherited.add(handle)


def _tell_the_inherited() -> None:
    errors = []
    for handle in list(_inherited):
        try:
            handle.forked()
        except Exception as error:  # the others hold locks of their own: each must be told
            errors.append(error)
    if errors:
        raise errors[0]  # Python prints it


os.register_at_fork(after_in_child=_tell_the_inherited)


FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)


def as_ledger_error(path: str, doing: str, error: OSError) -> LedgerError:
    """Return the error for a call that failed; the ledger goes on."""
    kind = DiskFull if error.errno in FULL_ERRORS else LedgerError
    return kind(f"{path}: {doing} failed: {error}")


def as_passing_error(path: str, error: OSError) -> LedgerError | None:
    """Return the error for a lack of room that may pass; None for any other error."""
    if error.errno in FULL_ERRORS:
        return DiskFull(f"{path}: no room to grow ({error}); nothing was written")
    if error.errno in _OUT_OF_FILES:
        return LedgerError(
            f"{path}: too many open files ({error}); nothing was written. Raise the limit of this "
            f"process (ulimit -n), open fewer queues in it, or use a broker."
        )
    return None


def as_final_error(path: str, doing: str, error: OSError) -> LedgerStopped:
    """Return the error for a failed write or sync, after which the ledger stops."""
    stopped = LedgerStopped(
        f"{path}: {doing} failed ({error}). What was not answered may be lost, and a second try "
        f"could not be trusted: close and reopen, recovery then shows what is on disk."
    )
    stopped.__cause__ = error
    return stopped
