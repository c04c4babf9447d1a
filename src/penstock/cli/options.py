"""Arguments and options that several commands share, and the parsers of their values."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, get_annotations, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from penstock.checking import did_you_mean
from penstock.model import MAIN_GROUP_NAME
from penstock.queue.settings import SETTING_TYPES
from penstock.units import A_DURATION, A_SIZE, duration_s, number_of, size_bytes

MAIN = MAIN_GROUP_NAME


# -- parsing values --------------------------------------------------------------------------------


def parse_duration(text: str | float) -> float:
    """Return the seconds of a duration: seconds, or a number with one of ms, s, m, h, d.

    >>> [parse_duration(text) for text in ("30", "0.5", "250ms", "10m", "2h", "7d")]
    [30.0, 0.5, 0.25, 600.0, 7200.0, 604800.0]
    """
    found = duration_s(str(text))  # typer also parses the default, which is a number
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write {A_DURATION}")
    return found


def parse_size(text: str | int) -> int:
    """Return the bytes of a size: bytes, or a number with a unit.

    >>> [parse_size(text) for text in ("4096", "64MB", "1GiB")]
    [4096, 64000000, 1073741824]
    """
    found = size_bytes(str(text))
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size; write {A_SIZE}")
    return found


def parse_time(text: str) -> float:
    """Return a time in Unix seconds. ISO 8601 without a time zone is local time.

    >>> parse_time("1700000000.5"), parse_time("2023-11-14T22:13:20Z")
    (1700000000.5, 1700000000.0)
    """
    try:
        if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
            return float(text)
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not a time; write Unix seconds, or ISO 8601: 2030-01-31T09:00"
        ) from None


def parse_pairs(pairs: list[str] | None, noun: str) -> dict[str, str]:
    """Return the names and values of repeated NAME=VALUE options."""
    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not a {noun}; write NAME=VALUE")
        found[name] = value
    return found


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """Return queue settings. A value is JSON, a duration or size with its unit, or else text.

    >>> parse_settings(["lease_s=1m", "sync=never", "auto_compact=false"])
    {'lease_s': 60.0, 'sync': 'never', 'auto_compact': False}
    """
    found: dict[str, Any] = {}
    for name, text in parse_pairs(pairs, "setting").items():
        if name not in SETTING_TYPES:
            raise typer.BadParameter(
                f"a queue has no setting {name!r}; {did_you_mean(name, SETTING_TYPES)}"
            )
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = number_of(name, text)
    return found


# -- making arguments and options ------------------------------------------------------------------


def argument(metavar: str, help: str) -> Any:
    """Return a positional argument."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def option(help: str, *names: str, **more: Any) -> Any:
    """Return an option. Without names, typer derives one from the parameter's."""
    return typer.Option(*names, help=help, **more)


def duration_option(help: str, *names: str) -> Any:
    """Return an option whose value is a duration."""
    return option(help, *names, metavar="DURATION", parser=parse_duration)


def time_option(help: str, *names: str) -> Any:
    """Return an option whose value is a time."""
    return option(help, *names, metavar="TIME", parser=parse_time)


def group_option(help: str) -> Any:
    """Return the option that names a consumer group."""
    return option(help, "--group", "-g", metavar="NAME")


# -- shared by several commands --------------------------------------------------------------------

QueuePath = Annotated[str, argument("PATH", "Directory or URL of the queue.")]
QueueDirectory = Annotated[str, argument("PATH", "Directory of the queue.")]
BrokerTarget = Annotated[str, argument("BROKER", "URL or data directory of the broker.")]
BrokerUrl = Annotated[str, argument("BROKER", "URL of the broker.")]
QueueName = Annotated[str, argument("QUEUE", "namespace/queue; without a namespace: default.")]
MessageId = Annotated[str, argument("ID", "Id of the message.")]
AsJson = Annotated[bool, option("Print JSON instead of text.", "--json")]
InGroup = Annotated[str, group_option("Consumer group.")]
Count = Annotated[int, option("Maximum number of messages.", "--count", "-n", min=1)]
Yes = Annotated[bool, option("Do not ask for confirmation.", "--yes", "-y")]
Settings = Annotated[
    list[str] | None, option("Queue setting; may be repeated.", "--set", "-s", metavar="NAME=VALUE")
]

