"""Settings of a queue on the command line: --set NAME=VALUE."""

import json
from dataclasses import fields
from typing import Annotated, Any

import typer

from penstock.checking import did_you_mean
from penstock.queue.settings import QueueSettings
from penstock.units import number_of

_NAMES = [field.name for field in fields(QueueSettings)]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="NAME=VALUE", help="A setting of the queue; may be repeated."
    ),
]


def settings_of(pairs: list[str] | None) -> dict[str, Any]:
    """Names and values; a value is JSON, a duration or size with its unit, or else text.

    >>> settings_of(["lease_s=1m", "sync=never", "auto_compact=false"])
    {'lease_s': 60.0, 'sync': 'never', 'auto_compact': False}
    """
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not a setting; write NAME=VALUE")
        if name not in _NAMES:
            raise typer.BadParameter(
                f"a queue has no setting {name!r}; {did_you_mean(name, _NAMES)}"
            )
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = number_of(name, text)
    return found
