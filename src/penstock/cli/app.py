"""All commands, put together. To add one: a file beside this one, and its name in a line below."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

import penstock
from penstock.cli.ack import ack
from penstock.cli.bench import bench
from penstock.cli.cancel import cancel
from penstock.cli.compact import compact
from penstock.cli.dequeue import dequeue
from penstock.cli.discard import discard
from penstock.cli.enqueue import enqueue
from penstock.cli.groups import groups_app
from penstock.cli.history import history
from penstock.cli.inspect import inspect
from penstock.cli.keys import keys_app
from penstock.cli.lease import lease
from penstock.cli.nack import nack
from penstock.cli.namespaces import namespaces_app
from penstock.cli.pause import pause, resume
from penstock.cli.peek import peek
from penstock.cli.purge import purge
from penstock.cli.queues import queues_app
from penstock.cli.receipts import WithReceipts
from penstock.cli.redrive import redrive
from penstock.cli.retries import retries
from penstock.cli.seek import seek
from penstock.cli.serve import serve
from penstock.cli.spark import app as spark_app
from penstock.cli.stats import stats
from penstock.cli.tail import tail
from penstock.cli.terminal import complain
from penstock.cli.top import top
from penstock.cli.verify import verify
from penstock.cli.webhooks import webhooks_app
from penstock.cli.why import why
from penstock.cli.words import plain
from penstock.cli.worker import worker
from penstock.errors import (
    AlreadyExists,
    NoSuchGroup,
    NoSuchNamespace,
    NoSuchQueue,
    NoSuchWebhook,
    NotEmpty,
    PenstockError,
    QueueError,
    QuotaExceeded,
    TooManyRequests,
)

# Typer exports only this one of its usage errors; its parent is the parent of all.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_Command = Callable[..., None]

NO = 1  # nothing there, a problem found, or the queue's answer is no
CANNOT = 2  # wrong usage, or the files cannot be opened or written

# What a queue or broker answers with no; all else is in the way of asking.
_ANSWERS = (
    QueueError,
    AlreadyExists,
    NoSuchNamespace,
    NoSuchQueue,
    NoSuchWebhook,
    NotEmpty,
    QuotaExceeded,
    TooManyRequests,
)

_LOOKING: tuple[_Command, ...] = (stats, inspect, peek, tail, why, retries, history, verify, top)
_CHANGING: tuple[_Command, ...] = (
    enqueue,
    dequeue,
    lease,
    ack,
    nack,
    redrive,
    discard,
    cancel,
    seek,
    pause,
    resume,
    purge,
    compact,
    worker,
    bench,
)
_BROKER = (queues_app, namespaces_app, webhooks_app, keys_app)

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
)
for _command in _LOOKING:
    app.command(rich_help_panel="Look (nothing is changed)")(_command)
for _command in _CHANGING:
    _kind = WithReceipts if _command in (ack, nack) else None
    app.command(cls=_kind, rich_help_panel="Change")(_command)
app.add_typer(groups_app, rich_help_panel="Change")
app.command("publish", rich_help_panel="Change", help="The same as `enqueue`.")(enqueue)
app.command(rich_help_panel="Broker")(serve)
for _group in _BROKER:
    app.add_typer(_group, rich_help_panel="Broker")
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
    """Look into a queue, and work on it, from the shell; in its directory, or at a broker's URL.

    Exit codes: 0 done; 1 nothing there, a problem found, or the queue says no;
    2 wrong usage, or the files or the broker cannot be reached or refuse.
    """


class _Complaining(logging.Handler):
    """What a client tells while it tries again, so that nobody wonders why nothing happens."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.root.handlers:  # else it is logged there
            complain(plain(record.getMessage()))


_QUIET = logging.NullHandler()
_WHILE_IT_TRIES = _Complaining()


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; its exit code."""
    logging.getLogger("penstock").addHandler(_QUIET)  # commands say it themselves
    client = logging.getLogger("penstock.client")
    client.addHandler(_WHILE_IT_TRIES)
    client.setLevel(logging.INFO)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = app(arguments, prog_name="penstock", standalone_mode=False)
    except _UsageError as error:
        if sentence := _usage_sentence(error):
            complain(sentence)
        return CANNOT
    except typer.Abort:
        complain("aborted")
        return NO
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except NoSuchGroup as error:
        complain(plain(f"{error} (penstock groups create PATH NAME)"))
        return NO
    except _ANSWERS as error:
        complain(plain(str(error)))
        return NO
    except PenstockError as error:
        complain(plain(str(error)))
        return CANNOT
    except OSError as error:
        complain(plain(f"{error.filename}: {error.strerror}" if error.filename else str(error)))
        return CANNOT
    return code if isinstance(code, int) else 0


def _usage_sentence(error: Any) -> str:
    """Return what is wrong with a command line, in one line; "" if its help was shown instead."""
    text = " ".join(error.format_message().split()).removeprefix("Invalid value: ").rstrip(".")
    if not text:
        return ""
    hint = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
    return plain(f"{text[0].lower()}{text[1:]}{hint}")
