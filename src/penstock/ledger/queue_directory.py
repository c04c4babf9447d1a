"""The directory of a queue: where it may be, and the lock of its one writer."""

import json
from datetime import UTC, datetime

from penstock.clock import Clock
from penstock.errors import LedgerLocked, NotALedger, RefusedFileSystem
from penstock.ledger.folder import Folder, read_fully, write_fully
from penstock.ledger.json_files import MANIFEST_NAME

# Where the process that holds the lock serves others; see `penstock.shared`.
SOCKET_NAME = "SOCKET"
SOCKET_NAMES = frozenset([SOCKET_NAME, f"{SOCKET_NAME}.lock"])
# Made before queue.json.
_EARLY_NAMES = frozenset(["LOCK", "messages", "events", "snapshots"]) | SOCKET_NAMES
NETWORK_FILE_SYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ncpfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "9p",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.rclone",
    ]
)


def check_location(root: Folder, *, create: bool, network_too: bool) -> None:
    """Check that a directory is a queue or can become one; make it if `create` allows it.

    Raise NotALedger or RefusedFileSystem, and change nothing, if it cannot be one.
    """
    if not root.exists():
        if not create:
            raise NotALedger(f"{root.path} does not exist")
        make_with_parents(root)
    elif not is_made(root):
        if not create:
            raise NotALedger(f"{root.path} is not a queue: there is no {MANIFEST_NAME} in it")
        strangers = [name for name in root.names() if name not in _EARLY_NAMES]
        if strangers and not is_made(root):  # another process may have made it since
            raise NotALedger(
                f"{root.path} is not a queue and not empty ({strangers[0]!r} is in it): name an "
                f"empty directory, or a new one"
            )
        root.parent().sync()  # perhaps we died right after making it
    kind = root.files.file_system(root.path)
    if kind in NETWORK_FILE_SYSTEMS and not network_too:
        raise RefusedFileSystem(
            f"{root.path} is on a network file system ({kind}), where locks and syncs are not "
            f"reliable. Use a local disk, or set allow_network_file_system=True."
        )


def make_with_parents(folder: Folder) -> None:
    """Make a directory and its missing parents, each durable before the next is made."""
    missing = []
    while not folder.exists() and folder.path != folder.parent().path:
        missing.append(folder)
        folder = folder.parent()
    if missing:
        folder.parent().sync()  # a process may have died right after making this one
    for one in reversed(missing):
        one.make()
        one.parent().sync()


def is_made(root: Folder) -> bool:
    """Return whether there is a queue. A queue whose creation was cut off does not count."""
    return root.has(MANIFEST_NAME) or any(
        root.child(name).names() for name in ("messages", "events")
    )


LOCK_NAME = "LOCK"
_MAX_LOCK_BYTES = 4096


def announced_url(folder: Folder) -> str | None:
    """Return the URL that the holder of a directory's lock has announced; None if there is none."""
    try:
        url = json.loads(folder.read(LOCK_NAME, max_bytes=_MAX_LOCK_BYTES))["url"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if isinstance(url, str) else None


class DirectoryLock:
    """The lock of the one writer, held from `take` to `release` or to the end of the process.

    The content of the file is information for people; only the kernel's lock counts.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._fd = -1

    def take(self, clock: Clock, url: str = "") -> None:
        """Take the lock; raise LedgerLocked, which names the holder, if it is held.

        `url`: announce it at once; see `announce`.
        """
        files, path = self._folder.files, self._folder.file(LOCK_NAME)
        try:
            fd = files.open(path, "write")
        except FileNotFoundError:
            try:
                fd = files.open(path, "create")
            except FileExistsError:
                fd = files.open(path, "write")
        try:
            if not files.lock(fd):
                raise LedgerLocked(self._holder_sentence(fd))
            self._write_name(fd, clock, url)
        except BaseException:
            files.close(fd)
            raise
        self._fd = fd

    def announce(self, clock: Clock, url: str) -> None:
        """Write a URL into the file, for processes that find the directory locked."""
        if self._fd >= 0:
            self._write_name(self._fd, clock, url)

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._folder.files.close(fd)

    def _write_name(self, fd: int, clock: Clock, url: str = "") -> None:
        files = self._folder.files
        pid, host = files.holder_name()
        since = datetime.fromtimestamp(clock.now_ns() / 1e9, UTC).isoformat(timespec="seconds")
        name = {"pid": pid, "host": host, "since": since, **({"url": url} if url else {})}
        holder = json.dumps(name).encode() + b"\n"
        try:
            files.truncate(fd, 0)
            write_fully(files, fd, holder, 0)
        except OSError:
            pass  # for example a full disk, on which the queue must still open

    def _holder_sentence(self, fd: int) -> str:
        path = self._folder.path
        try:
            holder = json.loads(read_fully(self._folder.files, fd, _MAX_LOCK_BYTES, 0))
            who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            who = "another process"
        return (
            f"{path} is being written by {who}. One directory has one writer: close the other, "
            f"open this one read-only, open both with shared=True, or let both talk to a broker."
        )
