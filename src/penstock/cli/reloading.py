"""`--reload`: run the same command in a child process, again whenever a Python file changes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

from penstock.cli.terminal import print_stderr

_LOOK_S = 0.5
_MAX_FILES = 20_000
_SKIPPED = frozenset(["node_modules", "__pycache__"])


def python_files(root: str) -> dict[str, int]:
    """Return the Python files below a directory with the time of their last change.

    Hidden directories and virtual environments are skipped.
    """
    found: dict[str, int] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            one
            for one in folders
            if not one.startswith(".")
            and one not in _SKIPPED
            and not (Path(folder) / one / "pyvenv.cfg").exists()
        )
        for name in files:
            if name.endswith(".py") and len(found) < _MAX_FILES:
                path = os.path.join(folder, name)
                try:
                    found[path] = os.stat(path).st_mtime_ns
                except OSError:
                    continue  # it was removed meanwhile
    return found


def changed(before: dict[str, int], after: dict[str, int]) -> str | None:
    """Return a file that is new, changed or removed; None if none is."""
    for path, time_ns in after.items():
        if before.get(path) != time_ns:
            return path
    return next((path for path in before if path not in after), None)


def run_and_reload(
    command: list[str] | None = None, look: Callable[[], dict[str, int]] | None = None
) -> None:
    """Run this command without --reload, and again after each change, until a signal."""
    if command is None:
        rest = [one for one in sys.argv[1:] if one != "--reload"]
        command = [sys.executable, "-m", "penstock", *rest]
    look = look or (lambda: python_files(os.getcwd()))
    stopped = Event()

    def stop(number: int, _: object) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not stopped.is_set():
            files = look()
            # A session of its own: Ctrl-C reaches the child once, from here.
            child = subprocess.Popen(command, start_new_session=True)
            try:
                path = _until_changed(stopped, files, look)
            finally:
                child.terminate()
                child.wait()
            if path is not None:
                print_stderr(f"{os.path.relpath(path)} changed: starting again")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _until_changed(
    stopped: Event, files: dict[str, int], look: Callable[[], dict[str, int]]
) -> str | None:
    """Wait for a change. Return the file, or None at a stop."""
    while not stopped.wait(_LOOK_S):
        path = changed(files, look())
        if path is not None:
            return path
    return None
