"""All commands. To add one: a function in a module beside this one, and a line in `_COMMANDS`."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

import penstock
from penstock.cli import admin, dead_letters, files, look, messages, operate, survey
from penstock.cli.backup import backup, restore
from penstock.cli.bench import bench
from penstock.cli.demo import demo
from penstock.cli.doctor import doctor
from penstock.cli.formatting import printable
from penstock.cli.importing import import_app
from penstock.cli.keys import keys_app
from penstock.cli.migrate import migrate, migrate_store
from penstock.cli.placement import placement_app
from penstock.cli.schedules import schedules_app
from penstock.cli.serve import serve
from penstock.cli.spark import app as spark_app
from penstock.cli.tail import tail
from penstock.cli.terminal import print_stderr
from penstock.cli.top import top
from penstock.cli.torture import torture
from penstock.cli.worker import worker
from penstock.cli.workflow import workflow_app
from penstock.client.options import KEY_VARIABLE
from penstock.errors import (
    AlreadyExists,
    KeyRefused,
    NoSuchDelivery,
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

EXIT_NO = 1  # nothing found, a problem found, or the queue or broker answers no
EXIT_ERROR = 2  # wrong usage, or the files or the broker cannot be used

# Errors that are an answer of the queue or broker; all others are failures to ask.
_ANSWERS = (
    QueueError,
    AlreadyExists,
    NoSuchNamespace,
    NoSuchQueue,
    NoSuchDelivery,
    NoSuchWebhook,
    NotEmpty,
    QuotaExceeded,
    TooManyRequests,
)

_COMMANDS: dict[str, tuple[Callable[..., None] | typer.Typer, ...]] = {  # by panel of --help
    "Look (changes nothing)": (
        *(look.stats, files.inspect, look.peek, tail, look.why),
        *(look.retries, look.history, survey.consumers, survey.reasons, survey.limits),
        *(files.verify, top, workflow_app),
    ),
    "Change": (
        *(messages.enqueue, messages.dequeue, messages.lease, messages.ack, messages.nack),
        *(dead_letters.redrive, dead_letters.discard, operate.cancel, operate.seek),
        *(operate.pause, operate.resume, operate.purge, operate.groups_app, operate.compact),
        *(schedules_app, worker, bench),
    ),
    "Broker": (
        *(serve, admin.queues_app, admin.namespaces_app, admin.webhooks_app, keys_app, migrate),
        *(migrate_store, placement_app, demo),
    ),
    "Keep safe": (backup, restore, import_app, doctor, torture),
    "Data pipeline (on Spark)": (spark_app,),
}

_HELP = ["--help", "-h"]
app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    context_settings={"help_option_names": _HELP},
    pretty_exceptions_enable=False,
)
for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, rich_help_panel=_panel)
            continue
        _takes_receipts = _command in (messages.ack, messages.nack)
        _class = messages.SettleCommand if _takes_receipts else None
        _name = _command.__name__.replace("_", "-")
        app.command(_name, cls=_class, rich_help_panel=_panel)(_command)
app.command("publish", rich_help_panel="Change", help="The same as `enqueue`.")(messages.enqueue)


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
    """Use a queue from the shell, by its directory or its URL at a broker.

    Exit codes: 0 success; 1 nothing or a problem found, or refused by the queue;
    2 wrong usage, or the files or the broker cannot be used; 130 interrupted.
    """


class _RetryMessages(logging.Handler):
    """Print what a client logs while it retries, so that the user knows why a command waits."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.root.handlers:  # else it is logged there
            print_stderr(printable(record.getMessage()))


_QUIET = logging.NullHandler()
_RETRIES = _RetryMessages()


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    logging.getLogger("penstock").addHandler(_QUIET)  # commands print errors themselves
    client = logging.getLogger("penstock.client")
    client.addHandler(_RETRIES)
    client.setLevel(logging.INFO)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NO
    return code


def _without_types_of_flags(command: Any) -> Any:
    """Let the help show `--json`, not `--json <bool>`: a flag takes no value."""
    flags = [one for one in command.params if getattr(one, "is_flag", False)]
    context = typer.Context(command, help_option_names=_HELP)
    for flag in (*flags, command.get_help_option(context)):
        flag.metavar = ""
    for part in getattr(command, "commands", {}).values():
        _without_types_of_flags(part)
    return command


def _run(arguments: Sequence[str] | None) -> int:
    try:
        command = _without_types_of_flags(typer.main.get_command(app))
        code = command(arguments, prog_name="penstock", standalone_mode=False)
    except _UsageError as error:
        if sentence := _usage_sentence(error):
            print_stderr(sentence)
        return EXIT_ERROR
    except typer.Abort:
        print_stderr("aborted")
        return EXIT_NO
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except NoSuchGroup as error:
        print_stderr(printable(f"{error} (penstock groups create PATH NAME)"))
        return EXIT_NO
    except KeyRefused as error:
        text = str(error)
        if text.startswith("an API key is needed"):  # what follows is about headers of HTTP
            text = f"the broker needs an API key: set {KEY_VARIABLE} to one"
        print_stderr(printable(text))
        return EXIT_ERROR
    except _ANSWERS as error:
        print_stderr(printable(str(error)))
        return EXIT_NO
    except PenstockError as error:
        print_stderr(printable(str(error)))
        return EXIT_ERROR
    except OSError as error:
        print_stderr(
            printable(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        )
        return EXIT_ERROR
    return code if isinstance(code, int) else 0


def _usage_sentence(error: Any) -> str:
    """Return what is wrong with a command line in one line, or "" if its help was shown."""
    text = " ".join(error.format_message().split()).removeprefix("Invalid value: ").rstrip(".")
    if not text:
        return ""
    hint = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
    return printable(f"{text[0].lower()}{text[1:]}{hint}")
