"""The settings page matches the code."""

import pytest

from penstock.errors import InvalidInput
from penstock.queue import QueueSettings
from tests.docs.pages import quantity, rows_with, unquoted

PAGE = "settings.md"
DEFAULTS = QueueSettings().as_dict()
ROWS = {unquoted(row["setting"]): row for row in rows_with(PAGE, "setting", "default", "range")}
RANGES = [name for name, row in ROWS.items() if " to " in row["range"]]
CHOICES = [name for name in ROWS if name not in RANGES]


def made(name: str, value: object) -> object:
    return QueueSettings.of({name: value}).as_dict()[name]


def test_every_setting_is_listed_in_the_order_of_the_code() -> None:
    assert list(ROWS) == list(DEFAULTS)


@pytest.mark.parametrize("name", ROWS)
def test_default_matches_the_code(name: str) -> None:
    default = DEFAULTS[name]
    stated = ROWS[name]["default"]
    if name in CHOICES:
        assert stated == str(default)
    else:
        assert quantity(stated) == default


@pytest.mark.parametrize("name", RANGES)
def test_range_matches_the_code(name: str) -> None:
    low, high = (quantity(end) for end in ROWS[name]["range"].split(" to "))
    for inside in (low, high):
        assert made(name, inside) == inside
    for outside in (low - 0.0001, high * 1.0001 + 1):
        with pytest.raises(InvalidInput, match=name):
            made(name, type(high)(outside) if outside > high else outside)


@pytest.mark.parametrize("name", CHOICES)
def test_choices_match_the_code(name: str) -> None:
    choices = ROWS[name]["range"].split(", ")
    if isinstance(DEFAULTS[name], bool):
        assert sorted(choices) == ["False", "True"]
        return
    for choice in choices:
        assert made(name, choice) == choice
    with pytest.raises(InvalidInput) as refused:
        made(name, "other")
    assert str(refused.value).endswith(f"one of {', '.join(choices)}")
