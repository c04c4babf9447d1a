"""What the README tells a new user to do works."""

import re
from pathlib import Path

from tests.docs.pages import DOCS
from tests.docs.sessions import Session

README = (DOCS.parent / "README.md").read_text()


def test_the_first_job_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```py\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "jobs.py").write_text(program)
    assert "    python jobs.py\n    penstock worker jobs:tasks " in README
    walk = "```console\n$ python jobs.py\n$ penstock worker jobs:tasks --idle 1\nhello 7\n…\n```\n"
    assert Session(tmp_path).run_blocks(walk) == 2


def test_the_commands_for_the_shell_run(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "hello.py").write_text(program)
    session = Session(tmp_path)
    commands = re.findall(r"^    (penstock (?:enqueue|stats|dequeue) .*)$", README, re.MULTILINE)
    assert len(commands) == 3
    typed = "".join(f"$ {command}\n…\n" for command in ("python hello.py", *commands))
    assert session.run_blocks(f"```console\n{typed}```\n") == 4
