"""`penstock lease`: take messages for a while, to be settled by their receipts."""

from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.cli.as_json import message_json
from penstock.cli.opening import refuse_if_missing, writing
from penstock.cli.parameters import MAIN, AsJson, InGroup, QueuePath
from penstock.cli.terminal import complain, show_table, table, write_json_line
from penstock.cli.words import clock_time, preview, seconds_of
from penstock.model import LeasedMessage


def lease(
    path: QueuePath,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 1,
    lease_s: Annotated[
        float | None,
        typer.Option(
            "--for", metavar="DURATION", parser=seconds_of, help="How long; as the queue says."
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(metavar="DURATION", parser=seconds_of, help="Wait so long for the first."),
    ] = 0.0,
    dead: Annotated[bool, typer.Option("--dead", help="Dead letters, to settle for good.")] = False,
    group: InGroup = MAIN,
    json: AsJson = False,
) -> None:
    """Lease messages and print them with their receipts, for `penstock ack` and `penstock nack`.

    What is not settled in time is delivered again. Exits with 1 if there was none.
    """
    if dead and wait:
        raise typer.BadParameter("--dead does not wait: they are there or not")
    holder = "penstock lease"
    with writing(path) as queue:
        if dead:
            leased = queue.lease_dead(count, lease_s=lease_s, group=group, holder=holder)
        else:
            leased = queue.lease(count, lease_s=lease_s, wait_s=wait, group=group, holder=holder)
        if not leased:
            refuse_if_missing(queue)
    if not leased:
        complain(f"no {'dead letter' if dead else 'message'} is ready in group {group!r}")
        raise typer.Exit(1)
    if json:
        for job in leased:
            write_json_line(leased_json(job))
        return
    made = table("receipt", "attempt", "until", "payload", right=["attempt"], rest="payload")
    for job in leased:
        made.add_row(
            job.receipt, str(job.attempt), clock_time(job.deadline), Text(preview(job.payload))
        )
    show_table(made)


def leased_json(job: LeasedMessage) -> dict[str, Any]:
    """A message, and how it is settled."""
    return {
        **message_json(job.message),
        "receipt": job.receipt,
        "attempt": job.attempt,
        "deadline": job.deadline,
        "group": job.group,
    }
