"""The states page lists the states and events, and what each event does."""

import re

from penstock.queue import EventType, State
from tests.docs.pages import DOCS, rows_with, unquoted
from tests.queue.test_states_table import TABLE

PAGE = "states.md"
PAIRS = rows_with(PAGE, "event", "from")
COLUMNS = [column for column in PAIRS[0] if column not in ("event", "from")]


def test_every_state_is_listed() -> None:
    listed = [unquoted(row["state"]) for row in rows_with(PAGE, "state", "meaning")]
    assert sorted(listed) == sorted(state.name.lower() for state in State)


def test_every_event_is_listed_once() -> None:
    about_messages = [unquoted(row["event"]) for row in PAIRS]
    about_others = [
        name
        for row in rows_with(PAGE, "event", "about")
        for name in unquoted(row["event"]).split(", ")
    ]
    assert sorted(about_messages + about_others) == sorted(event.name for event in EventType)


def test_every_pair_matches_the_table_in_the_tests() -> None:
    for column in COLUMNS:
        stated = {unquoted(row["event"]): row[column] for row in PAIRS if row[column]}
        assert stated == TABLE[column], column


def test_every_kind_of_state_that_differs_has_a_column() -> None:
    rows = [TABLE[column] for column in COLUMNS]
    alike_but_after_seek = {"ready, failed before", "scheduled, backing off"}
    for name, row in TABLE.items():
        assert row in rows or name in alike_but_after_seek or not row, name


def test_the_picture_shows_every_lasting_state() -> None:
    picture = re.findall(r"^    .*$", (DOCS / PAGE).read_text(), re.MULTILINE)
    for name in ("ready", "scheduled", "leased", "parked", "dead", "done"):
        assert any(name in line for line in picture)
