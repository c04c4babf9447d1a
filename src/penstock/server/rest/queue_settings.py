"""The settings of a queue as a body may give them: those of the queue itself, all optional."""

from dataclasses import fields
from typing import Any, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from penstock.broker import QueueSettings

_hints = get_type_hints(QueueSettings)

# Made from the queue's own settings, so that a new one is known here, and in the OpenAPI document,
# without a word.
QueueSettingsBody: Any = msgspec.defstruct(
    "QueueSettingsBody",
    [(item.name, _hints[item.name] | UnsetType, UNSET) for item in fields(QueueSettings)],
    forbid_unknown_fields=True,
)
QueueSettingsBody.__doc__ = "Settings of a queue; those that are left out stay, or are the usual."


def given_settings(body: Any) -> dict[str, Any]:
    """Those that the body gave."""
    return {
        name: value
        for name in body.__struct_fields__
        if (value := getattr(body, name)) is not UNSET
    }
