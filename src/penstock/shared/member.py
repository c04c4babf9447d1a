"""This process's part in a shared directory: the holder of its lock, or a client of the holder.

A thread takes the lock and serves, or connects to the process that does and waits for the end of
that connection: the holder closed the directory, or died. Then it tries to take the lock again.
"""

import atexit
import logging
import os
import select
import socket
import struct
from threading import Condition, Thread
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.client.address import unix_socket_of
from penstock.client.long_paths import connect_unix
from penstock.clock import SystemClock
from penstock.errors import LedgerClosed, LedgerError, PenstockError
from penstock.ledger.files import as_passing_error, watch_fork
from penstock.locks import Lock
from penstock.model import NS
from penstock.shared.holder import Holder
from penstock.shared.inherited import replace
from penstock.shared.place import Place

log = logging.getLogger("penstock.shared")

_CONNECT_S = 5.0
_GRACE_NS = 1 * NS  # for a holder to say where it is reached
_PAUSE_S, _PAUSE_S_MAX = 0.005, 0.25
_JOIN_CLOSED_S = 30.0
_PEER_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: `struct ucred` of Linux


class Standing(NamedTuple):
    """Who answers calls at the moment."""

    role: str  # "holder", "client", or "joining": another process is about to take over
    url: str | None = None
    error: PenstockError | None = None  # why joining takes so long


def _as_refusal(path: str, error: Exception) -> LedgerError | None:
    """Return the error for a lack of file descriptors or room; None for any other error."""
    return as_passing_error(path, error) if isinstance(error, OSError) else None


