"""The directory that processes share: what is in it, its lock, and its socket."""

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from penstock.broker.embedded.data_directory import Home
from penstock.broker.embedded.layout import Layout
from penstock.broker.embedded.one_queue import OneQueue
from penstock.checking import check_local
from penstock.clock import Clock
from penstock.errors import InvalidInput, LedgerError, LedgerLocked, NotALedger
from penstock.ledger.files import OsFiles, as_ledger_error
from penstock.ledger.folder import Folder
from penstock.ledger.queue_directory import SOCKET_NAME, announced_url, is_made
from penstock.names import ONE_QUEUE, QueueName, directory_of

_EXPECTED = "processes share a directory, such as ./orders"


@dataclass(frozen=True, slots=True)
class Place:
    """A directory, and whether it is one queue or has several."""

    path: str
    is_one_queue: bool

    @property
    def socket_path(self) -> str:
        return os.path.join(self.path, SOCKET_NAME)

    @property
    def url(self) -> str:
        """The URL of the socket."""
        return f"http+unix://{quote(self.socket_path, safe='')}"

    def take(self, clock: Clock) -> Home | None:
        """Take the lock and return the files; None if another process holds it.

        Raise LedgerError if this process cannot be the one that writes here.
        """
        if self.is_of_another_user:
            return None  # see `refusal`
        home = (OneQueue if self.is_one_queue else Layout)(OsFiles(), self.path)
        try:
            home.open(clock, self.url)
        except LedgerLocked:
            return None
        except OSError as error:
            home.close()
            raise as_ledger_error(self.path, "opening", error) from error
        return home

    def announced(self) -> str | None:
        """Return the URL of the process that holds the lock; None if it gave none."""
        return announced_url(Folder(OsFiles(), self.path))

    def refusal(self, reason: str) -> LedgerError:
        """Return the error for a process that neither holds the lock nor reaches the holder."""
        owner = self._owner()
        if owner is not None and owner != os.geteuid():
            return LedgerError(
                f"{self.path} belongs to user {owner}, and this process runs as user "
                f"{os.geteuid()}: run it as {owner}, or share a directory of its own ({reason})"
            )
        if os.path.lexists(self.socket_path) and not Path(self.socket_path).is_socket():
            return LedgerLocked(
                f"{self.path} is in use by another process, which is reached over "
                f"{self.socket_path}, and that is not a socket: remove it, and that process makes "
                f"the socket again"
            )
        return LedgerLocked(
            f"{self.path} is in use by another process, which does not share it ({reason}): close "
            f"it there, open it there with shared=True as well, or let both talk to a broker"
        )

    @property
    def is_of_another_user(self) -> bool:
        return self._owner() not in (None, os.geteuid())

    def _owner(self) -> int | None:
        try:
            return os.stat(self.path).st_uid
        except OSError:
            return None  # it is about to be made


def place_of(path: str, queue: str | None) -> tuple[Place, QueueName]:
    """Return a directory and the queue in it. Without a name, the directory itself is the queue.

    Raise InvalidInput if the directory is of the other kind, LedgerError if it cannot be read.
    """
    local = os.path.realpath(check_local(path, _EXPECTED))
    if not _is_text(local):
        raise InvalidInput(
            f"the path {path!r} is not UTF-8, and the address of its socket must be: rename it"
        )
    place = Place(local, is_one_queue=queue is None)
    try:
        return place, _queue_in(place, path, queue)
    except OSError as error:
        if place.is_of_another_user:
            raise place.refusal(str(error.strerror)) from error
        raise as_ledger_error(path, "opening", error) from error


def _queue_in(place: Place, path: str, queue: str | None) -> QueueName:
    local = place.path
    folder = Folder(OsFiles(), local)
    if os.path.exists(local) and not Path(local).is_dir():
        raise NotALedger(f"{path} is a file, not a directory")
    is_queue = folder.exists() and is_made(folder)
    if queue is None:
        if not is_queue and folder.exists() and Layout(OsFiles(), local).is_there():
            raise InvalidInput(
                f"{path} has several queues: name one of them, such as queue='default/orders'"
            )
        return ONE_QUEUE
    if is_queue:
        raise InvalidInput(
            f"{path} is one queue, so queue={queue!r} is not in it: leave the option out, or name "
            f"a directory of several queues"
        )
    name = QueueName.parse(queue)
    own = Path(local) / directory_of(name.name)
    if name.namespace == "default" and is_made(Folder(OsFiles(), str(own))):
        there = Path(local) / "default" / directory_of(name.name)
        if not is_made(Folder(OsFiles(), str(there))):
            raise InvalidInput(
                f"{path} has queue {name.name!r} as a directory of its own, as Tasks makes it, "
                f"and {str(name)!r} would be another queue: open {own} without queue="
            )
    return name


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
