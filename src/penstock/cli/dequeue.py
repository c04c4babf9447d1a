"""`penstock dequeue`: take messages, and print their payloads."""

import sys
from typing import Annotated

import typer

from penstock.cli.as_json import message_json
from penstock.cli.opening import refuse_if_missing, writing
from penstock.cli.parameters import MAIN, AsJson, InGroup, QueuePath
from penstock.cli.terminal import complain, write_json_line
from penstock.cli.words import seconds_of
from penstock.model import LeasedMessage
from penstock.queue import Queue

_AT_A_TIME = 100


def dequeue(
    path: QueuePath,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 1,
    everything: Annotated[bool, typer.Option("--all", help="All that are ready.")] = False,
    wait: Annotated[
        float,
        typer.Option(metavar="DURATION", parser=seconds_of, help="Wait so long for each."),
    ] = 0.0,
    group: InGroup = MAIN,
    json: AsJson = False,
) -> None:
    """Take messages for good and print their payloads, each followed by a line end.

    A message is settled once it is printed: if the output breaks, it stays in the queue. Exits with
    1 if there was none.
    """
    taken = 0
    with writing(path) as queue:
        while everything or taken < count:
            left = _AT_A_TIME if everything else min(count - taken, _AT_A_TIME)
            leased = queue.lease(left, wait_s=wait, group=group, holder="penstock dequeue")
            if not leased:
                refuse_if_missing(queue)
                break
            _print_and_settle(queue, leased, json=json)
            taken += len(leased)
    if not taken:
        complain(f"no message is ready in group {group!r}")
        raise typer.Exit(1)


def _print_and_settle(queue: Queue, leased: list[LeasedMessage], *, json: bool) -> None:
    try:
        for job in leased:
            if json:
                write_json_line(message_json(job.message))
            else:
                sys.stdout.flush()
                sys.stdout.buffer.write(job.payload + b"\n")
        sys.stdout.flush()
    except BaseException:
        queue.release(leased)
        raise
    queue.ack(leased)
