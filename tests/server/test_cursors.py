"""Cursors are opaque, and good for their own listing only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.server.cursors import Cursors

CURSORS = Cursors(lambda: b"k" * 32)


@given(st.text(max_size=20), st.integers(0, 2**63))
def test_a_position_comes_back(listing: str, position: int) -> None:
    assert CURSORS.read_number(listing, CURSORS.make(listing, position)) == position


@given(st.text(max_size=20), st.text(max_size=64))
def test_a_name_comes_back(listing: str, name: str) -> None:
    assert CURSORS.read_name(listing, CURSORS.make(listing, name)) == name


def test_no_cursor_is_the_beginning() -> None:
    assert CURSORS.read_number("x", None) == 0
    assert CURSORS.read_name("x", None) == ""


@given(st.text(max_size=60))
def test_made_up_ones_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        CURSORS.read_number("x", text)


@given(st.integers(0, 27), st.integers(1, 63))
def test_a_changed_one_is_refused(place: int, change: int) -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    good = CURSORS.make("x", 123_456_789)
    place %= len(good)
    other = alphabet[alphabet.index(good[place]) ^ change]
    with pytest.raises(InvalidInput):  # also in bits of the last letter that mean nothing
        CURSORS.read_number("x", good[:place] + other + good[place + 1 :])


@pytest.mark.parametrize("padding", ["=", "=="])
def test_a_padded_one_is_refused(padding: str) -> None:
    with pytest.raises(InvalidInput):
        CURSORS.read_number("x", CURSORS.make("x", 123_456_789) + padding)


def test_those_of_another_listing_kind_or_server_are_refused() -> None:
    for cursor in (
        CURSORS.make("y", 5),
        CURSORS.make("x", "five"),
        Cursors(lambda: b"j" * 32).make("x", 5),
    ):
        with pytest.raises(InvalidInput, match="cursor"):
            CURSORS.read_number("x", cursor)
