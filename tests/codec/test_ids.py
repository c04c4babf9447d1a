"""Message ids as text: read back exactly, and refused with the reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec import make_id, parse_id
from penstock.errors import InvalidInput

ID = "01HF7YAT00000CNZG00000001A"


@given(st.integers(0, 9 * 10**12), st.integers(0, 2**32 - 1), st.integers(0, 2**48 - 1))
def test_an_id_is_read_as_it_was_made(milliseconds: int, identity: int, seq: int) -> None:
    text = make_id(milliseconds * 1_000_000, identity, seq)
    assert parse_id(text) == (milliseconds, identity, seq)
    assert parse_id(text.lower()) == (milliseconds, identity, seq)


@pytest.mark.parametrize("letter", [*"ILOUilou_+-! \n\0\x7f", "é", "٣", "\ud800"])
def test_a_letter_that_is_not_in_the_alphabet_is_named(letter: str) -> None:
    for at in (0, 12, 25):
        with pytest.raises(InvalidInput, match="is not in the alphabet"):
            parse_id(ID[:at] + letter + ID[at + 1 :])


@pytest.mark.parametrize("text", ["", ID[:-1], ID + "0", None, 5, ID.encode()])
def test_another_length_or_type_is_refused(text: object) -> None:
    with pytest.raises(InvalidInput, match="26 characters"):
        parse_id(text)  # type: ignore[arg-type]


def test_a_number_of_more_than_128_bits_is_refused() -> None:
    with pytest.raises(InvalidInput, match="too large"):
        parse_id("8" + ID[1:])
