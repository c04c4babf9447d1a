"""Another process that has a queue open: it says `held`, and closes it when told to.

python -m tests.spark.lock_holder QUEUE
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock


class LockHolder:
    """The process, seen from outside."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.lock_holder", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "held\n"

    def release(self) -> None:
        """Return when the lock is free."""
        if self._process.poll() is None:
            self._process.communicate("\n")


@contextmanager
def held(path: Path) -> Iterator[LockHolder]:
    holder = LockHolder(path)
    try:
        yield holder
    finally:
        holder.release()


if __name__ == "__main__":
    with penstock.open(sys.argv[1]):
        print("held", flush=True)
        sys.stdin.readline()
