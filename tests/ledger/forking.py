"""Doing something in a forked child and hearing how it went."""

import os
import select
import signal
import sys
import warnings
from collections.abc import Callable

DEADLINE_S = 30


def in_forked_child(
    do: Callable[[], object], *, may_ignore: type[Exception] | tuple[()] = ()
) -> str:
    """What `do` returns in a child of this process, as text; an error as "Name: message".

    Errors of what runs right after the fork count too, unless they are of the type `may_ignore`.
    """
    reading, writing = os.pipe()
    ignored: list[BaseException | None] = []
    hook = sys.unraisablehook
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
        sys.unraisablehook = lambda unraisable: ignored.append(unraisable.exc_value)
        try:
            child = os.fork()
        finally:
            sys.unraisablehook = hook
    if child == 0:
        try:
            unexpected = [error for error in ignored if not isinstance(error, may_ignore)]
            answer = f"after the fork: {unexpected!r}" if unexpected else str(do())
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
