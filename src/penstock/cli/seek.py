"""`penstock seek`: deliver from another place on."""

from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli.opening import writing
from penstock.cli.parameters import MAIN, AsJson, InGroup, QueuePath
from penstock.cli.terminal import say, write_json
from penstock.cli.words import number, time_of


class End(StrEnum):
    """The two ends of a log."""

    BEGINNING = "beginning"
    END = "end"


def seek(
    path: QueuePath,
    to: Annotated[End | None, typer.Option(help="One of the two ends.")] = None,
    seq: Annotated[int | None, typer.Option(help="The message with this number.")] = None,
    message: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The message with this id.")
    ] = None,
    time: Annotated[
        float | None,
        typer.Option(metavar="TIME", parser=time_of, help="The first published at or after it."),
    ] = None,
    group: InGroup = MAIN,
    json: AsJson = False,
) -> None:
    """Deliver from another place on: back, to deliver again, or forward, to leave out.

    Give one of --to, --seq, --id and --time. Leases of the group end; dead letters before the place
    stay dead.
    """
    if sum(place is not None for place in (to, seq, message, time)) != 1:
        raise typer.BadParameter("give one of --to, --seq, --id and --time")
    with writing(path) as queue:
        target = queue.seek(to.value if to else None, seq=seq, id=message, time=time, group=group)
        ready = queue.stats().groups[group].ready
    if json:
        write_json({"group": group, "seq": target, "ready": ready})
        return
    say(f"Group {group!r} goes on at message {number(target)}; {number(ready)} are ready.")
