"""The commands of `penstock spark` where Spark is not installed: what to install, no traceback."""

import sys
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine


@pytest.mark.parametrize(
    "line",
    [
        ["archive", "queue", "archive"],
        ["restore", "archive", "queue"],
        ["report", "queue", "page.html"],
        ["audit", "queue"],
        ["redrive", "queue"],
        ["stream", "queue", "out", "--checkpoint", "seen"],
    ],
    ids=lambda line: line[0],
)
def test_a_command_says_what_to_install(
    line: list[str], command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("penstock.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.chdir(tmp_path)
    answer = command("spark", *line)
    assert (answer.code, answer.out) == (2, b"")
    assert "pip install '.[spark]'" in answer.err
    assert list(tmp_path.iterdir()) == []
