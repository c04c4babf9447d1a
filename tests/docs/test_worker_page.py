"""The worker's page lists its options, with their defaults."""

from dataclasses import fields

from penstock.worker import WorkerOptions
from tests.docs.pages import rows_with, unquoted


def test_every_option_is_listed_with_its_default() -> None:
    listed = [
        (unquoted(row["option"]), unquoted(row["default"]))
        for row in rows_with("worker.md", "option", "default")
    ]
    known = [(field.name, repr(field.default).replace("'", '"')) for field in fields(WorkerOptions)]
    assert listed == known
