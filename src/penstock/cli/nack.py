"""`penstock nack`: the work failed."""

from typing import Annotated

import typer

from penstock.cli.opening import writing
from penstock.cli.parameters import AsJson, QueuePath, Receipts
from penstock.cli.receipts import receipts_in
from penstock.cli.terminal import say, write_json
from penstock.cli.words import number, seconds_of


def nack(
    path: QueuePath,
    receipts: Receipts,
    reason: Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Why.")] = "",
    delay: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=seconds_of, help="Instead of the backoff."),
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="Only give back: no attempt is spent.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Say that the work on leased messages failed: they are tried again later, or are dead."""
    if release and (reason or delay is not None):
        raise typer.BadParameter("--release goes with neither --reason nor --delay")
    found = receipts_in(receipts)
    with writing(path) as queue:
        if release:
            queue.release(found)
        else:
            queue.nack(found, reason, delay=delay)
    verb = "released" if release else "nacked"
    if json:
        write_json({verb: len(found)})
    else:
        say(f"{number(len(found), 'message')} {verb}.")
