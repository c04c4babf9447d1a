"""`penstock tail`: messages as they are published."""

import secrets
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from threading import Event
from typing import Annotated

from rich.text import Text

from penstock.cli.formatting import message_json, preview, printable, time_of_day
from penstock.cli.options import AsJson, QueuePath, duration_option, option
from penstock.cli.targets import open_ledger, read_options, stored_settings, warn_of_damage
from penstock.cli.terminal import out, print_json_line
from penstock.client import ClientOptions, connect, is_url
from penstock.codec import Entry
from penstock.errors import NoSuchGroup, PayloadUnreadable
from penstock.ledger import Cursor, Damage
from penstock.model import Message
from penstock.queue.messages import to_message

_BATCH = 500
_LEASE_WAIT_S = 20.0


def tail(
    path: QueuePath,
    lines: Annotated[
        int, option("Number of old messages to show first.", "--lines", "-n", min=0)
    ] = 10,
    count: Annotated[
        int | None, option("Exit after this many messages.", "--count", "-c", min=1)
    ] = None,
    once: Annotated[bool, option("Exit at the end instead of waiting for more.", "--once")] = False,
    interval: Annotated[float, duration_option("Time between two reads of the files.")] = 0.5,
    json: AsJson = False,
) -> None:
    """Show the last messages, then each new one as it is published, until Ctrl-C.

    A directory is read again every --interval.
    At a URL the broker sends new messages at once.
    """
    try:
        messages = (
            _follow_url(path, lines, once=once)
            if is_url(path)
            else _follow_files(path, lines, interval, once=once)
        )
        with closing(messages):
            for message in islice(messages, count):
                _print_message(message, json)
    except KeyboardInterrupt:
        return


def _print_message(message: Message, as_json: bool) -> None:
    if as_json:
        print_json_line(message_json(message))
        return
    line = Text(time_of_day(message.published_at), style="dim")
    line.append(f"  {message.id}", style="cyan")
    line.append(f"  {message.priority}  ", style="dim")
    if message.key is not None:
        line.append(f"{printable(message.key)}: ", style="bold")
    line.append(preview(message.payload), style="not dim")
    out.print(line, no_wrap=True, overflow="ellipsis", soft_wrap=not out.is_terminal)


# -- at a URL --------------------------------------------------------------------------------------


def _follow_url(url: str, lines: int, *, once: bool) -> Generator[Message]:
    """Yield messages through a temporary consumer group, which other groups do not notice."""
    group = f"tail-{secrets.token_hex(4)}"
    wait_s = 0.0 if once else _LEASE_WAIT_S
    with connect(url, options=read_options() if once else ClientOptions()) as queue:
        queue.groups.create(group, seq=max(queue.stats().next_seq - lines, 1))
        try:
            while (leased := queue.lease(_BATCH, wait_s=wait_s, group=group)) or not once:
                if leased:
                    queue.ack(leased)
                    yield from sorted((job.message for job in leased), key=lambda one: one.seq)
                    out.file.flush()
        finally:
            try:
                queue.groups.delete(group)
            except NoSuchGroup:
                pass  # deleted by another client


# -- in a directory --------------------------------------------------------------------------------


def _follow_files(path: str, lines: int, interval_s: float, *, once: bool) -> Generator[Message]:
    follower = _FilesFollower(path, lines)
    while True:
        yield from follower.new_messages()
        out.file.flush()
        if once:
            return
        Event().wait(max(interval_s, 0.01))


class _FilesFollower:
    """Reads the files of a queue again and again, each time from where it stopped."""

    def __init__(self, path: str, lines: int) -> None:
        self._path = path
        self._lines = lines
        self._next_seq = 0  # 0: not read yet
        self._reported: set[tuple[str, int]] = set()

    def new_messages(self) -> Iterator[Message]:
        """Yield the messages that were published since the last call."""
        max_bytes = stored_settings(self._path).max_unpacked_bytes
        with open_ledger(self._path, on_damage=self._warn_once) as files:
            log = files.messages
            if not self._next_seq:
                self._next_seq = max(log.next_seq - self._lines, log.first_seq)
            cursor = Cursor(log, self._next_seq)
            while entries := cursor.read(_BATCH):
                for entry in entries:
                    self._next_seq = entry.seq + 1
                    yield _to_message(entry, files.identity, max_bytes)

    def _warn_once(self, damage: Damage) -> None:
        if (damage.file, damage.offset) not in self._reported:
            self._reported.add((damage.file, damage.offset))
            warn_of_damage(damage)


def _to_message(entry: Entry, identity: int, max_bytes: int) -> Message:
    try:
        return to_message(entry, identity, max_bytes)
    except PayloadUnreadable:  # show it as it is stored
        return to_message(entry._replace(compression=0), identity, max_bytes)