class Member:
    """The membership of this process in one directory, for all its queues there. Thread-safe."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._clock = SystemClock()
        self._handles = 0
        self._inherited: list[object] = []  # of the parent; kept, so that nothing is finalized
        self._begin()
        watch_fork(self)

    def _begin(self) -> None:
        self.changed = Condition()
        self.standing = Standing("joining")
        self.holder: Holder | None = None  # if this process answers calls
        self._serving: Holder | None = None
        self._thread: Thread | None = None
        self._is_closing = False
        self._watch: socket.socket | None = None
        self._wake: tuple[int, int] | None = None

    # -- for callers -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to join, unless that was done. The first call after a fork joins again."""
        if self._thread is not None:
            return
        with self.changed:
            if self._thread is None and not self._is_closing:
                try:
                    self._wake = os.pipe()
                except OSError as error:
                    raise _as_refusal(self.place.path, error) or error from None
                os.set_blocking(self._wake[1], False)
                self._thread = Thread(target=self._run, name="penstock-shared", daemon=True)
                self._thread.start()

    def wait_until_joined(self, within_s: float) -> None:
        """Wait until calls are answered. Raise the error that prevents it, or LedgerLocked."""
        self.start()
        ends_ns = self._clock.monotonic_ns() + round(within_s * NS)
        with self.changed:
            while self.standing.url is None:
                if self.standing.error is not None:
                    raise self.standing.error
                if self._is_closing:
                    raise LedgerClosed(f"{self.place.path} was closed meanwhile: open it again")
                left_ns = ends_ns - self._clock.monotonic_ns()
                # The holder's own recovery may take longer, as when a queue is opened alone.
                if left_ns <= 0 and self._serving is None:
                    raise self.place.refusal(f"it did not answer within {within_s:g} s")
                self._clock.wait(self.changed, max(left_ns / NS, 0.1))

    def wait_for_change(self, seconds: float) -> None:
        """Wait until another process answers calls, or the time is over."""
        before = self.standing
        ends_ns = self._clock.monotonic_ns() + round(seconds * NS)
        with self.changed:
            while self.standing is before and not self._is_closing:
                left_ns = ends_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    return
                self._clock.wait(self.changed, left_ns / NS)

    # -- handles -----------------------------------------------------------------------------------

    def enter(self) -> None:
        """Count one more handle."""
        self._handles += 1

    def leave(self) -> bool:
        """Count one handle less. Return whether it was the last: then `close` the membership."""
        self._handles -= 1
        return self._handles <= 0

    def close(self) -> None:
        """End the membership. A holder hands over: another process may take the lock after this."""
        with self.changed:
            self._is_closing = True
            thread, serving = self._thread, self._serving
            self.changed.notify_all()
            self._rouse()
        if serving is not None:
            serving.stop()
        if thread is not None:
            thread.join(_JOIN_CLOSED_S)
            if thread.is_alive():
                log.error("%s was not handed over in time", self.place.path)

    def _rouse(self) -> None:
        if self._wake is not None:
            try:
                os.write(self._wake[1], b"x")
            except OSError:
                pass  # full: it was woken before

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s, unknown_since_ns = _PAUSE_S, 0
        while not self._is_closing:
            try:
                began_ns = self._clock.monotonic_ns()
                has_joined = self._hold() or self._follow()
                now_ns = self._clock.monotonic_ns()
                if has_joined:
                    unknown_since_ns = 0
                    if now_ns - began_ns > _GRACE_NS:
                        pause_s = _PAUSE_S
                        continue  # look at once who is next
                unknown_since_ns = unknown_since_ns or now_ns
                if now_ns - unknown_since_ns > _GRACE_NS and self.place.announced() is None:
                    self._set(Standing("joining", error=self._nobody()))
            except PenstockError as error:
                self._set(Standing("joining", error=error))
            except Exception as error:  # callers must not wait for it
                failure = _as_refusal(self.place.path, error)
                if failure is None:  # a bug
                    log.error("sharing %s failed", self.place.path, exc_info=error)
                    failure = LedgerError(f"sharing {self.place.path} failed: {error!r}")
                self._set(Standing("joining", error=failure))
            self._pause(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)
        with self.changed:
            wake, self._wake = self._wake, None
            self.changed.notify_all()
        for fd in wake or ():
            os.close(fd)

    def _nobody(self) -> LedgerError:
        return self.place.refusal("it announces no address")

    def _hold(self) -> bool:
        """Serve if the lock is free, until the membership ends. Return False if it is not."""
        home = self.place.take(self._clock)
        if home is None:
            return False
        try:
            holder = Holder(self.place, home)
        except BaseException:
            home.close()
            raise
        with self.changed:
            self._serving = holder
            if self._is_closing:
                holder.stop()
        log.info("holding %s", self.place.path)

        def ready() -> None:
            self.holder = holder
            self._set(Standing("holder", self.place.url))

        try:
            holder.run(ready)
        finally:
            self.holder = None
            with self.changed:
                self._serving = None
            self._set(Standing("joining"))
        return True

    def _follow(self) -> bool:
        """Connect to the holder, and wait until the connection ends. Return False if none does."""
        url = self.place.announced()
        if url is None:
            return False
        try:
            watch = _connected(url)
        except OSError:
            return False  # it is about to begin, or to end
        with watch:
            self._check_peer(watch)
            self._watch = watch
            self._set(Standing("client", url))
            self._wait_for_end(watch)
            self._watch = None
        self._set(Standing("joining"))
        return True

    def _wait_for_end(self, watch: socket.socket) -> None:
        assert self._wake is not None
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        poll.register(self._wake[0], select.POLLIN)
        poll.poll()

    def _check_peer(self, watch: socket.socket) -> None:
        """Raise LedgerError if the process at the socket is not one that may write here."""
        if watch.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
            return
        raw = watch.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        _, uid, _ = _PEER_CREDENTIALS.unpack(raw)
        owner = os.stat(self.place.path).st_uid
        if uid not in (owner, 0):
            raise LedgerError(
                f"the socket in {self.place.path} is served by user {uid}, and the directory "
                f"belongs to user {owner}: remove {self.place.socket_path}"
            )

    def _set(self, standing: Standing) -> None:
        with self.changed:
            self.standing = standing
            self.changed.notify_all()

    def _pause(self, seconds: float) -> None:
        with self.changed:
            if not self._is_closing:
                self._clock.wait(self.changed, seconds)

    # -- fork --------------------------------------------------------------------------------------

    def forked(self) -> None:
        """In a forked child, leave everything to the parent. The next call joins again."""
        serving, watch, wake = self._serving, self._watch, self._wake
        self._inherited.append((serving, watch, wake, self._thread))
        self._begin()
        if serving is not None:
            serving.forked()
        if watch is not None and watch.fileno() >= 0:
            replace(watch.fileno())
        for fd in wake or ():
            replace(fd)


def _connected(url: str) -> socket.socket:
    """Return a connection to a broker, on which nothing is sent."""
    path = unix_socket_of(url)
    if path is not None:
        return connect_unix(path, _CONNECT_S)
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S)


# -- the memberships of this process ---------------------------------------------------------------


class _Members:
    """One membership for each directory, however often it is opened."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._members: dict[Place, Member] = {}
        watch_fork(self)

    def join(self, place: Place) -> Member:
        with self._lock:
            member = self._members.get(place)
            if member is None:
                member = self._members[place] = Member(place)
            member.enter()
            return member

    def leave(self, member: Member) -> None:
        with self._lock:
            if not member.leave():
                return
            self._members.pop(member.place, None)
        member.close()

    def close_all(self) -> None:
        """At the end of the process: hand over."""
        with self._lock:
            members = list(self._members.values())
        for member in members:
            member.close()

    def forked(self) -> None:
        self._lock = Lock()


MEMBERS = _Members()
atexit.register(MEMBERS.close_all)
