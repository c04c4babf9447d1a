"""The how-to pages about Spark: commands of examples, and of the tests."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.docs.sessions import Session


def commands(page: str, program: str) -> Iterator[list[str]]:
    """Yield the commands of a page's indented blocks that start with a program, as words."""
    text = (DOCS / "how-to" / f"{page}.md").read_text().replace("\\\n", "")
    for line in re.findall(rf"^    ({re.escape(program)} .*)$", text, re.MULTILINE):
        yield shlex.split(line, comments=True)


def test_the_commands_of_the_pipeline_parse() -> None:
    pytest.importorskip("pyspark")
    from examples.pipeline import reconcile, streams

    parsers = {
        "examples.pipeline.reconcile": reconcile.parsed,
        "examples.pipeline.streams": streams.parsed,
    }
    found = list(commands("pipeline", "python -m"))
    assert {line[2] for line in found} == set(parsers)
    for line in found:
        parsers[line[2]](line[3:])


def test_the_zip_of_the_page_is_the_one_that_is_tested() -> None:
    (line,) = commands("spark-clusters", "python -m zipfile")
    tested = (DOCS.parent / "tests" / "spark" / "test_py_files.py").read_text()
    for word in line[1:4] + line[5:]:
        assert f'"{word}"' in tested, word


@pytest.mark.long
def test_the_first_steps_work_as_shown(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    page = (DOCS / "how-to" / "spark-first-steps.md").read_text()
    assert Session(tmp_path).run_blocks(page) == 3
