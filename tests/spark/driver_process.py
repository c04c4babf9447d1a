"""A driver of streams in a process of its own, which tests kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


class Driver:
    """A driver with its JVM and its workers: a process group, to be killed as one."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.streaming_driver", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
            )

    def says(self, word: str) -> None:
        """Wait for a word of it."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline().strip()
        assert said == word, self._log.read_text()[-5000:]

    def works(self, seconds: float) -> None:
        """Let it work for that long. It must not end by itself."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise AssertionError(f"the driver ended by itself: {self._log.read_text()[-5000:]}")

    def works_until(self, happened: Callable[[], bool]) -> None:
        """Let it work until something is seen to have happened, to the millisecond."""
        while not happened():
            self.works(0.001)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
