"""The parent's side: children that are started, heard, and killed."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict

from tests.harness.kill_judge import Judge
from tests.harness.kill_work import Orders


class Template:
    """The warm process that forks the children, and the pipe from them. One child at a time."""

    def __init__(self) -> None:
        path = os.pathsep.join(each or "." for each in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.kill_template"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._child = 0
        self._ended = True

    def start(self, orders: Orders) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(orders)) + "\n")
        self._process.stdin.flush()
        self._child, self._ended = 0, False
        while not self._child:
            self._next(None)

    def send(self, number: signal.Signals) -> None:
        if not self._ended:
            os.kill(self._child, number)

    def hear(self, judge: Judge, *, upto: int) -> None:
        """Listen until the judge has heard of so many answers."""
        while judge.answers < upto and not self._ended:
            self._next(judge)

    def hear_until_stopped(self, judge: Judge) -> None:
        while self._next(judge) != "stopped":
            assert not self._ended

    def hear_the_rest(self, judge: Judge) -> None:
        """Listen until the child was reaped; it must have been killed."""
        status = ""
        while not self._ended:
            status = self._next(judge)
        assert status == f"ended {int(signal.SIGKILL)}", "it ended by itself"

    def close(self) -> None:
        self.send(signal.SIGKILL)
        self._process.kill()
        self._process.communicate()

    def _next(self, judge: Judge | None) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip("\n")
        assert line, "the template process ended"
        if line.startswith("child "):
            self._child = int(line.removeprefix("child "))
        elif line.startswith("ended "):
            self._ended = True
        elif judge is not None:
            judge.hear(line)
        return line
