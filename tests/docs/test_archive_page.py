"""The archive page lists every option of a store, every limit and every command."""

import re

from penstock.archive.manifests import MAX_FILES
from penstock.archive.places import OPTIONS
from tests.docs.pages import DOCS, rows_with, unquoted

PAGE = "archive.md"


def test_every_option_is_listed_with_its_variables() -> None:
    listed = [
        (row["store"], unquoted(row["option"]), tuple(re.findall(r"`(\w+)`", row["environment"])))
        for row in rows_with(PAGE, "store", "option", "environment")
    ]
    assert listed == [
        (kind, name, variables)
        for kind, options in OPTIONS.items()
        for name, variables in options.items()
    ]


def test_limits_are_those_of_the_code() -> None:
    limits = {row["what"]: row["limit"] for row in rows_with(PAGE, "what", "limit")}
    assert limits["files of one queue"] == f"{MAX_FILES:,}"


def test_the_commands_of_the_page_have_the_options_it_names() -> None:
    from typer.main import get_command

    from penstock.cli.spark import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    for line in re.findall(r"^    penstock spark (.*)$", (DOCS / PAGE).read_text(), re.MULTILINE):
        words = line.split()
        known = {name for one in commands[words[0]].params for name in one.opts}
        assert {word for word in words[1:] if word.startswith("-")} <= known
