"""Errors that are given to everyone who tries."""

import traceback
from pathlib import Path

import pytest

from penstock.errors import BadEntry, LedgerClosed, again
from penstock.ledger import Ledger


def test_a_refusal_keeps_nothing_of_the_calls_it_was_given_to(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path))
    ledger.messages.append(b"x")
    ledger.close()
    depths = []
    for _ in range(5):
        with pytest.raises(LedgerClosed) as caught:
            ledger.messages.append(b"x" * 1000)
        depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(set(depths)) == 1


@pytest.mark.parametrize("error", [LedgerClosed("it is closed"), BadEntry(7, "no")])
def test_an_error_is_raised_again_as_it_was(error: LedgerClosed | BadEntry) -> None:
    error.__cause__ = OSError("why")
    copy = again(error)
    assert copy is not error
    assert type(copy) is type(error)
    assert (str(copy), vars(copy), copy.__cause__) == (str(error), vars(error), error.__cause__)
