"""All commands, put together. To add one: a file beside this one, and its name in a line below."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

import penstock
from penstock.cli.compact import compact
from penstock.cli.dequeue import dequeue
from penstock.cli.enqueue import enqueue
from penstock.cli.history import history
from penstock.cli.inspect import inspect
from penstock.cli.peek import peek
from penstock.cli.redrive import redrive
from penstock.cli.seek import seek
from penstock.cli.spark import app as spark_app
from penstock.cli.stats import stats
from penstock.cli.tail import tail
from penstock.cli.terminal import complain
from penstock.cli.verify import verify
from penstock.cli.why import why
from penstock.cli.words import plain
from penstock.errors import PenstockError, QueueError

_Command = Callable[..., None]

NO = 1  # nothing there, a problem found, or the queue's answer is no
CANNOT = 2  # wrong usage, or the files cannot be opened or written

_LOOKING: tuple[_Command, ...] = (stats, inspect, peek, tail, why, history, verify)
_CHANGING: tuple[_Command, ...] = (enqueue, dequeue, redrive, seek, compact)

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in _LOOKING:
    app.command(rich_help_panel="Look (nothing is changed)")(_command)
for _command in _CHANGING:
    app.command(rich_help_panel="Change")(_command)
app.add_typer(spark_app, rich_help_panel="Data pipeline (on Spark)")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def penstock_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Look into a queue's directory, and work on it, from the shell.

    Exit codes: 0 done; 1 nothing there, a problem found, or the queue says no;
    2 wrong usage, or the files cannot be opened or written.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; its exit code."""
    logging.getLogger("penstock").addHandler(logging.NullHandler())  # commands say it themselves
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        app(arguments, prog_name="penstock")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except QueueError as error:
        complain(plain(str(error)))
        return NO
    except PenstockError as error:
        complain(plain(str(error)))
        return CANNOT
    except OSError as error:
        complain(plain(f"{error.filename}: {error.strerror}" if error.filename else str(error)))
        return CANNOT
    return 0
