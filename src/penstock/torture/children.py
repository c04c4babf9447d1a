"""Children that work until they are killed, and say what was acknowledged.

A warm process forks them, so that a cycle costs no start-up. It and its children write to the same
pipe. A pipe takes a short line whole, so a kill never cuts a line.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Protocol


class ChildFailed(Exception):
    """A child ended by itself, before it was killed."""


class Listener(Protocol):
    """Remembers what the children of one directory say."""

    answers: int  # calls that were acknowledged so far

    def hear(self, line: str) -> None: ...


class Children:
    """The warm process, and the pipe from it and its children. One child at a time."""

    def __init__(self, module: str) -> None:
        """`module` has a function `main` that calls `fork_children`."""
        path = os.pathsep.join(each or "." for each in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {module} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the parent, which then closes this
        )
        self._child = 0
        self._ended = True

    def start(self, orders: str) -> None:
        """Start a child with a line of orders."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{orders}\n")
        self._process.stdin.flush()
        self._child, self._ended = 0, False
        while not self._child:
            self._next(None)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child, unless it has ended."""
        if not self._ended and self._child:
            os.kill(self._child, number)  # not reaped yet: its parent waits for us to read

    def hear(self, listener: Listener, *, upto: int) -> None:
        """Listen until a number of answers, or until the child was killed."""
        while listener.answers < upto and not self._ended:
            self._next(listener)

    def hear_until_stopped(self, listener: Listener) -> None:
        """Listen until the child was stopped by a signal."""
        while self._next(listener) != "stopped":
            if self._ended:
                raise ChildFailed("it was killed, not stopped")

    def hear_the_rest(self, listener: Listener) -> None:
        """Listen until the child was reaped."""
        while not self._ended:
            self._next(listener)

    def close(self) -> None:
        """End the processes."""
        self.send(signal.SIGKILL)
        self._process.kill()
        self._process.communicate()

    def _next(self, listener: Listener | None) -> str:
        """Read a line. Raise ChildFailed if it says that the child ended by itself."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip("\n")
        if not line:
            raise ChildFailed("the process that starts children ended")
        if line.startswith("child "):
            self._child = int(line.removeprefix("child "))
        elif line.startswith("ended "):
            self._ended = True
            if line != f"ended {int(signal.SIGKILL)}":
                raise ChildFailed(f"it {line.replace('ended', 'ended with status')}")
        elif listener is not None:
            listener.hear(line)
        return line


def fork_children(work: Callable[[str], None]) -> None:
    """Fork a child for each line of input, which calls `work` with the line.

    Say `ended` after everything that the child said, and `stopped` if a signal stops it.
    """
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            say("child", os.getpid())
            work(line)
            os._exit(1)  # it was to work until killed
        while os.WIFSTOPPED(status := os.waitpid(child, os.WUNTRACED)[1]):
            say("stopped")
        say("ended", status)


def say(*words: object) -> None:
    """Write a line to the pipe."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())
