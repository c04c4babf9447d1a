"""`penstock purge`: throw away all that waits."""

from typing import Annotated

import typer

from penstock.cli.confirming import Yes, confirm
from penstock.cli.opening import writing
from penstock.cli.parameters import AsJson, QueuePath
from penstock.cli.terminal import say, write_json
from penstock.cli.words import number


def purge(
    path: QueuePath,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="Only of this group.")
    ] = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Throw away all messages that wait, in every group or in one. Asks first."""
    where = "every group" if group is None else f"group {group!r}"
    with writing(path) as queue:
        queue.stats()  # is it there?
        confirm(f"Throw away all messages that wait in {where} of {path}?", yes=yes)
        count = queue.purge(group=group)
    if json:
        write_json({"purged": count})
    else:
        say(f"{number(count)} thrown away.")
