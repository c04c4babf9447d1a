"""Tasks that child processes import, by `tests.tasks.jobs:tasks`."""

import os
import signal
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
