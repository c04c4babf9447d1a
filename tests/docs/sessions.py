"""Run the shell sessions of a page as a reader would: save its programs, type its commands.

A block of language `py` that starts with a comment like `# jobs.py` is saved under that name. In a
`console` block each line that starts with `$` is run, and the lines below it are what it prints on
stdout, or the error that it ends with. `…` stands for any text; a line that is only `…`, for any
lines.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATIENCE_S = 60


def commands_of(block: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with what it prints.

    >>> commands_of("$ echo a \\\\\\n b\\na b\\n$ true\\n")
    [('echo a  b', 'a b\\n'), ('true', '')]
    """
    joined = block.replace("\\\n", "")
    parts = re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]
    found = (part.partition("\n") for part in parts)
    return [(command, printed) for command, _, printed in found]


def as_pattern(printed: str) -> re.Pattern[str]:
    """Return what matches the output that a page shows.

    >>> bool(as_pattern("a…c\\n…\\nz\\n").fullmatch("abbc\\n1\\n2\\nz\\n"))
    True
    """
    lines = [
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r" *\n"
        for line in printed.splitlines()
    ]
    return re.compile("".join(lines))


class Session:
    """A shell in a directory.

    Args:
        directory: Where programs are saved and commands are run.
        replaced: Texts of the page and what stands for them, such as the address of a broker.
    """

    def __init__(self, directory: Path, replaced: dict[str, str] | None = None) -> None:
        self.directory = directory
        self._replaced = replaced or {}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # A wide and plain terminal, so that tables have one form.
        self.environment = {**os.environ, "PATH": path, "COLUMNS": "120", "NO_COLOR": "1"}

    def run_blocks(self, text: str) -> int:
        """Save the programs of a text and run its commands. Return the number of commands."""
        count = 0
        for language, block in _FENCED.findall(self._replace(text)):
            name = re.match(r"# ([\w.]+)\n", block)
            if language == "py" and name:
                (self.directory / name[1]).write_text(block)
            elif language == "console":
                for command, printed in commands_of(block):
                    self._run(command, printed)
                    count += 1
        return count

    def _replace(self, text: str) -> str:
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        return text

    def _run(self, command: str, printed: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        # A page that shows an error expects one.
        is_error = printed.startswith("penstock: ")
        assert (done.returncode == 0) != is_error, done.stderr
        # The error is the last line; warnings and logs may come before it.
        output = done.stderr[done.stderr.rfind("penstock: ") :] if is_error else done.stdout
        shown = output.rstrip("\n") + "\n" if output else ""
        assert as_pattern(printed).fullmatch(shown), (
            f"$ {command}\n{done.stdout}\n{done.stderr}\nbut the page shows\n{printed}"
        )
