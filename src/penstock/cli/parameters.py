"""Arguments and options that several commands share."""

from typing import Annotated

import typer

from penstock.cli.words import time_of
from penstock.model import MAIN_GROUP_NAME

QueuePath = Annotated[
    str,
    typer.Argument(metavar="PATH", help="The queue's directory, or its URL.", show_default=False),
]
QueueFiles = Annotated[
    str, typer.Argument(metavar="PATH", help="The queue's directory.", show_default=False)
]
BrokerPlace = Annotated[
    str,
    typer.Argument(
        metavar="BROKER", help="The broker's URL, or its data directory.", show_default=False
    ),
]
BrokerUrl = Annotated[
    str, typer.Argument(metavar="BROKER", help="The broker's URL.", show_default=False)
]
QueueAtBroker = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="namespace/queue, or a queue of the namespace default.",
        show_default=False,
    ),
]
MessageId = Annotated[
    str, typer.Argument(metavar="ID", help="The id of a message.", show_default=False)
]
Receipts = Annotated[
    list[str],
    typer.Argument(
        metavar="RECEIPT",
        help="As `penstock lease` shows it, or its JSON; - reads them from standard input.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs, instead of a table.")]
InGroup = Annotated[
    str, typer.Option("--group", "-g", metavar="NAME", help="The consumer group that is meant.")
]
Since = Annotated[
    float | None,
    typer.Option(
        "--since",
        metavar="TIME",
        parser=time_of,
        help="Only those that failed last at or after it.",
    ),
]
Until = Annotated[
    float | None,
    typer.Option(
        "--until", metavar="TIME", parser=time_of, help="Only those that failed last before it."
    ),
]

MAIN = MAIN_GROUP_NAME
