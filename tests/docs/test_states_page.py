"""The states page lists the states and events, and what each event does."""

from penstock.queue import EventType, State
from scripts.draw_states import PICTURE, STATES, picture
from tests.docs.pages import rows_with, unquoted
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


def test_the_picture_is_up_to_date_and_has_every_state() -> None:
    assert picture() == PICTURE.read_text(), "run: python scripts/draw_states.py"
    # `state` never returns `cancelled`: such a message is done.
    assert set(STATES) == {state.name.lower() for state in State} - {"cancelled"}
