"""`penstock redrive`: try dead letters again."""

from itertools import islice
from typing import Annotated

import typer

from penstock.cli.opening import looking, writing
from penstock.cli.parameters import MAIN, AsJson, InGroup, QueuePath, Since, Until
from penstock.cli.peek import show_dead_letters
from penstock.cli.terminal import complain, say, write_json
from penstock.cli.words import number
from penstock.errors import NoSuchMessage
from penstock.model import NS, DeadLetter
from penstock.queue import Queue


def redrive(
    path: QueuePath,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Dead letters by id.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those with this in their reason.")
    ] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many, the first to die first.")
    ] = None,
    group: InGroup = MAIN,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show which ones; nothing is changed.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Make dead letters ready again, with their attempts counted anew.

    Name them by id, filter them by --reason, --since and --until, or take --all.
    """
    filtered = reason is not None or since is not None or until is not None
    if not (ids or filtered or everything):
        raise typer.BadParameter("name dead letters by id, or filter them, or give --all")
    if everything and (ids or filtered):
        raise typer.BadParameter("--all goes with neither ids nor filters")
    if dry_run:
        with looking(path) as queue:
            letters = _matching(queue, ids, reason, since, until, limit, group)
        show_dead_letters(letters, json=json)
        count = len(letters)
    else:
        with writing(path) as queue:
            count = queue.redrive(
                ids or None, reason=reason, since=since, until=until, limit=limit, group=group
            )
        if json:
            write_json({"group": group, "redriven": count})
        elif count:
            say(f"{number(count)} redriven: ready again in group {group!r}.")
    if not count:
        complain(f"no dead letter of group {group!r} matches")
        raise typer.Exit(1)


def _matching(
    queue: Queue,
    ids: list[str] | None,
    reason: str | None,
    since: float | None,
    until: float | None,
    limit: int | None,
    group: str,
) -> list[DeadLetter]:
    """Those that `Queue.redrive` would take."""
    letters = list(queue.dead(group=group))
    if ids:
        named = {letter.id: letter for letter in letters}
        for id_ in ids:
            if id_ not in named:
                raise NoSuchMessage(f"message {id_} is not a dead letter of {group!r}")
        letters = [named[id_] for id_ in ids]
    fitting = (
        letter
        for letter in letters
        if (reason is None or reason in letter.reason)
        and (since is None or letter.last_failure_ns / NS >= since)
        and (until is None or letter.last_failure_ns / NS < until)
    )
    return list(islice(fitting, limit))
