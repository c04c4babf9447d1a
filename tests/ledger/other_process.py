"""Another Python process that does what a test asks, line by line."""

import os
import subprocess
import sys
from textwrap import dedent
from types import TracebackType


class OtherProcess:
    """Runs a few lines of Python; they read questions from stdin and print answers."""

    def __init__(self, code: str, *arguments: object) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", dedent(code), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def answer(self) -> str:
        """The next line it prints; empty if it ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def ask(self, question: str = "") -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return self.answer()

    def kill(self) -> None:
        """As the kernel would for lack of memory: no clean-up at all."""
        self._process.kill()
        self._process.wait(30)

    def end(self) -> int:
        """Let it run to its end; the exit code, negative for a signal."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(60)

    def __enter__(self) -> "OtherProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
