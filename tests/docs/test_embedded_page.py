"""The tables of options, codes and limits in the guide match the code."""

import inspect
import re
from dataclasses import fields

import pytest

from penstock.queue import (
    NewMessage,
    Queue,
    decisions,
    delivering,
    drafting,
    inspecting,
    settings,
)
from tests.docs.pages import Row, quantity, rows_with, unquoted

PAGE = "embedded.md"


def test_every_option_of_a_message_is_listed() -> None:
    listed = [
        name
        for row in rows_with(PAGE, "option", "meaning")
        for name in unquoted(row["option"]).split(", ")
    ]
    assert sorted(listed) == sorted(f.name for f in fields(NewMessage) if f.name != "payload")


def test_every_code_of_why_is_listed() -> None:
    in_code = set(
        re.findall(r'^\s+(?:return \()?"([a-z_]+)",', inspect.getsource(inspecting), re.M)
    )
    listed = {unquoted(row["code"]) for row in rows_with(PAGE, "code")}
    assert listed == in_code


@pytest.mark.parametrize(
    "row", rows_with(PAGE, "constant", "value"), ids=lambda row: row["constant"]
)
def test_limit_matches_the_code(row: Row) -> None:
    name = unquoted(row["constant"])
    home = next(m for m in (drafting, delivering, decisions, settings) if hasattr(m, name))
    assert quantity(row["value"]) == getattr(home, name)


def test_every_settling_call_is_listed() -> None:
    listed = {unquoted(row["call"]).partition("(")[0] for row in rows_with(PAGE, "call")}
    assert listed == {"ack", "nack", "release", "extend"}
    assert all(hasattr(Queue, name) for name in listed)
