"""`penstock groups`: the consumer groups of a queue."""

from typing import Annotated

import typer

from penstock.cli.confirming import Yes, confirm
from penstock.cli.default_command import group_settings
from penstock.cli.opening import looking, writing
from penstock.cli.parameters import AsJson, QueuePath
from penstock.cli.seek import End
from penstock.cli.terminal import say, show_table, table, write_json, write_json_line
from penstock.cli.words import number, time_of

groups_app = typer.Typer(**group_settings("groups", "The consumer groups of a queue."))

_COUNTS = ("ready", "scheduled", "leased", "parked", "dead", "acked")
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)]


@groups_app.command("list")
def list_groups(path: QueuePath, json: AsJson = False) -> None:
    """List the groups, with how many messages wait, are worked on and are dead in each."""
    with looking(path) as queue:
        groups = queue.stats().groups
    if json:
        for name, counts in groups.items():
            write_json_line({"group": name, **counts._asdict()})
        return
    made = table("group", *_COUNTS, right=_COUNTS)
    for name, counts in groups.items():
        made.add_row(name, *(number(getattr(counts, count)) for count in _COUNTS))
    show_table(made)


@groups_app.command("create")
def create_group(
    path: QueuePath,
    name: _Name,
    to: Annotated[End | None, typer.Option(help="Begin at one of the two ends.")] = None,
    seq: Annotated[int | None, typer.Option(help="Begin at the message with this number.")] = None,
    message: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Begin at the message with this id.")
    ] = None,
    time: Annotated[
        float | None,
        typer.Option(metavar="TIME", parser=time_of, help="At the first published at or after it."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Make a group that begins at a place; at the beginning if none is given.

    One that is there already is left as it is.
    """
    if sum(place is not None for place in (to, seq, message, time)) > 1:
        raise typer.BadParameter("give at most one of --to, --seq, --id and --time")
    with writing(path) as queue:
        queue.groups.create(name, to=to.value if to else None, seq=seq, id=message, time=time)
        ready = queue.stats().groups[name].ready
    if json:
        write_json({"group": name, "ready": ready})
    else:
        say(f"Group {name!r} is there; {number(ready)} are ready.")


@groups_app.command("delete")
def delete_group(path: QueuePath, name: _Name, yes: Yes = False, json: AsJson = False) -> None:
    """Delete a group with its position, leases and dead letters. Asks first."""
    with writing(path) as queue:
        confirm(f"Delete group {name!r} of {path}, with its position and dead letters?", yes=yes)
        queue.groups.delete(name)
    if json:
        write_json({"group": name, "deleted": True})
    else:
        say(f"Group {name!r} is deleted.")
