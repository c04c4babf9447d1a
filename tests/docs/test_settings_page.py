"""The durability page matches the code: settings and limits."""

from dataclasses import fields
from typing import Any

import pytest

from penstock.codec import layout
from penstock.errors import InvalidInput
from penstock.ledger import (
    LedgerSettings,
    Retention,
    damage,
    index,
    json_files,
    settings,
    snapshots,
)
from penstock.ledger import tail as tail_module
from tests.docs.pages import Row, quantity, rows_with, unquoted

PAGE = "durability.md"
ROWS = {unquoted(row["setting"]): row for row in rows_with(PAGE, "setting", "default", "range")}


def made(**changes: Any) -> LedgerSettings:
    """Return settings in which only the changed ones can be out of range."""
    room = {} if "largest_step_bytes" in changes else {"largest_step_bytes": 1 << 30}
    return LedgerSettings(**{**room, **changes})


def test_every_setting_is_listed_in_the_order_of_the_code() -> None:
    assert list(ROWS) == [field.name for field in fields(LedgerSettings)]


@pytest.mark.parametrize("name", list(ROWS))
def test_default_matches_the_code(name: str) -> None:
    default = getattr(LedgerSettings(), name)
    stated = ROWS[name]["default"]
    assert (stated if isinstance(default, bool | str) else quantity(stated)) in (
        default,
        f"{default}",
    )


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if " to " in row["range"]])
def test_range_matches_the_code(name: str) -> None:
    low_text, high_text = ROWS[name]["range"].split(" to ")
    high = quantity(high_text)
    low = getattr(LedgerSettings(), low_text) if low_text in ROWS else quantity(low_text)
    for inside in (low, high):
        assert getattr(made(**{name: inside}), name) == inside
    for outside in (low - 0.0001, high + 1):
        with pytest.raises(InvalidInput, match=name):
            made(**{name: outside})


@pytest.mark.parametrize(
    "name",
    [name for name, row in ROWS.items() if "," in row["range"] and " to " not in row["range"]],
)
def test_choices_match_the_code(name: str) -> None:
    choices = ROWS[name]["range"].split(", ")
    if isinstance(getattr(LedgerSettings(), name), bool):
        assert sorted(choices) == ["False", "True"]
        return
    for choice in choices:
        made(**{name: choice})
    with pytest.raises(InvalidInput) as refused:
        made(**{name: "other"})
    assert str(refused.value).endswith(f"one of {', '.join(choices)}")


@pytest.mark.parametrize(
    "row", rows_with(PAGE, "constant", "value"), ids=lambda row: row["constant"]
)
def test_limit_matches_the_code(row: Row) -> None:
    name = unquoted(row["constant"])
    homes = (layout, settings, tail_module, json_files, snapshots, index, damage)
    home = next(home for home in homes if hasattr(home, name))
    assert quantity(row["value"]) == getattr(home, name)


def test_retention_rules_match_the_code() -> None:
    stated = {
        unquoted(row["rule of `Retention`"]): row["default"]
        for row in rows_with(PAGE, "rule of `Retention`")
    }
    assert list(stated) == [field.name for field in fields(Retention)]
    for name, default in stated.items():
        value = getattr(Retention(), name)
        assert value is None if default == "none" else value == quantity(default)
