"""`penstock cancel`: take messages out of every group."""

from typing import Annotated

import typer

from penstock.cli.opening import writing
from penstock.cli.parameters import AsJson, QueuePath
from penstock.cli.terminal import complain, say, write_json
from penstock.cli.words import number


def cancel(
    path: QueuePath,
    ids: Annotated[
        list[str], typer.Argument(metavar="ID", help="Messages by id.", show_default=False)
    ],
    json: AsJson = False,
) -> None:
    """Take messages out of every group: they are not delivered any more.

    Exits with 1 if all of them were done already.
    """
    with writing(path) as queue:
        cancelled = [id_ for id_ in ids if queue.cancel(id_)]
    if json:
        write_json({"cancelled": cancelled})
    elif cancelled:
        say(f"{number(len(cancelled), 'message')} cancelled.")
    done = len(ids) - len(cancelled)
    if done and not json:
        complain(f"{number(done, 'message')} {'was' if done == 1 else 'were'} done already")
    if not cancelled:
        raise typer.Exit(1)
