"""The errors page lists every error, under its right parent, and no other."""

from penstock import errors
from tests.docs.pages import rows_with, unquoted


def test_every_error_is_listed_once_in_the_order_of_the_code() -> None:
    known = [
        (name, ", ".join(base.__name__ for base in error.__bases__))
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, errors.PenstockError)
    ]
    listed = [
        (unquoted(row["error"]), unquoted(row["is a"]))
        for row in rows_with("errors.md", "error", "is a")
    ]
    assert listed == known


def test_every_error_says_when_and_what_to_do() -> None:
    for row in rows_with("errors.md", "error", "is a"):
        assert row["when"], row
        assert row["what to do"], row
