"""Unix sockets in deep directories.

The system allows 107 bytes for the address of a Unix socket. The path of an open directory below
/proc is short, however deep the directory is.
"""

import os
import socket

from penstock.errors import InvalidInput
from penstock.locks import Lock

MAX_BYTES = 107  # of `sun_path` on Linux, without the NUL at its end
_MAX_DIRECTORIES = 1000  # each is an open file
_directories: dict[tuple[int, int], int] = {}  # kept open: a client connects at any time
_lock = Lock()


def short_path(path: str) -> str:
    """Return an address of the socket at a path that the system accepts, in this process.

    >>> short_path("/run/penstock.sock")
    '/run/penstock.sock'
    """
    if len(os.fsencode(path)) <= MAX_BYTES:
        return path
    directory, name = os.path.split(path)
    address = f"/proc/self/fd/{_descriptor(directory)}/{name}"
    if len(os.fsencode(address)) > MAX_BYTES or not os.path.exists(os.path.dirname(address)):
        raise InvalidInput(
            f"{path} has {len(os.fsencode(path))} bytes, and the system allows {MAX_BYTES} for a "
            f"socket: use a shorter path"
        )
    return address


def connect_unix(path: str, timeout_s: float) -> socket.socket:
    """Return a connection to the socket at a path, which has this timeout from now on."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.settimeout(timeout_s)
        one.connect(short_path(path))
    except BaseException:
        one.close()
        raise
    return one


def _descriptor(directory: str) -> int:
    try:
        found = os.open(directory, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
    except OSError as error:
        raise InvalidInput(f"{directory}: {error.strerror}; it has no socket") from None
    state = os.fstat(found)
    with _lock:
        known = _directories.setdefault((state.st_dev, state.st_ino), found)
        if known != found:
            os.close(found)
        elif len(_directories) > _MAX_DIRECTORIES:
            del _directories[state.st_dev, state.st_ino]
            os.close(found)
            raise InvalidInput(f"sockets in more than {_MAX_DIRECTORIES} deep directories are used")
    return known


def _forked() -> None:
    global _lock
    _lock = Lock()  # a thread of the parent may hold it; the descriptors are good here as well


os.register_at_fork(after_in_child=_forked)
