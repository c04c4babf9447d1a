"""Every Python block of the pages runs, in order, and prints what the block after it says."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.docs.pages import DOCS

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    if "```python" in page.read_text()
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in _FENCED.finditer(text):
        language, body = block.groups()
        if language == "python":
            assert printed == "", f"nothing says that it prints {printed!r}"
            lines_before = text[: block.start(2)].count("\n")
            out = StringIO()
            with redirect_stdout(out):
                exec(compile("\n" * lines_before + body, str(page), "exec"), names)
            printed = out.getvalue()
        elif language == "text":
            assert printed == body
            printed = ""
    assert printed == "", f"nothing says that it prints {printed!r}"
