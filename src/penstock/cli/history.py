"""`penstock history`: everything that happened to a message."""

from typing import Annotated

import typer
from rich.text import Text

from penstock.cli.as_json import event_json
from penstock.cli.opening import looking
from penstock.cli.parameters import AsJson, MessageId, QueuePath
from penstock.cli.terminal import show_table, table, write_json_line
from penstock.cli.words import moment, plain, span
from penstock.model import NS, HistoryEvent


def history(
    path: QueuePath,
    message: MessageId,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="NAME", help="Only what happened in this group."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show everything that happened to a message, oldest first."""
    with looking(path) as queue:
        events = queue.history(message, group=group)
    if json:
        for event in events:
            write_json_line(event_json(event))
        return
    made = table("when", "event", "group", "attempt", "details", rest="details", wrap_rest=True)
    for event in events:
        made.add_row(
            moment(event.at),
            event.event.replace("_", " "),
            event.group or "",
            str(event.attempt or ""),
            Text(_details(event)),
        )
    show_table(made)


def _details(event: HistoryEvent) -> str:
    parts = [plain(event.reason)] if event.reason else []
    if event.holder:
        parts.append(f"by {plain(event.holder)}")
    if event.retry_at_ns:
        parts.append(f"again after {span((event.retry_at_ns - event.at_ns) / NS)}")
    return "; ".join(parts)
