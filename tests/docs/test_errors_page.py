"""The errors page lists every error, under its right parent, and no other."""

from importlib import import_module

from penstock import archive, arrow, errors
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


def test_the_errors_of_optional_packages_are_listed_with_their_parents() -> None:
    for row in rows_with("errors.md", "error", "parent"):
        module, _, name = unquoted(row["error"]).rpartition(".")
        assert getattr(import_module(module), name).__bases__[0].__name__ == unquoted(row["parent"])
    listed = {unquoted(row["error"]) for row in rows_with("errors.md", "error", "parent")}
    exported = [
        f"{module.__name__}.{name}"
        for module in (archive, arrow)
        for name in module.__all__
        if isinstance(found := getattr(module, name), type) and issubclass(found, Exception)
    ]
    assert listed == {*exported, "penstock.spark.MalformedPayload"}


def test_every_error_says_when_and_what_to_do() -> None:
    for row in rows_with("errors.md", "error", "when"):
        assert row["when"], row
        assert row["what to do"], row
