"""A broker that a command starts for itself, in a child process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.cli.targets import requires_extra
from penstock.errors import PenstockError

_STOP_S = 30


@contextmanager
def started_broker(data: str, *, port: int = 0, settings: Mapping[str, str]) -> Iterator[str]:
    """Serve a directory, with settings as environment variables; yield the URL."""
    with requires_extra("server"):
        import penstock.server.serve  # noqa: F401  # else the child could not say what is missing
    command = [sys.executable, "-m", "penstock", "serve", data, "--port", str(port), "--json"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **settings},
        start_new_session=True,  # Ctrl-C ends the command first, and the command ends the broker
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise PenstockError(
                    f"the broker did not start on port {port}; "
                    f"see why: penstock serve memory: --port {port}"
                )
            yield str(json.loads(line)["url"])
        finally:
            process.terminate()
            process.wait(_STOP_S)
