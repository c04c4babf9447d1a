"""Doing something in a forked child and hearing how it went."""

import os
import select
import signal
import warnings
from collections.abc import Callable

DEADLINE_S = 30


def in_forked_child(do: Callable[[], object]) -> str:
    """What `do` returns in a child of this process, as text; an error as "Name: message"."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
        child = os.fork()
    if child == 0:
        try:
            answer = str(do())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], DEADLINE_S)
        if not ready:
            os.kill(child, signal.SIGKILL)
        answer = os.read(reading, 65536).decode() if ready else "it hangs"
    finally:
        os.close(reading)
        os.waitpid(child, 0)
    return answer
