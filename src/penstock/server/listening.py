"""The sockets of a server: TCP addresses, and a Unix socket."""

import errno
import fcntl
import os
import select
import socket
import stat
import struct
from asyncio import BaseTransport, WriteTransport
from ipaddress import ip_address
from urllib.parse import quote

from penstock.errors import InvalidInput, LedgerError
from penstock.server.settings import ServerSettings

_BACKLOG = 2048
_PEER_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: `struct ucred` of Linux
_ENDED = getattr(select, "POLLRDHUP", 0)  # resets are always reported
_TCP_INFO = struct.Struct("B23xI")  # state and unacknowledged segments: `struct tcp_info` of Linux
_TCP_CLOSE = 7
UNIX_PEER = "unix:"  # the start of the address of a client of the Unix socket


# -- TCP -------------------------------------------------------------------------------------------


def listen(settings: ServerSettings) -> list[socket.socket]:
    """Return sockets for every address of the host, on one port."""
    return listen_on(settings.host, settings.port)


def listen_on(host: str, port: int, *, what: str = "") -> list[socket.socket]:
    """Return sockets that listen. `what` begins the message of an error."""
    sockets: list[socket.socket] = []
    wanted = port
    try:
        for family, address in _addresses(host, port):
            if not port and sockets:
                port = sockets[0].getsockname()[1]
            one = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address, port))
            one.listen(_BACKLOG)
            one.setblocking(False)
    except OSError as error:
        for one in sockets:
            one.close()
        raise InvalidInput(
            f"{what}cannot listen on {host} port {wanted}: {error.strerror or error}; "
            f"another server may be there, or the address is not this machine's"
        ) from None
    return sockets


def tcp_url(settings: ServerSettings, port: int) -> str:
    """Return the URL of the server for programs on this machine."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host)
    if host is None:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def refuse_public_without_keys(settings: ServerSettings, *, keys_required: bool) -> None:
    """Raise InvalidInput if other machines could call without an API key."""
    if keys_required or settings.insecure or not settings.tcp:
        return
    if not is_loopback(settings.host, settings.port):
        raise InvalidInput(
            f"{settings.host} can be reached from other machines, and there are no API keys: make "
            f"one with `penstock keys create`, listen on 127.0.0.1, or use --insecure"
        )


def is_loopback(host: str, port: int) -> bool:
    """Return whether only programs on this machine can connect to an address."""
    try:
        addresses = [address for _, address in _addresses(host, port)]
    except OSError as error:
        raise InvalidInput(f"{host!r} is not an address: {error.strerror}") from None
    return all(ip_address(address.partition("%")[0]).is_loopback for address in addresses)


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(where[0])) for family, _, _, _, where in found))


# -- Unix sockets ----------------------------------------------------------------------------------


class UnixSocket:
    """A Unix socket that listens, and the lock on its path.

    The lock is a file beside the socket. It prevents that two servers which start at the same time
    both remove the socket file of a server that died.
    """

    def __init__(self, settings: ServerSettings) -> None:
        """Listen on `settings.unix`. Raise InvalidInput if that is not possible, LedgerError
        if there are too many open files."""
        self._path = os.path.abspath(settings.unix)
        self._lock_path = f"{self._path}.lock"
        try:
            self._lock = self._take_lock()
            try:
                self._remove_stale()
                self._mode = int(settings.unix_mode, 8)
                self.socket = self._bind(self._mode)
            except BaseException:
                self._release_lock()
                raise
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise LedgerError(
                    f"{settings.unix}: too many open files. Raise the limit of this process "
                    f"(ulimit -n), open fewer queues in it, or use a broker."
                ) from None
            raise InvalidInput(
                f"unix: cannot listen on {settings.unix}: {error.strerror or error}"
            ) from None

    def restore(self) -> bool:
        """Listen on a new socket if the socket file was removed. Return whether it was.

        The old socket still has connections that wait to be accepted; no new ones come. Raise
        OSError if the file cannot be made, for example because its directory was removed too.
        """
        if os.path.lexists(self._path):
            return False
        self.socket = self._bind(self._mode)
        return True

    def remove(self) -> None:
        """Remove the socket file, unless it was replaced, and release the lock."""
        try:
            if _identity(os.lstat(self._path)) == self._identity:
                os.unlink(self._path)
        except OSError:
            pass  # it was removed already, or its directory was
        self._release_lock()

    def _take_lock(self) -> int:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_same_file(lock, self._lock_path):
                    return lock
            except BlockingIOError:
                os.close(lock)
                raise InvalidInput(
                    f"unix: another server listens on {self._path} (it holds {self._lock_path})"
                ) from None
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)  # a server that stopped removed this file: use the new one

    def _release_lock(self) -> None:
        try:
            os.unlink(self._lock_path)
        except OSError:
            pass  # an unlocked file does no harm
        os.close(self._lock)

    def _remove_stale(self) -> None:
        """Remove a socket file that no process listens on. Refuse any other file."""
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            kind = "a directory" if stat.S_ISDIR(found.st_mode) else "no socket"
            raise InvalidInput(f"unix: {self._path} exists and is {kind}: choose another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self._path)
            except ConnectionRefusedError:
                os.unlink(self._path)
                return
            except BlockingIOError:
                pass  # its backlog is full
        raise InvalidInput(f"unix: another process listens on {self._path}")

    def _bind(self, mode: int) -> socket.socket:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        is_bound = False
        try:
            one.bind(self._path)
            is_bound = True
            # Before `listen`, a client cannot connect: it never sees a wider mode.
            os.chmod(self._path, mode)
            self._identity = _identity(os.lstat(self._path))
            one.listen(_BACKLOG)
            one.setblocking(False)
        except BaseException:
            one.close()
            if is_bound:
                os.unlink(self._path)
            raise
        return one


def unix_url(path: str) -> str:
    """Return the URL of a Unix socket.

    >>> unix_url("/run/penstock.sock")
    'http+unix://%2Frun%2Fpenstock.sock'
    """
    return f"http+unix://{quote(os.path.abspath(path), safe='')}"


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_same_file(fd: int, path: str) -> bool:
    try:
        return _identity(os.fstat(fd)) == _identity(os.lstat(path))
    except FileNotFoundError:
        return False


# -- clients ---------------------------------------------------------------------------------------


def peer_address(transport: BaseTransport) -> str | None:
    """Return the address of a client: an IP address, or its user on a Unix socket.

    None if it cannot be found. Limits count by this address, so a process id is not part of it.
    """
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple | list) and peer:
        return str(peer[0])
    one = transport.get_extra_info("socket")
    if one is None or one.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    try:
        raw = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    except OSError:
        return None  # the client has closed the connection
    _, uid, _ = _PEER_CREDENTIALS.unpack(raw)
    return f"{UNIX_PEER}uid={uid}"


def has_ended(transport: WriteTransport) -> bool:
    """Return whether the client has closed the connection, or its sending side of it."""
    one = transport.get_extra_info("socket")
    if one is None:
        return False
    poll = select.poll()
    try:
        poll.register(one.fileno(), _ENDED)
    except ValueError:
        return True  # the transport is closed
    return bool(poll.poll(0))


def delivery_of(transport: WriteTransport) -> bool | None:
    """Return whether the client's system took all bytes; None if that is not known yet.

    False: it reset the connection, because the client had closed it.
    """
    one = transport.get_extra_info("socket")
    if one is None or transport.get_write_buffer_size():
        return None
    try:
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return False
        if one.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
            return True
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return None  # the transport is closed
    state, unacked = _TCP_INFO.unpack(info)
    return True if state == _TCP_CLOSE or not unacked else None
