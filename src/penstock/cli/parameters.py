"""Arguments and options that several commands share."""

from typing import Annotated

import typer

from penstock.cli.words import time_of
from penstock.model import MAIN_GROUP_NAME

QueuePath = Annotated[
    str, typer.Argument(metavar="PATH", help="The queue's directory.", show_default=False)
]
MessageId = Annotated[
    str, typer.Argument(metavar="ID", help="The id of a message.", show_default=False)
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
