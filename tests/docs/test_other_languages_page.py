"""The page on other languages: its commands and snippets run, and print what it says."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.server.generated.node_project import node_project, run
from tests.server.running import RunningServer

pytestmark = pytest.mark.xdist_group("node")

PAGE = (DOCS / "other-languages.md").read_text()
STATED_URL = "http://127.0.0.1:8080"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


def block(first_line: str) -> list[str]:
    """Return the lines of the indented block that begins with a line."""
    lines = PAGE.splitlines()
    found = []
    for line in lines[lines.index(f"    {first_line}") :]:
        if not line.startswith("    "):
            break
        found.append(line.strip())
    return found


def test_the_commands_and_the_snippets_run(server: RunningServer) -> None:
    directory, install, *others = block("cd examples/typescript")
    assert directory == "cd examples/typescript"  # the project is a copy of it
    assert install == "npm ci"  # which made the project
    project = node_project()
    (project / "snippets.ts").write_text("\n".join(re.findall(r"```ts\n(.*?)```", PAGE, re.DOTALL)))
    printed = ""
    for command in others:
        words = shlex.split(command.replace(STATED_URL, server.url))
        printed = run(words, project, PENSTOCK_URL=server.url)
    assert printed.splitlines() == block('7 1 {"order":17}')
    printed = run(["node", "snippets.js"], project, PENSTOCK_URL=server.url)
    assert printed.splitlines() == ["3", "[ 'done', 'done' ]", "2", "no_such_queue"]
