"""`serve` in a process of its own, told by its log."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_PROGRAM = """
import os, sys
from pathlib import Path
from penstock.server.configuration import load_configuration
from penstock.server.serve import serve

def read():
    return load_configuration(Path(sys.argv[1]), os.environ)

serve(read(), read_again=read)
"""
_PATIENCE_S = 30


class ServingProcess:
    """Enter it and it listens; leave it and it is gone."""

    def __init__(self, config: Path) -> None:
        command = [sys.executable, "-c", _PROGRAM, str(config)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> "ServingProcess":
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate(timeout=_PATIENCE_S)

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next line of the log about an event."""
        assert self._process.stderr is not None
        seen = []
        for line in self._process.stderr:
            seen.append(line)
            found = json.loads(line) if line.startswith("{") else {}
            if found.get("event") == event:
                return dict(found)
        raise AssertionError(f"it ended without {event!r}:\n{''.join(seen)}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        return self._process.wait(_PATIENCE_S)
