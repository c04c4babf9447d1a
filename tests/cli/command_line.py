"""Running the command in this process, and looking at what it leaves."""

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command line came to."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        """The one document it wrote."""
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class CommandLine:
    """The `penstock` command, with its output caught."""

    def __init__(
        self, capture: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: object, stdin: bytes = b"") -> Answer:
        self._capture.readouterr()
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            with pytest.raises(SystemExit) as leaving:
                main([str(argument) for argument in arguments])
        out, err = self._capture.readouterr()
        code = leaving.value.code
        assert isinstance(code, int)
        return Answer(code, out, err.decode())


def listing(root: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything there is to see of a directory without opening it as a queue."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (
            status.st_mode,
            status.st_mtime_ns,
            status.st_ino,
            content,
        )
    return found