# Of a message that is published now, or by a schedule.
PayloadText = Annotated[str | None, argument("PAYLOAD", "Payload; - reads it from standard input.")]
PayloadFile = Annotated[
    Path | None, option("Read the payload from a file.", "--file", "-f", metavar="FILE")
]
Priority = Annotated[int | None, option("0 to 9; higher is delivered first.", "--priority", "-p")]
Ttl = Annotated[float | None, duration_option("Expire after this time.")]
Headers = Annotated[
    list[str] | None, option("Header; may be repeated.", "--header", "-H", metavar="NAME=VALUE")
]
Key = Annotated[
    str | None, option("Messages with the same key are delivered one at a time, in order.")
]
MaxAttempts = Annotated[int | None, option("Failed attempts after which it is a dead letter.")]
ContentType = Annotated[str | None, option("Type of the payload, such as application/json.")]
Tenant = Annotated[str | None, option("Whom it is for: counts for limits and fair share.")]


class End(StrEnum):
    """The two ends of a queue."""

    BEGINNING = "beginning"
    END = "end"


# -- sets of options -------------------------------------------------------------------------------


def takes(**sets: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command whose parameters, named here, are sets of options.

    A set is a NamedTuple whose fields are options. They become options of the command, in the
    place of the parameter.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(*args: Any, **options: Any) -> None:
            bound = flat.bind(*args, **options)
            bound.apply_defaults()
            given = bound.arguments
            for name, kind in sets.items():
                given[name] = kind(**{field: given.pop(field) for field in kind._fields})
            command(**given)

        parameters: list[Parameter] = []
        for one in signature(command).parameters.values():
            if one.name not in sets:
                parameters.append(one)
                continue
            kind = sets[one.name]
            parameters += [
                Parameter(
                    field,
                    Parameter.POSITIONAL_OR_KEYWORD,
                    annotation=annotation,
                    default=kind._field_defaults[field],
                )
                for field, annotation in get_annotations(kind).items()
            ]
        flat = Signature(parameters)
        dressed: Any = call
        dressed.__signature__ = flat
        dressed.__annotations__ = {one.name: one.annotation for one in parameters}
        del dressed.__wrapped__
        return call

    return decorate


class Position(NamedTuple):
    """Where a group starts: at most one of these."""

    to: Annotated[End | None, option("Start at one end of the queue.")] = None
    seq: Annotated[int | None, option("Start at the message with this seq.")] = None
    message: Annotated[
        str | None, option("Start at the message with this id.", "--id", metavar="ID")
    ] = None
    time: Annotated[
        float | None, time_option("Start at the first message published since then.")
    ] = None

    def arguments(self, *, required: bool) -> dict[str, Any]:
        """Return the arguments of `seek` and `groups.create`."""
        count = sum(one is not None for one in self)
        if count > 1 or (required and not count):
            only = "" if required else "only "
            raise typer.BadParameter(f"give {only}one of --to, --seq, --id and --time")
        to = self.to.value if self.to else None
        return {"to": to, "seq": self.seq, "id": self.message, "time": self.time}


# -- groups of commands ----------------------------------------------------------------------------


class _ListByDefault(TyperGroup):
    """A group of commands in which `list`, if it has one, may be left out.

    `penstock queues URL` lists queues.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else "-"
        if first not in self.commands and not first.startswith("-"):
            if "list" not in self.commands:
                names = " or ".join(self.commands)
                raise typer.BadParameter(f"{first!r} is no command; give {names}", ctx=ctx)
            args = ["list", *args]
        return super().parse_args(ctx, args)


def command_group(name: str, help: str) -> typer.Typer:
    """Return an empty group of commands whose default command is `list`, if it gets one."""
    return typer.Typer(name=name, help=help, cls=_ListByDefault, no_args_is_help=True)
