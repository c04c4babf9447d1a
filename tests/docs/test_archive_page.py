"""The archive page lists every option of a store, every limit and every command."""

import re
from pathlib import Path
from textwrap import dedent

import pytest

from penstock.archive import ArchiveManifest, archive_at
from penstock.archive.manifests import MAX_FILES
from penstock.archive.places import OPTIONS
from tests.archive.made_archives import add_file, messages
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


def test_an_archive_is_read_in_python_as_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = archive_at(str(tmp_path))
    manifest = ArchiveManifest("shop/orders", 7, first_seq=4701, next_seq=4701)
    for _ in range(3):
        add_file(archive, manifest, messages(manifest.next_seq, 10))
    section = (DOCS / PAGE).read_text().partition("## Reading an archive in Python\n")[2]
    found = re.match(r"\n((?:    .*\n|\n)+)", section)
    assert found is not None
    exec(dedent(found[1]).replace("s3://bucket/archive", str(tmp_path)), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("shop/orders 4701 4731 30 ")
    assert [line.split()[1:] for line in printed[1:]] == [
        ["4711", "4720", "10"],
        ["4721", "4730", "10"],
    ]
