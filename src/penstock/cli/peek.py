"""`penstock peek`: messages, without taking them."""

from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from typing import Annotated

import typer
from rich.text import Text

from penstock.cli.as_json import dead_letter_json, message_json
from penstock.cli.opening import looking
from penstock.cli.parameters import MAIN, AsJson, InGroup, QueuePath
from penstock.cli.terminal import complain, show_table, table, write_json_line
from penstock.cli.words import plain, preview, span
from penstock.clock import SystemClock
from penstock.model import NS, DeadLetter, Message
from penstock.queue import State

_KEY_WIDTH = 16

StateName = StrEnum("StateName", [state.name for state in State])  # type: ignore[misc]


def peek(
    path: QueuePath,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 10,
    state: Annotated[
        StateName | None,
        typer.Option(help="Those in a state, by seq, instead of those to be delivered next."),
    ] = None,
    group: InGroup = MAIN,
    json: AsJson = False,
) -> None:
    """Show the messages that would be delivered next, or those in a state, without taking them."""
    with looking(path) as queue:
        if state == "dead":
            letters = list(islice(queue.dead(group=group), count))
            show_dead_letters(letters, json=json)
            found = len(letters)
        else:
            messages = (
                queue.peek(count, group=group)
                if state is None
                else list(islice(queue.browse(state.value, group=group), count))
            )
            _show_messages(messages, json=json)
            found = len(messages)
    if not found:
        complain(f"no message is {state.value if state else 'ready'} in group {group!r}")
        raise typer.Exit(1)


def _show_messages(messages: Sequence[Message], *, json: bool) -> None:
    if json:
        for message in messages:
            write_json_line(message_json(message))
    elif messages:
        keyed = ["key"] if any(message.key is not None for message in messages) else []
        made = table("id", "age", "pri", *keyed, "payload", right=["age", "pri"], rest="payload")
        for message in messages:
            key = [Text(_cut(plain(message.key or "")))] if keyed else []
            made.add_row(
                message.id,
                _ago(message.published_ns),
                str(message.priority),
                *key,
                Text(preview(message.payload)),
            )
        show_table(made)


def show_dead_letters(letters: Sequence[DeadLetter], *, json: bool) -> None:
    """Dead letters with the reason of their death."""
    if json:
        for letter in letters:
            write_json_line(dead_letter_json(letter))
    elif letters:
        made = table(
            "id", "failed", "attempts", "reason", right=["failed", "attempts"], rest="reason"
        )
        for letter in letters:
            made.add_row(
                letter.id,
                f"{_ago(letter.last_failure_ns)} ago",
                str(letter.attempts),
                Text(plain(letter.reason)),
            )
        show_table(made)


def _ago(at_ns: int) -> str:
    return span(max(SystemClock().now_ns() - at_ns, 0) / NS)


def _cut(key: str) -> str:
    return key if len(key) <= _KEY_WIDTH else f"{key[: _KEY_WIDTH - 1]}…"
