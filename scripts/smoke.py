"""What every installation must do: `python scripts/smoke.py`. Prints one line, or fails.

It runs in the environment that it checks, so it imports nothing but Penstock and Python's library.
`--like-macos` first removes what only Linux has from Python's modules. `--base`: no extra is
installed, and the command line must say so.
"""

import fcntl
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path

SERVE = "serve"
LINUX_ONLY = {
    os: ("fdatasync", "posix_fadvise", "posix_fallocate", "POSIX_FADV_DONTNEED", "O_DIRECT"),
    select: ("epoll",),
    fcntl: ("F_OFD_SETLK", "F_SETPIPE_SZ"),
}
DATA_FILES = (
    "py.typed",
    "protobuf/penstock.proto",
    "server/dashboard/templates/base.html",
    "server/dashboard/static/vendor/htmx.min.js",
)


def check_queue(place: Path) -> str:
    """Publish, lease and ack durably: everything is there after opening again."""
    import penstock
    from penstock import codec

    with penstock.open(place, sync="always", max_attempts=1) as queue:
        ids = queue.enqueue_batch([b"%d" % n for n in range(100)])
        queue.ack(queue.lease(50))
        queue.nack(queue.lease(1), "on purpose")
        assert queue.compact() is not None
    with penstock.open(place) as queue:
        stats = queue.stats()
        assert (stats.ready, stats.acked, stats.dead) == (49, 50, 1), stats
        assert queue.get(ids[-1]).payload == b"99"
    return str(codec.IMPLEMENTATION)


def check_files() -> None:
    """The wheel has what is not Python."""
    for name in DATA_FILES:
        assert resources.files("penstock").joinpath(name).is_file(), f"{name} is missing"
    scripts = {one.value for one in entry_points(group="console_scripts", name="penstock")}
    assert scripts == {"penstock_command:main"}, scripts


def check_message_without_extras() -> None:
    """Without the extra `cli`, the command says how to install it."""
    found = subprocess.run([sys.executable, "-m", "penstock"], capture_output=True, text=True)
    assert found.returncode == 2, found
    assert "pip install '.[cli]'" in found.stderr, found.stderr


def check_broker(data: Path, flags: list[str]) -> None:
    """The command serves a directory, and the dashboard answers."""
    command = [sys.executable, __file__, *flags, SERVE, str(data), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        try:
            url = json.loads(broker.stdout.readline())["url"]
            assert b"Overview" in get_when_ready(f"{url}/dashboard")
        finally:
            broker.terminate()


def get_when_ready(url: str) -> bytes:
    """Return a page; a broker listens before it has opened its data, and answers 503 until then."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(url, timeout=30) as page:
                return bytes(page.read())
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            threading.Event().wait(0.1)
    raise AssertionError("the broker did not become ready")


def main(arguments: list[str]) -> None:
    if "--like-macos" in arguments:
        for module, names in LINUX_ONLY.items():
            for name in names:
                if hasattr(module, name):
                    delattr(module, name)
    if SERVE in arguments:
        from penstock.cli import main as command

        return command(arguments[arguments.index(SERVE) :])
    with tempfile.TemporaryDirectory() as place:
        implementation = check_queue(Path(place, "queue"))
        check_files()
        if "--base" in arguments:
            check_message_without_extras()
        else:
            check_broker(Path(place, "data"), arguments)
    print(f"Penstock works ({implementation})")


if __name__ == "__main__":
    main(sys.argv[1:])
