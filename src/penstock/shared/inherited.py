"""Sockets and locks in a forked child.

A child has copies of its parent's descriptors. As long as a copy of a socket is open, clients do
not notice that the parent died; as long as one of a locked file is, the lock is held. So the child
replaces each by an open /dev/null: the number stays in use, and an object of the parent that is
garbage in the child closes no other file.
"""

import os
import socket
import stat

from penstock.ledger.queue_directory import LOCK_NAME, SOCKET_NAMES

_LOCK_NAMES = SOCKET_NAMES | {LOCK_NAME}
_MOST_FILES = 65_536  # looked at if there is no /proc


def replace_sockets_at(address: str) -> None:
    """Replace the socket that listens at an address, and all connections that it accepted."""
    for fd in _open_files():
        if _address_of(fd) == address:
            replace(fd)


def replace_locks_in(directory: str) -> None:
    """Replace the locked files of a directory, and of those in it."""
    for fd in _open_files():
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if path.startswith(f"{directory}/") and os.path.basename(path) in _LOCK_NAMES:
            replace(fd)


def replace(fd: int) -> None:
    """Let a descriptor refer to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(null, fd, inheritable=False)
    finally:
        os.close(null)


def _open_files() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return list(range(3, _MOST_FILES))


def _address_of(fd: int) -> str | None:
    """Return the address of a Unix socket; accepted connections have that of their listener."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        one = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        found = one.getsockname() if one.family == socket.AF_UNIX else None
        return found if isinstance(found, str) else None
    except OSError:
        return None
    finally:
        one.detach()
