"""`penstock tail`: messages as they are published."""

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from threading import Event
from typing import Annotated

import typer
from rich.text import Text

from penstock.cli.as_json import message_json
from penstock.cli.opening import look_options, looking_at_files, stored_settings, warn
from penstock.cli.parameters import AsJson, QueuePath
from penstock.cli.tail_at_url import UrlFollower
from penstock.cli.terminal import out, write_json_line
from penstock.cli.words import clock_time, plain, preview, seconds_of
from penstock.client import ClientOptions, connect, is_url
from penstock.codec import Entry
from penstock.errors import PayloadUnreadable
from penstock.ledger import Cursor, Damage
from penstock.model import Message
from penstock.queue.messages import to_message

_CHUNK = 500


def tail(
    path: QueuePath,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Begin with so many of the last.")
    ] = 10,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="Stop after so many messages.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the end instead of waiting for more.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(metavar="DURATION", parser=seconds_of, help="How often to look for more."),
    ] = 0.5,
    json: AsJson = False,
) -> None:
    """Show the last messages, and then each new one as another process publishes it.

    Reads beside the writer: the files are looked at again every --interval. At a URL the broker
    says when there is more. Ends with Ctrl-C.
    """
    try:
        messages = (
            _at_url(path, lines, once=once)
            if is_url(path)
            else _in_files(Follower(path, lines), interval, once=once)
        )
        with closing(messages):
            for message in islice(messages, count):
                _show(message, json=json)
    except KeyboardInterrupt:
        return


def _in_files(follower: "Follower", interval_s: float, *, once: bool) -> Generator[Message]:
    while True:
        yield from follower.news()
        out.file.flush()
        if once:
            return
        Event().wait(max(interval_s, 0.01))


def _at_url(url: str, lines: int, *, once: bool) -> Generator[Message]:
    options = look_options() if once else ClientOptions()
    with connect(url, options=options) as queue:
        follower = UrlFollower(queue, lines)
        try:
            while True:
                yield from follower.news(wait=not once)
                out.file.flush()
                if once:
                    return
        finally:
            follower.close()


class Follower:
    """Reads on where it stopped, each time from the files as they are then."""

    def __init__(self, path: str, lines: int) -> None:
        self._path = path
        self._lines = lines
        self._next_seq = 0  # 0: not looked yet
        self._told: set[tuple[str, int]] = set()

    def news(self) -> Iterator[Message]:
        """The messages that came since the last time."""
        max_bytes = stored_settings(self._path).max_unpacked_bytes
        with looking_at_files(self._path, on_damage=self._warn_once) as files:
            log = files.messages
            if not self._next_seq:
                self._next_seq = max(log.next_seq - self._lines, log.first_seq)
            cursor = Cursor(log, self._next_seq)
            while entries := cursor.read(_CHUNK):
                for entry in entries:
                    self._next_seq = entry.seq + 1
                    yield _readable(entry, files.identity, max_bytes)

    def _warn_once(self, damage: Damage) -> None:
        if (damage.file, damage.offset) not in self._told:
            self._told.add((damage.file, damage.offset))
            warn(damage)


def _readable(entry: Entry, identity: int, max_bytes: int) -> Message:
    try:
        return to_message(entry, identity, max_bytes)
    except PayloadUnreadable:
        return to_message(entry._replace(compression=0), identity, max_bytes)  # as it is stored


def _show(message: Message, *, json: bool) -> None:
    if json:
        write_json_line(message_json(message))
        return
    line = Text(clock_time(message.published_at), style="dim")
    line.append(f"  {message.id}", style="cyan")
    line.append(f"  {message.priority}  ", style="dim")
    if message.key is not None:
        line.append(f"{plain(message.key)}: ", style="bold")
    line.append(preview(message.payload), style="not dim")
    out.print(line, no_wrap=True, overflow="ellipsis", soft_wrap=not out.is_terminal)
