"""Opening a queue for a command: to look, or to change something."""

from collections.abc import Callable

import penstock
from penstock.cli.terminal import complain
from penstock.cli.words import plain
from penstock.client import ClientOptions, is_url
from penstock.errors import InvalidInput, NotAllowed
from penstock.ledger import Damage, Ledger
from penstock.queue import Queue, QueueSettings
from penstock.queue.queue import open_queue

LOOK_RETRY_S = 3.0  # whoever looks waits at a terminal, and can look again


def look_options() -> ClientOptions:
    """Return how commands that only look reach a broker."""
    return ClientOptions(retry_s=LOOK_RETRY_S)


def looking(path: str) -> Queue:
    """The queue, read-only: nothing on disk changes, and a writer may be at work."""
    if is_url(path):
        return penstock.open(path, retry_s=LOOK_RETRY_S)
    return open_queue(path, {}, read_only=True, create=False, on_damage=warn)


def writing(path: str, *, create: bool = False) -> Queue:
    """The queue, as its one writer; at a URL, as one of many clients."""
    if is_url(path):
        return penstock.open(path)
    return open_queue(path, {}, create=create, on_damage=warn)


def refuse_if_missing(queue: Queue) -> None:
    """Raise NoSuchQueue if a broker has no such queue: it found nothing in it, and said no more."""
    try:
        queue.stats()
    except NotAllowed:
        pass  # this key may consume, but not look


def files_of(path: str) -> str:
    """A path to files, and not a URL, for commands that read the files themselves."""
    if is_url(path):
        raise InvalidInput("this reads a queue's files: give its directory, not a URL")
    return path


def stored_settings(path: str) -> QueueSettings:
    """The settings that were stored with a queue."""
    return QueueSettings.of_stored(Ledger.stored_queue_settings(files_of(path)))


def looking_at_files(path: str, *, on_damage: Callable[[Damage], None] | None = None) -> Ledger:
    """Only the files, read-only: what the messages have become is not worked out."""
    return Ledger.open(
        path,
        stored_settings(path).ledger_settings(),
        read_only=True,
        create=False,
        on_damage=on_damage or warn,
    )


def warn(damage: Damage) -> None:
    """Tell of damage on stderr; the command goes on around it."""
    # An unfinished write at the end is what a writer at work looks like.
    if damage.lost or not damage.torn:
        complain(f"warning: {plain(str(damage))}")
