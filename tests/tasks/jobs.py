"""Tasks that child processes import, by `tests.tasks.jobs:tasks`."""

import os
import signal
import subprocess
import sys
from threading import Event

from penstock.tasks import GiveUp, Tasks, current

tasks = Tasks("memory:", backoff_base_s=0, max_attempts=2)


@tasks.task(keep_result_s=60)
def whoami(n: int) -> tuple[int, int]:
    return n, os.getpid()


@tasks.task(keep_result_s=60)
async def double(n: int) -> int:
    return 2 * n


@tasks.task(max_attempts=1)
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@tasks.task(max_attempts=1, timeout_s=0.2)
def hang() -> None:
    Event().wait()  # in C: only the end of the process ends it


@tasks.task
def refuse() -> None:
    raise GiveUp("no")


@tasks.task
def report() -> None:
    current().progress(0.5, "half")


@tasks.task(max_attempts=1)
def leave() -> None:
    sys.exit("config missing")


@tasks.task(keep_result_s=60)
def told_to_end() -> str:
    """A signal to the whole group, as systemd sends it, while the job runs."""
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    ended = subprocess.run(["sh", "-c", "kill -TERM $$; echo went on"], capture_output=True)
    return ended.stdout.decode() or "programs of the job end by it"
