"""A broker that a command starts for itself, in a child process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from penstock.errors import PenstockError
from penstock.extras import requires_extra

_STOP_S = 30


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


_HANDLERS = (  # signal, handler that is replaced, by what
    # Shells ignore it for commands in the background: then asyncio would not heed it either.
    (signal.SIGINT, signal.SIG_IGN, signal.default_int_handler),
    (signal.SIGTERM, signal.SIG_DFL, _interrupt),
    (signal.SIGHUP, signal.SIG_DFL, _interrupt),  # not if ignored, as by nohup
)


@contextmanager
def stopped_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does."""
    ours = [one for one in _HANDLERS if signal.getsignal(one[0]) is one[1]]
    for number, _, handler in ours:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before, _ in ours:
            signal.signal(number, before)


@contextmanager
def started_broker(data: str, *, port: int = 0, settings: Mapping[str, str]) -> Iterator[str]:
    """Serve a directory, with settings as environment variables; yield the URL."""
    with requires_extra("server"):
        import penstock.server.serve  # noqa: F401  # else the child could not say what is missing
    command = [sys.executable, "-m", "penstock", "serve", data, "--port", str(port), "--json"]
    with (
        stopped_like_ctrl_c(),
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **settings},
            start_new_session=True,  # Ctrl-C ends the command first, and the command the broker
        ) as process,
    ):
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
